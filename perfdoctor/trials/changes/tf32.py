"""tf32: float32 products on Tensor Cores, with ten bits of mantissa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

MIN_CAPABILITY = 8.0


class Tf32:
    """TF32 for products and convolutions, from the first forward of a model on a GPU on."""

    name = "tf32"
    summary = "float32 products and convolutions in TF32"
    rules = ("PD201", "PD203")
    needs = "cuda"
    alters_numerics = True
    effect_on_results = "products with 10 bits of mantissa in place of 23"
    code = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """On a GPU that has it, where it is off."""
        is_on = facts.flags.matmul_allow_tf32 and facts.flags.cudnn_allow_tf32
        capable = facts.devices and all(float(each.capability or 0) >= MIN_CAPABILITY for each in facts.devices)
        return ("on",) if capable and not is_on else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Set the flags after the program's own."""
        import torch

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if any(each.is_cuda for each in module.parameters()) and not is_on():
                torch.backends.cuda.matmul.allow_tf32 = True
                torch.backends.cudnn.allow_tf32 = True
                program.met(self, program.location_of_caller(), "allow_tf32 False -> True")

        def is_on() -> bool:
            return bool(torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32)

        program.on_first_forward(on_first_forward)
