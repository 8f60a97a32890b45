"""cudnn-benchmark: cuDNN chooses the algorithm of each convolution by measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class CudnnBenchmark:
    """`torch.backends.cudnn.benchmark`, from the first forward of a model with convolutions on a GPU on."""

    name = "cudnn-benchmark"
    summary = "cuDNN chooses the algorithms of convolutions by measuring"
    rules = ("PD203",)
    needs = "cuda"
    effect_on_results = "sums in another order, which may differ from run to run"
    code = "torch.backends.cudnn.benchmark = True"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """On a GPU, where it is off."""
        return ("on",) if facts.devices and not facts.flags.cudnn_benchmark else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Set the flag after the program's own; where the program wants deterministic algorithms, leave it."""
        import torch

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            has_convolutions = any(each.is_cuda and each.dim() >= 4 for each in module.parameters())
            cudnn = torch.backends.cudnn
            if has_convolutions and not cudnn.benchmark and not cudnn.deterministic:
                cudnn.benchmark = True
                program.met(self, program.location_of_caller(), "cudnn.benchmark False -> True")

        program.on_first_forward(on_first_forward)
