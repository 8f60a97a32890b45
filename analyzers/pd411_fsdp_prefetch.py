"""PD411: FSDP gathers parameters when their layer waits for them already."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._pd411_gathers import (
    MIN_SHARE,
    ExposedGathers,
    find_exposed_gathers,
    free_memory_bytes,
    may_prefetch,
    reshards_after_forward,
    unsharded_bytes,
)
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    FsdpSettings,
    Intervals,
    RankSummary,
    Saving,
    advise,
    yes_or_no,
)
from perfdoctor.rules import intervals as iv

# Gathered parameters fit where so many times their size is free: activations of other batches need some, too.
_TIMES_THEIR_SIZE = 1.5


class FsdpPrefetch(FleetAnalyzer):
    """The layers of a sharded model wait until their parameters are gathered."""

    rule = "PD411"
    name = "fsdp-prefetch"
    needs = frozenset({"kernels", "steps"})
    # See MIN_SHARE: PD402 leaves out what is reported here.
    defaults = {"min_share": MIN_SHARE}
    references = (
        "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        "https://docs.pytorch.org/docs/stable/fsdp.html",
        "https://arxiv.org/abs/2304.11277",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """Up to two findings for each rank on which exposed all-gathers reach `min_share` of the step."""
        late = fleet.late_rank
        for rank in fleet.summaries:
            if not may_prefetch(rank):
                continue
            waiting = late.any_wait_time_of(rank.collectives) if late and rank.collectives is not None else iv.EMPTY
            gathers = find_exposed_gathers(rank, waiting)
            if gathers is not None:
                yield from self._check_rank(rank, gathers, is_alone=len(fleet.summaries) == 1)

    def _check_rank(self, rank: RankSummary, gathers: ExposedGathers, is_alone: bool) -> Iterator[Finding]:
        """What keeps the parameters in the backward pass, where that fits, and what fetches them ahead."""
        again = gathers.backward
        if self._fits_unsharded(rank):
            yield from self._report(
                rank,
                gathers,
                again,
                "FSDP gathers again with memory to spare",
                "FSDP gathers parameters again in the backward pass, though the memory to keep them is free{}",
                removed=True,
                is_alone=is_alone,
            )
        else:
            yield from self._report(
                rank,
                gathers,
                again,
                "FSDP gathers late in the backward pass",
                "The backward pass waits for the parameters that FSDP gathers{}",
                is_alone=is_alone,
            )
        yield from self._report(
            rank,
            gathers,
            gathers.forward,
            "FSDP gathers late in the forward pass",
            "The forward pass waits for the parameters that FSDP gathers{}",
            is_alone=is_alone,
        )

    def _fits_unsharded(self, rank: RankSummary) -> bool:
        """Whether the device has room for all parameters of a model that gives them back after the forward pass."""
        needed, free = unsharded_bytes(rank.facts), free_memory_bytes(rank.facts)
        if reshards_after_forward(rank.facts) is not True or needed is None or free is None:
            return False
        return free >= _TIMES_THEIR_SIZE * needed

    def _report(
        self,
        rank: RankSummary,
        gathers: ExposedGathers,
        time: Intervals,
        situation: str,
        title: str,
        *,
        removed: bool = False,
        is_alone: bool = False,
    ) -> Iterator[Finding]:
        """The finding on the exposed all-gathers of a pass, where they cost enough.

        `removed` says that the fix makes them needless; otherwise they have to hide behind other work.
        """
        cost = rank.per_step(iv.total(time))
        if not self.exceeds_min_share(rank, cost):
            return
        high_ns = cost if removed else min(cost, rank.per_step(gathers.hideable_ns))
        waits_unknown = is_alone and (rank.trace.world_size or 1) > 1
        is_sure = removed and not waits_unknown
        advice, fsdp = advise(situation, rank.context), rank.facts.fsdp
        yield self.finding(
            rank,
            title=title.format(f": {rank.share(cost) or 0:.0%} of the step"),
            cost_ns=cost,
            saving=Saving(0, high_ns if is_sure else None, high_ns, "bounded"),
            advice=advice.extend(
                "A slow link and a late rank look alike here: the traces of all ranks tell them apart." * waits_unknown
            ),
            claim=Claim(time),
            edit=rank.shorten_collectives(time, high_ns / cost, 1.0, is_upper_bound=not is_sure),
            confidence=0.5 if waits_unknown else 0.7,
            subject=situation,
            evidence=(
                Evidence("all-gathers per {unit}", round(gathers.per_step, 1), "count"),
                Evidence("work per {unit} that could hide them", rank.per_step(gathers.hideable_ns), "ns"),
                *_setting_evidence(fsdp),
                Evidence("parameters, all gathered", unsharded_bytes(rank.facts), "bytes"),
                Evidence("device memory that was never reserved", free_memory_bytes(rank.facts), "bytes"),
            ),
        )


def _setting_evidence(fsdp: FsdpSettings) -> Iterator[Evidence]:
    """The captured settings that decide when parameters are gathered."""
    yield Evidence("units, as captured", fsdp.units, "count")
    for flag in ("forward_prefetch", "limit_all_gathers", "reshard_after_forward"):
        yield Evidence(f"{flag}, as captured", yes_or_no(getattr(fsdp, flag)))
    for name in ("backward_prefetch", "sharding"):
        yield Evidence(f"{name}, as captured", getattr(fsdp, name))
