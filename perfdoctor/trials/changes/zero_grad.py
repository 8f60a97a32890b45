"""zero-grad: gradients are dropped in place of filled with zeros."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class ZeroGrad:
    """`zero_grad(set_to_none=True)`, whatever the program says; gradients that it fills by hand stay."""

    name = "zero-grad"
    summary = "zero_grad drops gradients instead of filling them with zeros"
    rules = ("PD304",)
    effect_on_results = "an optimizer passes over parameters without a gradient, where a zero would let it decay them"
    code = "optimizer.zero_grad()   # without set_to_none=False"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Where the program was seen to fill gradients."""
        from perfdoctor.trials.change import advised_settings

        return ("set-to-none",) if advised_settings(self.name, findings) or facts.zero_grad_to_zero else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Replace the argument in optimizers and modules."""
        import torch

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            program.patch(owner, "zero_grad", lambda original: self._wrap(original, program))

    def _wrap(self, original: Any, program: Program) -> Any:
        seen: set[tuple[Any, int]] = set()

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("set_to_none", args[0] if args else True):
                return original(owner, *args, **kwargs)
            caller = sys._getframe(1)
            if (caller.f_code, caller.f_lineno) not in seen:  # once for each line: this runs in every step
                seen.add((caller.f_code, caller.f_lineno))
                program.met(self, caller, "set_to_none False -> True")
            return original(owner, set_to_none=True)

        return zero_grad
