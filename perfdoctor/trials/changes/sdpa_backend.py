"""sdpa-backend: scaled_dot_product_attention by a chosen implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# The switches of torch.backends.cuda; "math" is the one that takes every input, and stays on beside the others.
SWITCHES = ("flash", "mem_efficient", "cudnn")


class SdpaBackend:
    """One fast implementation of attention allowed, and the plain one for what it does not take."""

    name = "sdpa-backend"
    summary = "scaled_dot_product_attention by flash, mem_efficient, cudnn or math"
    rules = ("PD205",)
    needs = "cuda"
    effect_on_results = "sums in another order"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The fast ones, on a GPU."""
        return SWITCHES if facts.devices else ()

    def apply(self, setting: str, program: Program) -> None:
        """Turn the other implementations off; the program's own choice around a call still counts."""
        import torch

        for name in SWITCHES:
            enable = getattr(torch.backends.cuda, f"enable_{name}_sdp", None)
            if enable is not None:
                enable(name == setting)
        torch.backends.cuda.enable_math_sdp(True)

        def wrap(original: Any) -> Any:
            is_met = False

            def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
                nonlocal is_met
                if not is_met and not torch.compiler.is_compiling():
                    is_met = True
                    program.met(self, program.location_of_caller(), f"{setting} allowed")
                return original(*args, **kwargs)

            return scaled_dot_product_attention

        program.patch(torch.nn.functional, "scaled_dot_product_attention", wrap)

    def fix(self, setting: str) -> str:
        """The switches."""
        others = (name for name in SWITCHES if name != setting)
        return "; ".join(f"torch.backends.cuda.enable_{name}_sdp(False)" for name in others)
