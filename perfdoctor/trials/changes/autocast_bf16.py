"""autocast-bf16: forward passes and losses in bfloat16 where autocast knows an op to be safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

MIN_CAPABILITY = 8.0


class AutocastBf16:
    """Autocast in bfloat16 from the forward of a model to the backward pass, or to the end of the step."""

    name = "autocast-bf16"
    summary = "forward pass and loss under autocast in bfloat16"
    rules = ("PD201", "PD203", "PD204", "PD513")
    alters_numerics = True
    effect_on_results = "products in bfloat16: 8 bits of mantissa"
    code = 'with torch.autocast("cuda", dtype=torch.bfloat16): ...   # forward and loss; "cpu" without a GPU'

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where the device may compute products in bfloat16, and the program does not use autocast."""
        if facts.amp.autocast:
            return ()
        if facts.devices:
            capable = all(float(each.capability or 0) >= MIN_CAPABILITY for each in facts.devices)
            return ("on",) if capable else ()
        return () if facts.cpu.bfloat16 is False else ("on",)

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Enter autocast at each forward of a model, and leave it before the backward pass."""
        import torch

        opened = _OpenAutocast()

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            kinds = {each.device.type for each in module.parameters() if each.dtype == torch.float32}
            if len(kinds) == 1 and not torch.is_autocast_enabled(*kinds):
                (device,) = kinds
                program.wrap_calls(module, lambda call: opened.wrap_model(call, device))
                program.met(self, program.location_of_caller(), f"{type(module).__name__} on {device}")

        program.on_first_forward(on_first_forward)
        program.patch(torch.Tensor, "backward", opened.wrap_backward)
        program.patch(torch.autograd, "backward", opened.wrap_backward)
        program.patch(torch.autograd, "grad", opened.wrap_backward)
        program.on_step(lambda steps: opened.leave())  # noqa: ARG005


class _OpenAutocast:
    """The autocast context that is open between a forward pass and its backward pass, if there is one."""

    def __init__(self) -> None:
        self._context: Any = None

    def leave(self) -> None:
        """Leave the context; without one do nothing."""
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    def wrap_model(self, call: Any, device: str) -> Any:
        """A call of a model that enters autocast, and leaves it where no backward pass follows."""
        import torch

        def call_in_autocast(*args: Any, **kwargs: Any) -> Any:
            if self._context is not None or torch.is_autocast_enabled(device):
                return call(*args, **kwargs)
            context: Any = torch.autocast(device, dtype=torch.bfloat16)
            context.__enter__()
            self._context = context
            try:
                result = call(*args, **kwargs)
            except BaseException:
                self.leave()
                raise
            if not torch.is_grad_enabled():
                self.leave()
            return result

        return call_in_autocast

    def wrap_backward(self, original: Any) -> Any:
        """A backward pass outside of autocast."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.leave()
            return original(*args, **kwargs)

        return backward
