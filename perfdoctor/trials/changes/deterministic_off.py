"""deterministic-off: algorithms need not give the same result in every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class DeterministicOff:
    """`torch.use_deterministic_algorithms(True)` and cuDNN's flag have no effect."""

    name = "deterministic-off"
    summary = "deterministic algorithms are turned off"
    rules = ("PD514",)
    effect_on_results = "sums in another order, which may differ from run to run"
    code = "torch.use_deterministic_algorithms(False)"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where they are on, at the end of the run or in its steps."""
        was_on = any(each.switch == "deterministic algorithms" for each in facts.debug_switches)
        return ("on",) if was_on or facts.flags.deterministic_algorithms else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Turn the setter's argument off, and cuDNN's flag at the first forward."""
        import torch

        def edit(owner: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            return {"mode": False} if given.get("mode") else None

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if torch.backends.cudnn.deterministic and any(each.is_cuda for each in module.parameters()):
                torch.backends.cudnn.deterministic = False
                program.met(self, None, "cudnn.deterministic True -> False")

        program.edit_arguments(self, torch, "use_deterministic_algorithms", edit)
        program.on_first_forward(on_first_forward)
