"""prefetch-factor: workers of DataLoaders load more batches ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

TORCH_DEFAULT = 2


class PrefetchFactor:
    """`prefetch_factor` of every DataLoader with workers."""

    name = "prefetch-factor"
    summary = "workers of DataLoaders load N batches ahead"
    rules = ("PD003", "PD101")
    effect_on_results = "none"
    code = "DataLoader(..., prefetch_factor={setting})"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """More than now, where a loader has workers."""
        now = [each.prefetch_factor or TORCH_DEFAULT for each in facts.loaders if each.num_workers]
        return tuple(str(number) for number in (4, 8) if now and number > max(now))

    def apply(self, setting: str, program: Program) -> None:
        """Set the argument of every DataLoader that is made with workers."""
        from torch.utils.data import DataLoader

        factor = int(setting)

        def edit(loader: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            is_used = given.get("num_workers", 0) > 0
            return {"prefetch_factor": factor} if is_used and given.get("prefetch_factor") != factor else None

        program.edit_arguments(self, DataLoader, "__init__", edit)
