"""ddp: arguments of DistributedDataParallel."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Without an argument torch fills buckets of 25 MiB; larger ones are fewer collectives, smaller ones overlap earlier.
DEFAULT_BUCKET_MB = 25
BUCKETS_MB = (25, 100, 5)


class DdpArguments:
    """One argument of every DistributedDataParallel that is made; the setting is written as in the call."""

    name = "ddp"
    summary = "DistributedDataParallel with another bucket_cap_mb, gradient_as_bucket_view, static_graph, ..."
    rules = ("PD402", "PD404", "PD405")
    needs = "ranks"
    effect_on_results = "without broadcasts each rank keeps buffers of its own; sums in another order"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """What a finding advises first, then whatever is not set so."""
        from perfdoctor.trials.change import advised_settings

        wrapped = facts.ddp
        if not wrapped:
            return ()
        found = ["find_unused_parameters=False"] if wrapped.find_unused_parameters else []
        if not wrapped.gradient_as_bucket_view:
            found.append("gradient_as_bucket_view=True")
        if not wrapped.static_graph:
            found.append("static_graph=True")
        now = (wrapped.bucket_bytes_cap or 0) / 2**20
        found += [f"bucket_cap_mb={size}" for size in BUCKETS_MB if round(now) != size]
        if wrapped.broadcast_buffers:
            found.append("broadcast_buffers=False")
        wanted = advised_settings(self.name, findings)
        return tuple(sorted(found, key=lambda each: each not in wanted))

    def apply(self, setting: str, program: Program) -> None:
        """Set the argument."""
        from torch.nn.parallel import DistributedDataParallel

        name, _, text = setting.partition("=")
        value = ast.literal_eval(text)
        has_forward_sync = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters

        def edit(model: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            if name == "broadcast_buffers":
                return edit_broadcasts(given)
            default = DEFAULT_BUCKET_MB if name == "bucket_cap_mb" else False
            now = given.get(name)
            return None if (default if now is None else now) == value else {name: value}

        def edit_broadcasts(given: dict[str, Any]) -> dict[str, Any] | None:
            # PyTorch 2.13 has another name for it, and warns of the old one.
            known = "forward_sync_buffers" if has_forward_sync and given.get(name) is None else name
            is_on = given.get(known) is not False and given.get(name) is not False
            return {known: value} if is_on != value else None

        program.edit_arguments(self, DistributedDataParallel, "__init__", edit)

    def fix(self, setting: str) -> str:
        """The argument in the call."""
        if setting == "find_unused_parameters=False":
            return "DistributedDataParallel(model)   # without find_unused_parameters=True"
        return f"DistributedDataParallel(model, {setting})"
