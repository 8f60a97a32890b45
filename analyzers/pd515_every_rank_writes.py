"""PD515: every rank saves the same checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfdoctor.analyzers._host_pauses import SAVE
from perfdoctor.rules import (
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    RankSummary,
    Recurrence,
    Saving,
    SourceLocation,
    captured_location,
    format_ranges,
    format_time,
    read_advice,
)

# Of the time that others save this much at least is waited for where they save in turns.
_IN_TURNS = 0.5
# The wait is the difference of steps with and without saves, whose other work varies.
_MIN_SHARE_OF_WAIT = 0.5


class EveryRankWrites(FleetAnalyzer):
    """Ranks other than the first save the same checkpoint, too, and the training waits for it."""

    rule = "PD515"
    name = "every-rank-writes"
    needs = frozenset({"ranks", "facts"})
    # min_share: of the steps' time; a smaller cost would not even be a finding of low severity.
    # min_steps: steps with a checkpoint; of one nobody knows whether it comes back.
    defaults = {"min_share": 0.01, "min_steps": 2}
    references = ("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each line at which several ranks save the same, where that costs `min_share` of the step."""
        by_place: dict[tuple[str, str], list[_Saves]] = {}
        for rank in fleet.summaries:
            for saves in _saves_of(rank):
                by_place.setdefault((str(saves.location), saves.checksum), []).append(saves)
        for group in by_place.values():
            has_several = len({each.rank.rank for each in group}) > 1 and not _is_one_of_each_machine(group)
            if has_several and group[0].steps >= self.settings["min_steps"]:
                yield from self._check_group(group[0], group[1:])

    def _check_group(self, first: _Saves, others: list[_Saves]) -> Iterator[Finding]:
        """The finding on ranks that save the same as the first one."""
        rank, of, run_ns = first.rank, first.of, first.run_ns
        others_ns = min(sum(each.ns for each in others), run_ns)
        wait_ns = first.wait_ns
        lost_ns = others_ns if wait_ns is None else min(wait_ns, others_ns)
        whole_ns = rank.mean_step_ns
        cost_ns = min(round(lost_ns / run_ns * whole_ns), whole_ns)
        if not cost_ns or not self.exceeds_min_share(rank, cost_ns):
            return
        in_turns = wait_ns is not None and lost_ns >= _IN_TURNS * others_ns
        saving = Saving(0, None, cost_ns, "bounded")
        if in_turns:
            saving = Saving(round(_MIN_SHARE_OF_WAIT * cost_ns), cost_ns, cost_ns, "bounded")
        how = ", one after the other" if in_turns else ""
        advice = read_advice("every rank saves")
        other_step_ns = round(others_ns / max(first.steps, 1))
        yield self.finding(
            rank,
            title=f"{len(others) + 1} ranks save the same checkpoint{how}: {format_time(other_step_ns)} of the others "
            f"in {first.steps:,} of {of:,} steps",
            cost_ns=cost_ns,
            saving=saving,
            advice=advice,
            confidence=0.9 if in_turns else 0.6,
            location=first.location,
            evidence=(
                Evidence("ranks that save beside it", format_ranges(each.rank.rank or 0 for each in others)),
                Evidence("size of a file", first.bytes, "bytes"),
                Evidence("saving takes the first rank", first.ns // max(first.steps, 1), "ns"),
                Evidence("saving takes the others, together", other_step_ns, "ns"),
                Evidence("it waits for them", None if wait_ns is None else round(lost_ns / max(first.steps, 1)), "ns"),
            ),
            recurrence=Recurrence(first.steps, of, round(lost_ns / first.steps), round(lost_ns / first.steps)),
        )


class _Saves(NamedTuple):
    """What one rank saves at one line.

    Attributes:
        rank: The rank.
        location, checksum: Where, and what.
        ns, steps, of, run_ns: How long, in how many steps of how many, which took so long.
        bytes: Size of a file.
        wait_ns: How much longer the steps with a save are than the others, without the saves themselves; None where
            most steps have one.
    """

    rank: RankSummary
    location: SourceLocation
    checksum: str
    ns: int
    steps: int
    of: int
    run_ns: int
    bytes: int | None
    wait_ns: int | None


def _is_one_of_each_machine(group: list[_Saves]) -> bool:
    """Whether at most one rank of each machine saves, as machines without a common disk need."""
    local_ranks = group[0].rank.facts.cores.local_ranks
    machines = [(each.rank.rank or 0) // local_ranks for each in group] if local_ranks else []
    return bool(machines) and len(set(machines)) == len(machines)


def _saves_of(rank: RankSummary) -> Iterator[_Saves]:
    run = rank.facts.run
    of, run_ns = run.unprofiled_steps or 0, run.unprofiled_ns
    for site in rank.facts.host_calls or ():
        location, ns, steps = captured_location(site.location), site.ns, site.steps or 0
        if site.call == SAVE and location and site.checksum is not None and ns and 0 < steps <= of and run_ns:
            others_ns = (site.step_ns or 0) - steps * (run.median_ns or 0) - ns
            wait_ns = max(others_ns, 0) if 2 * steps < of else None
            size = (site.bytes or 0) // max(site.count or 1, 1) or None
            yield _Saves(rank, location, site.checksum, ns, steps, of, run_ns, size, wait_ns)
