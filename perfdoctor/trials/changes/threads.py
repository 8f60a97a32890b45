"""threads: another number of threads for one op on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class Threads:
    """Threads inside of an op, whatever the program or OMP_NUM_THREADS says."""

    name = "threads"
    summary = "N threads for each op on the CPU (torch.set_num_threads)"
    rules = ("PD101", "PD114", "PD115", "PD512")
    effect_on_results = "sums in another order"
    code = "torch.set_num_threads({setting})   # or OMP_NUM_THREADS={setting}"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The number that a finding advises; without a GPU all cores, those that workers leave, half of them, one."""
        from perfdoctor.trials.change import advised_settings

        advised = [int(setting) for setting in advised_settings(self.name, findings)]
        sweep: list[int] = []
        available = int((facts.cores.available or 0) / (facts.cores.local_ranks or 1))
        if available and not facts.devices:
            workers = max((each.num_workers or 0 for each in facts.loaders), default=0)
            sweep = [available, available - workers, available // 2, 1]
        order = dict.fromkeys([*advised, *sweep])
        return tuple(str(number) for number in order if number > 0 and number != facts.cpu.torch_threads)

    def apply(self, setting: str, program: Program) -> None:
        """Set the number now, and again where the program sets it; not by a variable, which would count as its own."""
        import torch

        threads = int(setting)
        workers_file = torch.utils.data._utils.worker.__file__

        def wrap(original: Any) -> Any:
            def set_num_threads(number: int) -> None:
                if sys._getframe(1).f_code.co_filename == workers_file:
                    original(number)  # a worker of a DataLoader sets one thread for itself
                    return
                if number != threads:
                    program.met(self, program.location_of_caller(), f"set_num_threads({number}) -> {threads}")
                original(threads)

            return set_num_threads

        before = torch.get_num_threads()
        if before != threads:
            torch.set_num_threads(threads)
            program.met(self, None, f"{before} -> {threads} threads")
        program.patch(torch, "set_num_threads", wrap)
