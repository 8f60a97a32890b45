"""channels-last: convolutional models and their inputs in the layout that the fast kernels want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class ChannelsLast:
    """Weights and 4-d inputs of each model with 2-d convolutions, from its first forward on."""

    name = "channels-last"
    summary = "models with 2-d convolutions and their inputs in the layout channels_last"
    rules = ("PD203", "PD302")
    effect_on_results = "sums in another order"
    code = "model = model.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting: facts do not tell which layers a model has."""
        return ("on",)

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Convert each model when it is first called, and its inputs at each call."""
        import torch

        def is_wide(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point()

        def convert(value: Any) -> Any:
            if is_wide(value):
                return value.contiguous(memory_format=torch.channels_last)
            if type(value) in (list, tuple):
                return type(value)(map(convert, value))
            return {name: convert(each) for name, each in value.items()} if type(value) is dict else value

        def wrap(call: Any) -> Any:
            def call_with_layout(*args: Any, **kwargs: Any) -> Any:
                return call(*map(convert, args), **{name: convert(each) for name, each in kwargs.items()})

            return call_with_layout

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            weights = [each for each in module.parameters() if each.dim() == 4]
            kept = [each.is_contiguous(memory_format=torch.channels_last) for each in weights]
            if weights and not all(kept):
                module.to(memory_format=torch.channels_last)
                program.wrap_calls(module, wrap)
                program.met(self, program.location_of_caller(), f"{type(module).__name__}: {len(weights)} weights")

        program.on_first_forward(on_first_forward)
