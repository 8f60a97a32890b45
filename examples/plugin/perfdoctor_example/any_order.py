"""any-order: a loop takes the batch that is ready, not the one that is next."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class AnyOrder:
    """`in_order=False` for DataLoaders with two workers and more, where the program says nothing of it."""

    name = "any-order"
    summary = "loops take the batch that is ready first, in any order"
    rules = ("PD003",)
    effect_on_results = "batches come in another order, which may differ from run to run"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting, where a loader has workers that can overtake each other."""
        return ("on",) if any((each.num_workers or 0) > 1 for each in facts.loaders) else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Set the argument of every DataLoader that is made; torch has it since 2.6."""
        from torch.utils.data import DataLoader

        def edit(loader: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            overtakes = given.get("num_workers", 0) > 1 and "in_order" not in given
            return {"in_order": False} if overtakes else None

        if "in_order" in inspect.signature(DataLoader).parameters:
            program.edit_arguments(self, DataLoader, "__init__", edit)

    def fix(self, setting: str) -> str:  # noqa: ARG002
        """The argument of the DataLoader."""
        return "DataLoader(..., in_order=False)"
