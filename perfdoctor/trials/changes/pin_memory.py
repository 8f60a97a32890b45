"""pin-memory: DataLoaders put batches into pinned memory, from which the GPU copies without the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

NON_BLOCKING = "non-blocking"


class PinMemory:
    """`pin_memory` of every DataLoader, where the program says nothing of it; then copies that do not block."""

    name = "pin-memory"
    summary = "DataLoaders pin their batches; non-blocking: copies to the GPU do not block, either"
    rules = ("PD105",)
    needs = "cuda"
    effect_on_results = "none"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where a GPU is used and a loader does not pin."""
        is_open = any(not each.pin_memory for each in facts.loaders)
        return (NON_BLOCKING, "on") if is_open and facts.devices else ()

    def apply(self, setting: str, program: Program) -> None:
        """Set the argument of every DataLoader that is made, and that of copies from pinned memory."""
        import torch
        from torch.utils.data import DataLoader

        def edit(loader: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            return {"pin_memory": True} if torch.cuda.is_available() and not given.get("pin_memory") else None

        program.edit_arguments(self, DataLoader, "__init__", edit)
        if setting == NON_BLOCKING:
            for name in ("to", "cuda"):
                program.patch(torch.Tensor, name, copy_without_blocking)

    def fix(self, setting: str) -> str:
        """The arguments of the DataLoader and of the copies."""
        copy = "; x = x.to(device, non_blocking=True)" if setting == NON_BLOCKING else ""
        return f"DataLoader(..., pin_memory=True){copy}"


def copy_without_blocking(original: Any) -> Any:
    """A `Tensor.to` or `Tensor.cuda` that does not block where it copies from pinned memory and nothing else is said.

    Copies to the CPU stay as they are: the program may read them at once.
    """

    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_said = "non_blocking" in kwargs or any(isinstance(each, bool) for each in args)
        if not is_said and not tensor.is_cuda and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return copy
