"""no-grad-evaluation: forward passes that no backward pass follows keep nothing for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# How deep outputs are looked through for tensors: lists of dictionaries of tensors.
MAX_DEPTH = 3


class NoGradEvaluation:
    """Models in evaluation mode run under `torch.no_grad`, once it was seen that nobody needs their gradients."""

    name = "no-grad-evaluation"
    summary = "evaluation without gradients (torch.no_grad)"
    rules = ("PD507", "PD518")
    effect_on_results = "none"
    code = "with torch.no_grad(): ...   # around these forward passes"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting: whether evaluation has gradients is in no fact."""
        return ("on",)

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Watch each model: the first steps tell which of them are evaluated."""
        watches: list[_Watch] = []

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            watch = _Watch(self, module, program)
            watches.append(watch)
            program.wrap_calls(module, watch.wrap)

        def on_step(steps: int) -> None:  # noqa: ARG001
            for watch in watches:
                watch.end_step()

        program.on_first_forward(on_first_forward)
        program.on_step(on_step)


class _Watch:
    """What becomes of the outputs of one model in evaluation mode.

    Until a whole step has passed in which outputs had no backward pass, the model runs as it is. Fine-tuning with
    frozen statistics, and losses that look through a fixed model, have backward passes, and are left alone for good.
    """

    def __init__(self, change: NoGradEvaluation, module: Any, program: Program) -> None:
        self._change, self._module, self._program = change, module, program
        self._is_needed = False
        self._has_output = False
        self._is_unused = False

    def wrap(self, call: Any) -> Any:
        """A call of the model that keeps no gradients where they are known to be of no use."""
        import torch

        def call_model(*args: Any, **kwargs: Any) -> Any:
            if self._module.training or self._is_needed or not torch.is_grad_enabled():
                return call(*args, **kwargs)
            if any(each.requires_grad for each in find_tensors((args, kwargs))):
                return call(*args, **kwargs)
            if self._is_unused:
                self._program.met(self._change, self._program.location_of_caller(), type(self._module).__name__)
                with torch.no_grad():
                    return call(*args, **kwargs)
            result = call(*args, **kwargs)
            for each in find_tensors(result):
                if each.requires_grad and each.grad_fn is not None:
                    each.register_hook(self._note_backward)
                    self._has_output = True
            return result

        return call_model

    def end_step(self) -> None:
        """A step ends: outputs that were not needed in it will not be needed."""
        self._is_unused = self._has_output and not self._is_needed

    def _note_backward(self, gradient: Any) -> None:  # noqa: ARG002
        self._is_needed, self._is_unused = True, False


def find_tensors(value: Any, depth: int = MAX_DEPTH) -> list[Any]:
    """The tensors in lists, tuples and dictionaries."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if depth and isinstance(value, Mapping):
        return [each for item in list(value.values()) for each in find_tensors(item, depth - 1)]
    if depth and isinstance(value, list | tuple):
        return [each for item in value for each in find_tensors(item, depth - 1)]
    return []
