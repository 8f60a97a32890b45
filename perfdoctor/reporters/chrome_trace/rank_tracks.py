"""What an annotated trace shows of each rank beside its own events: read from its file anew, one rank at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoctor import pipeline
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import TraceError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.fleet.rank_tasks import read_ranks
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.report.report import Report
from perfdoctor.reporters.chrome_trace.finding_arrows import Arrow, find_arrows
from perfdoctor.reporters.chrome_trace.gpu_counters import Counter, gpu_counters, points_for
from perfdoctor.reporters.chrome_trace.memory_counters import MemoryCounter, memory_counters
from perfdoctor.reporters.chrome_trace.side_lanes import SideLanes, find_side_lanes
from perfdoctor.reporters.chrome_trace.slices import TrackId
from perfdoctor.reporters.chrome_trace.trace_source import TraceSource
from perfdoctor.rules import registry
from perfdoctor.units import format_ranges


@frozen_dataclass(eq=False)
class RankTracks:
    """What is shown of one rank.

    Attributes:
        report: The report on this rank alone, with the intervals of its account and of its claims.
        counters: What its GPU did over time.
        memory: What is allocated on its devices over time, where that was recorded.
        arrows: From its findings to what is behind them.
        collectives: When it came to each collective.
    """

    report: Report
    counters: tuple[Counter, ...]
    memory: tuple[MemoryCounter, ...]
    arrows: tuple[Arrow, ...]
    collectives: CollectiveTable

    @property
    def rank(self) -> int | None:
        """The rank's number."""
        return self.report.traces[0].rank

    @property
    def label(self) -> str:
        """The rank, as people name it."""
        return f"rank {'?' if self.rank is None else self.rank}"


@frozen_dataclass(eq=False)
class FileTracks:
    """What is shown of one file.

    Attributes:
        source: The file.
        ranks: The ranks in it, as far as they are shown.
        lanes: The lanes for what overlaps in it.
        pids: The process ids in it.
        base_ns: Nanoseconds to add to its times to get nanoseconds since the epoch.
        start_ns: When its first slice starts.
    """

    source: TraceSource
    ranks: tuple[RankTracks, ...]
    lanes: SideLanes
    pids: frozenset[TrackId]
    base_ns: int
    start_ns: int

    @property
    def label(self) -> str:
        """The ranks in it, as people name them."""
        if len(self.ranks) == 1:
            return self.ranks[0].label
        return f"ranks {format_ranges(each.rank for each in self.ranks if each.rank is not None)}"


def read_file_tracks(report: Report, indices: Sequence[int], options: AnalysisOptions) -> FileTracks:
    """Read a file again for what is shown of the ranks in it: those of `report.traces` at some indices.

    Raises:
        TraceError: The file cannot be read again.
    """
    summary = report.traces[indices[0]]
    source = TraceSource.of(summary)
    source.check()
    slices = source.slices()
    lanes = find_side_lanes(slices)
    moved = lanes.tid_of_moved()
    shown = []
    for index, rank in _read_again(report, indices, source, options):
        own = report if len(report.traces) == 1 else _report_alone(rank, report, index, options)
        max_points = points_for(len(slices))
        shown.append(
            RankTracks(
                report=own,
                counters=tuple(gpu_counters(rank, max_points)),
                memory=tuple(memory_counters(rank, max_points)),
                arrows=find_arrows(own.findings, rank, slices, moved),
                collectives=rank.collectives,
            )
        )
    return FileTracks(
        source=source,
        ranks=tuple(shown),
        lanes=lanes,
        pids=frozenset(pid for pid, _ in slices.tracks),
        base_ns=summary.base_ns,
        start_ns=int(slices.start_ns.min()) if len(slices) else 0,
    )


def _read_again(
    report: Report, indices: Sequence[int], source: TraceSource, options: AnalysisOptions
) -> Iterator[tuple[int, Rank]]:
    """The ranks of a file that are in the report, with their indices there."""
    (file,) = find_traces([source.path])
    with source.explained():
        ranks = read_ranks(file, replace(options, rank=None))
    by_number = {rank.rank: rank for rank in ranks}
    for index in indices:
        number = report.traces[index].rank
        rank = ranks[0] if len(ranks) == 1 else by_number.get(number)
        if rank is None:
            raise TraceError(f"{source.path}: rank {number} is no longer in this file")
        # The report may have given it another number.
        yield index, rank if number is None else replace(rank, raw_trace=replace(rank.raw_trace, rank=number))


def _report_alone(rank: Rank, report: Report, index: int, options: AnalysisOptions) -> Report:
    """The report on one of several ranks alone, which has the intervals that the report on all ranks leaves out.

    Of the findings on several ranks together it has those that claim time of this rank.
    """
    ran = {outcome.rule for outcome in report.outcomes if outcome.status == "ran"}
    rules = [rule for rule in registry.list_rules() if rule.rule in ran and rule.scope == "rank"]
    options = AnalysisOptions(settings=options.settings, is_only_rank=True)
    summary = pipeline.summarize_rank(rank, rules, options)
    alone = pipeline.report_on_summaries([from_rank(summary)], rules, options)
    own_rules = {rule.rule for rule in rules}
    others = (each for each in report.findings if each.rule not in own_rules and each.claim.rank is not None)
    shared = [each for each in others if each.claim.rank == rank.rank]
    findings = (*alone.findings, *(replace(finding, covered_by=None) for finding in shared))
    return replace(alone, traces=(report.traces[index],), findings=findings)
