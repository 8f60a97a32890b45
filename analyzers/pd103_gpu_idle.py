"""PD103: the GPU idles, and neither loader, sync, allocator nor launching explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._engine_gaps import find_engine_gaps, is_recorded_alone
from perfdoctor.analyzers._gpu_optimizers import idle_of_unfused_optimizers
from perfdoctor.analyzers._host_pauses import time_of_reported_calls
from perfdoctor.analyzers._pd103_pause_work import PauseWork, can_be_done_ahead, describe_pause
from perfdoctor.rules import (
    Claim,
    Edit,
    Evidence,
    Finding,
    Intervals,
    PauseGroup,
    Rank,
    RankAnalyzer,
    Saving,
    activity_kinds,
    count_recurrence,
    distinct,
    format_time,
    move_work,
    pausing_threads,
    read_advice,
    remove_cpu_time,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# What takes so many times as long as the next longest pause is another thing than the others.
_STANDS_OUT = 3
# Where an op takes less of its pauses, the title says how much: a pause begins and ends with some Python, too.
_NEARLY_ALL = 0.9


class GpuIdle(RankAnalyzer):
    """The GPU had nothing to do, and no known cause explains it."""

    rule = "PD103"
    name = "gpu-idle"
    needs = frozenset({"gpu_items"})
    # min_share: higher than that of rules that know a cause.
    defaults = {"min_share": 0.05}
    references = ("https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """Findings of pauses by what the CPU did, of unexplained and of unrecorded time, from `min_share` on."""
        pauses = list(_leave_out_other_rules(rank))
        yield from self._report_recurring(rank, [group for group in pauses if not group.once])
        for group in pauses:
            if group.once and iv.total(group.time) >= self.settings["min_share"] * rank.window_ns:
                yield self._report_once(rank, group)
        unexplained = iv.subtract(rank.account.parts["idle_unexplained"], rank.missing_kernels)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(unexplained))):
            yield self._report_unexplained(rank, unexplained)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(rank.missing_kernels))):
            yield self._report_unrecorded(rank, rank.missing_kernels)

    def _report_recurring(self, rank: Rank, groups: Sequence[PauseGroup]) -> Iterator[Finding]:
        """A finding for each group that costs enough; where only all together do, one that names the largest."""
        every = iv.union_of(group.time for group in groups)
        if not self.exceeds_min_share(rank, rank.per_step(iv.total(every))):
            return
        large = [each for each in groups if self.exceeds_min_share(rank, rank.per_step(iv.total(each.time)))]
        if large:
            for number, group in enumerate(large):
                yield self._report_pauses(rank, group, describe_pause(group, rank), group.time, group.gaps, number)
        else:
            work, count = describe_pause(groups[0], rank), sum(group.gaps for group in groups)
            work = replace(work, doing=f"mostly {work.doing}".replace("mostly is in", "is mostly in"))
            yield self._report_pauses(rank, groups[0], work, every, count, 0)

    def _report_pauses(
        self, rank: Rank, group: PauseGroup, work: PauseWork, idle: Intervals, count: int, number: int
    ) -> Finding:
        cost_ns = rank.per_step(iv.total(idle))
        location = rank.places.line_in(group.time)
        pauses = "one pause" if count == 1 else f"{count} pauses"
        per_step = " a step" if rank.steps.count else "" if count == 1 else " in all"
        avoidable_ns = rank.per_step(iv.total(_avoidable_time(rank, group)))
        part = f", {format_time(avoidable_ns)} of it in this" if avoidable_ns < _NEARLY_ALL * cost_ns else ""
        may_be_once = not rank.steps.count and group.path.deepest is None and _one_stands_out(idle)
        return self.finding(
            rank,
            title=f"The GPU waits while the CPU {work.doing}{f' at {location.short}' if location else ''}: "
            f"{pauses}, {format_time(cost_ns)}{per_step}{part if idle is group.time else ''}",
            cost_ns=cost_ns,
            # The advice is about the pauses of this group alone.
            saving=Saving(0, None, avoidable_ns, "bounded"),
            advice=work.advice,
            claim=Claim(idle),
            edit=_remove_pauses(rank, group),
            confidence=0.4 if may_be_once else 0.7,
            location=location,
            evidence=(
                *_gap_evidence(rank, idle, count),
                *work.evidence,
                *([Evidence("whether it comes back", "unknown: no steps, no names")] if may_be_once else ()),
            ),
            subject=f"pauses {group.path.kind or number}",
            recurrence=count_recurrence(idle, rank.steps, rank.profiler_factor),
        )

    def _report_once(self, rank: Rank, group: PauseGroup) -> Finding:
        """A finding about pauses that no step to come repeats: they cost the median step nothing."""
        work, location = describe_pause(group, rank), rank.places.line_in(group.time)
        time_ns = iv.total(group.time)
        steps = group.recurrence.steps if group.recurrence is not None else 1
        return self.finding(
            rank,
            title=f"{'' if steps <= 1 else f'In {steps} of {rank.steps.count} steps: '}the GPU waits "
            f"{format_time(time_ns)} while the CPU {work.doing}"
            f"{f' at {location.short}' if location else ''}",
            cost_ns=0 if rank.steps.count else time_ns,
            happens_once=True,
            occurs_once=steps <= 1,
            advice=work.advice,
            claim=Claim(group.time),
            confidence=0.7,
            location=location,
            evidence=(
                Evidence("share of the analysed time", round(100 * time_ns / rank.window_ns, 1), "%"),
                *_gap_evidence(rank, group.time, group.gaps),
                *work.evidence,
            ),
            subject=f"once {group.path.kind or 'other'}",
            recurrence=group.recurrence,
        )

    def _report_unexplained(self, rank: Rank, idle: Intervals) -> Finding:
        cost_ns = rank.per_step(iv.total(idle))
        launched_share = _launched_before_share(rank, idle)
        has_cpu_events = "cpu" in rank.available_data
        advice = "Record CPU activities too (ProfilerActivity.CPU): without them no gap has a cause."
        if has_cpu_events:
            advice = "See what the CPU did in the longest gap of the exported trace; Python stacks name the line."
        if launched_share is not None and launched_share > 0.5:
            advice = (
                "Look in the longest gap of the exported trace for a callback on the host, another process on this "
                "GPU, or work that was not recorded: the next kernel had been launched long before."
            )
        return self.finding(
            rank,
            title=f"The GPU idles for {rank.share(cost_ns):.0%} of the {rank.unit_name}, and nothing in the trace "
            "explains it",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            fix=None if has_cpu_events else "perfdoctor run train.py",
            claim=Claim(idle),
            confidence=0.7 if has_cpu_events else 0.4,
            evidence=(
                *_gap_evidence(rank, idle, len(idle)),
                Evidence("before an item already launched", launched_share and round(100 * launched_share, 1), "%"),
            ),
            subject="unexplained",
        )

    def _report_unrecorded(self, rank: Rank, idle: Intervals) -> Finding:
        idle_ns = rank.per_step(iv.total(idle))
        why = "most of its events were taken out" if rank.is_subsampled else "CUDA graphs lack kernels"
        return self.finding(
            rank,
            title=f"For {rank.share(idle_ns):.0%} of the {rank.unit_name} the file cannot tell whether the GPU works: "
            f"{why}",
            advice=read_advice("kernels that were not recorded"),
            confidence=0.9,
            evidence=(Evidence("time not recorded per {unit}", idle_ns, "ns"), *_gap_evidence(rank, idle, len(idle))),
            subject="unrecorded",
        )


def _leave_out_other_rules(rank: Rank) -> Iterator[PauseGroup]:
    """The pauses without those that other rules report, and those that only begin the recording of an engine."""
    if is_recorded_alone(rank):
        return
    groups = [
        group for group in rank.pauses if not _is_of_another_rule(rank, group) and not _may_be_a_first_use(rank, group)
    ]
    claimed = idle_of_unfused_optimizers(rank) if groups else iv.EMPTY
    calls = time_of_reported_calls(rank) if groups else iv.EMPTY
    gaps = find_engine_gaps(rank) if groups else None  # of PD801
    calls = calls if gaps is None else iv.union_of((calls, gaps.time))
    for group in groups:
        if 2 * iv.total(iv.intersect(group.time, calls)) >= iv.total(group.time):
            continue
        time = iv.subtract(group.time, claimed)
        if len(time) and iv.total(time) < iv.total(group.time):
            starts = distinct(np.searchsorted(rank.gaps.end_ns, time[:, 0], side="right"))
            yield replace(group, time=time, gaps=len(starts), recurrence=count_recurrence(time, rank.steps))
        elif len(time):
            yield group


def _is_of_another_rule(rank: Rank, group: PauseGroup) -> bool:
    """Whether pauses belong to PD405 (DDP's buffers) or to PD108 (compiling after the first two steps)."""
    if group.path.kind == activity_kinds.BUFFER_BROADCAST:
        return bool(rank.trace.match_rows(rank.trace.ranges, vocabulary.DDP_FORWARD).any())
    later = rank.steps.intervals[2:]
    in_later = bool(iv.overlap(later[:, 0], later[:, 1], group.time).any())
    return group.path.kind == activity_kinds.COMPILATION and in_later


def _may_be_a_first_use(rank: Rank, group: PauseGroup) -> bool:
    """Whether nobody can say that pauses come back: in a first run what is slow may be so only once."""
    deepest = group.path.deepest
    return rank.first_use.is_first_run and (deepest is None or deepest.table in ("op", "call"))


def _one_stands_out(pauses: Intervals) -> bool:
    """Whether one pause is far longer than all others, as what a program does once is."""
    second_ns, longest_ns = np.sort(np.append(pauses[:, 1] - pauses[:, 0], 0))[-2:].tolist()
    return bool(longest_ns >= _STANDS_OUT * second_ns)


def _avoidable_time(rank: Rank, group: PauseGroup) -> Intervals:
    """What of some pauses their cause takes: of a slow launch only the call itself, of a slow op only the op."""
    path = group.path
    if path.deepest is not None and path.deepest.table == "call":
        return iv.intersect(path.named_time, group.time)
    if path.kind is None and path.outermost_op is not None:
        ops = rank.ops.named(f"^{re.escape(path.outermost_op.name)}$")
        threads = distinct(pausing_threads(rank.trace, rank.gaps, group.time))
        return iv.intersect(ops.where(np.isin(rank.trace.ops.thread, threads)).time, group.time)
    return group.time


def _remove_pauses(rank: Rank, group: PauseGroup) -> Edit | None:
    """The edit in which what causes the pauses is gone, or done ahead by one worker, which is waited for.

    None where the CPU is in the launch itself, which no replay starts earlier.
    """
    if group.path.deepest is not None and group.path.deepest.table == "call":
        return None
    time = _avoidable_time(rank, group)
    threads, spans = pausing_threads(rank.trace, rank.gaps, time), (time[:, 0], time[:, 1])
    ahead = can_be_done_ahead(group)
    edit = remove_cpu_time(threads, spans, rank.window, is_upper_bound=not ahead)
    return move_work(edit, "worker", rank.per_step(iv.total(time))) if ahead else edit


def _gap_evidence(rank: Rank, idle: Intervals, count: int) -> tuple[Evidence, ...]:
    dur_ns = idle[:, 1] - idle[:, 0]
    longest = int(np.argmax(dur_ns))
    return (
        Evidence("gaps", count, "count"),
        Evidence("longest gap", int(dur_ns[longest]), "ns"),
        Evidence("longest gap begins at", int(idle[longest, 0]) - rank.trace.extent_ns[0], "ns"),
    )


def _launched_before_share(rank: Rank, idle: Intervals) -> float | None:
    """The share (0 to 1) of some idle time in gaps whose next item was launched before them; None without launches."""
    gaps = rank.gaps
    if "launches" not in rank.available_data:
        return None
    launched = (gaps.launch >= 0) & ~gaps.late_launch
    time = iv.intersect(iv.union(gaps.start_ns[launched], gaps.end_ns[launched]), idle)
    return iv.total(time) / max(iv.total(idle), 1)
