"""persistent-workers: workers of DataLoaders live from one epoch to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class PersistentWorkers:
    """`persistent_workers` of every DataLoader with workers, where the program says nothing of it."""

    name = "persistent-workers"
    summary = "workers of DataLoaders live from one epoch to the next"
    rules = ("PD101", "PD112")
    effect_on_results = "what a data set changes in itself between epochs does not reach its workers"
    code = "DataLoader(..., persistent_workers=True)"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where workers were started more than once."""
        restarts = (
            each.num_workers and not each.persistent_workers and (each.iterations or 0) > 1 for each in facts.loaders
        )
        return ("on",) if any(restarts) else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Set the argument of every DataLoader that is made with workers."""
        from torch.utils.data import DataLoader

        def edit(loader: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            # accelerate and Lightning say the default of each argument where they make a loader from another one.
            is_open = given.get("num_workers", 0) > 0 and not given.get("persistent_workers")
            return {"persistent_workers": True} if is_open else None

        program.edit_arguments(self, DataLoader, "__init__", edit)
