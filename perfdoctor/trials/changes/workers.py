"""workers: DataLoaders with another number of worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# A wait for the loader below this share of the step leaves nothing to gain by more workers.
MIN_WAIT_SHARE = 0.01


class Workers:
    """`num_workers` of every DataLoader; what the other arguments must be with it is set along."""

    name = "workers"
    summary = "DataLoaders with N worker processes, which live through all epochs"
    rules = ("PD101", "PD114")
    effect_on_results = "other random numbers in data sets that draw their own"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The number that a finding advises, and those around it up to the cores."""
        from perfdoctor.trials.change import advised_settings

        if not facts.loaders:
            return ()
        used = {each.num_workers or 0 for each in facts.loaders}
        advised = [int(setting) for setting in advised_settings(self.name, findings)]
        if not advised and not waits_for_loader(facts):
            # Fewer workers give the cores back to a training that computes on them.
            return ("0",) if used != {0} and not facts.devices else ()
        cores = max(int(facts.cores.available or 1), 1)
        sweep = [0, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)]
        middle = advised[0] if advised else max(sweep)
        nearest = sorted(sweep, key=lambda number: (abs(number - middle), number))
        order = dict.fromkeys([*advised, *nearest])
        return tuple(str(number) for number in order if used != {number})

    def apply(self, setting: str, program: Program) -> None:
        """Set the argument of every DataLoader that is made."""
        from torch.utils.data import DataLoader, IterableDataset

        workers = int(setting)

        def edit(loader: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            before = given.get("num_workers", 0)
            if before == workers:
                return None
            if before == 0 and isinstance(given.get("dataset"), IterableDataset):
                return None  # each worker would yield all of it again
            if workers:
                # Without workers the argument can only be False, whoever says it.
                is_said = given.get("persistent_workers") or (before and "persistent_workers" in given)
                keeps = {} if is_said else {"persistent_workers": True}
                return {"num_workers": workers, **keeps}
            without: dict[str, Any] = {"persistent_workers": False, "prefetch_factor": None, "timeout": 0}
            without["multiprocessing_context"] = None
            return {"num_workers": 0, **{name: value for name, value in without.items() if given.get(name)}}

        program.edit_arguments(self, DataLoader, "__init__", edit)

    def fix(self, setting: str) -> str:
        """The arguments of the DataLoader."""
        if setting == "0":
            return "DataLoader(..., num_workers=0)"
        return f"DataLoader(..., num_workers={setting}, persistent_workers=True)"


def waits_for_loader(facts: CapturedFacts) -> bool:
    """Whether the loop waits for its loaders long enough for another setting to matter; True where not known."""
    steps_ns, waits_ns = (sum(ns or 0 for ns in each) for each in (facts.base.step_ns, facts.base.loader_wait_ns))
    return not steps_ns or not facts.base.loader_wait_ns or waits_ns >= MIN_WAIT_SHARE * steps_ns
