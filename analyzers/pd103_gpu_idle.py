"""PD103: the GPU idles, and neither loader, sync, allocator nor launching explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._pd103_pause_work import describe_pause
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Int32Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    find_pause_path,
    most_common_location,
)
from perfdoctor.rules import intervals as iv

# So many of the longest pauses name the line at which most of the time is lost.
_LONGEST_PAUSES = 16


class GpuIdle(RankAnalyzer):
    """The GPU had nothing to do, and no known cause explains it.

    What it finds:
        Two things. Pauses: gaps of a millisecond and more in which the CPU was busy with something other than
        launching (preprocessing, a checkpoint, compiling, Python), or slept. Unexplained gaps: the next item had been
        launched long before and waited for something that the trace does not show, or the trace has no CPU event at
        all. Where the GPU most likely worked and its kernels are missing from the file, it says so, at no cost.

    Why it costs time:
        The GPU could have worked.

    How it is measured:
        What is left of the gaps between GPU items without the time that the DataLoader, syncs, the allocator and
        communication cause. Gaps under 1 ms that end with a late launch are PD104's. A gap of more than 20 us before
        an item that was queued in time, in or right after a CUDA graph, is work that was not recorded: in whole
        recordings no graph pauses for longer. So is every gap of a file that was subsampled (ops are numbered, and
        less than a tenth of the numbers are there).

        What the CPU did in the pauses is found by inclusive time: the deepest function, range, op or call that takes
        60 % of them, on the thread that launched what came after. Its name says what kind of work that is.

    How to fix:
        By kind of work: warm-up (graph capture, first launches, compilation) before the recorded steps, preprocessing
        ahead of the loop, checkpoints and logs less often or from another thread, garbage collection at chosen times.
        For unexplained gaps: look at the exported trace, or record again with CPU activities and Python stacks.

    When it is wrong:
        A trace that covers start-up or compilation shows pauses that do not recur. In a trace that was recorded
        without CPU events all idle time is unexplained; that is the trace's fault, and the confidence says so.

    Needs:
        Kernels or copies; their launches for pauses; Python stacks for the line.

    References:
        HolisticTraceAnalysis, idle time breakdown ("host wait" and "other").
    """

    rule: ClassVar[str] = "PD103"
    name: ClassVar[str] = "gpu-idle"
    needs: ClassVar[frozenset[str]] = frozenset({"gpu_items"})
    # min_share: higher than that of rules that know a cause. pause_ns as in PD104.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.05, "pause_ns": 1_000_000})
    references: ClassVar[tuple[str, ...]] = (
        "https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """Up to one finding each of pauses, unexplained and unrecorded time, from `min_share` of the step on."""
        late = rank.gaps.late_launch_time(at_least_ns=self.settings["pause_ns"])
        pauses = iv.intersect(late, rank.account.parts["idle_launch"])
        if self.exceeds_min_share(rank, rank.per_step(iv.total(pauses))) and not rank.is_subsampled:
            # A DataLoader's wait within a gap cuts what is left of it in two: that is still one pause.
            yield self._report_pauses(rank, pauses, int(np.count_nonzero(iv.overlap(late[:, 0], late[:, 1], pauses))))
        unexplained = iv.subtract(rank.account.parts["idle_unexplained"], rank.missing_kernels)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(unexplained))):
            yield self._report_unexplained(rank, unexplained)
        if self.exceeds_min_share(rank, rank.per_step(iv.total(rank.missing_kernels))):
            yield self._report_unrecorded(rank, rank.missing_kernels)

    def _report_pauses(self, rank: Rank, idle: Intervals, count: int) -> Finding:
        path, part = find_pause_path(rank.trace, idle, _pausing_threads(rank, idle), rank.window)
        work = describe_pause(path, has_loader=len(rank.loader_waits) > 0)
        location = path.location or most_common_location(_lines_in_longest(rank, part))
        cost_ns = rank.per_step(iv.total(idle))
        where = f" at {location.short}" if location else ""
        pauses = "one pause" if count == 1 else f"{count} pauses"
        doing = work.doing if len(part) == len(idle) else f"mostly {work.doing}".replace("mostly is in", "is mostly in")
        once = "Warm-up: the" if work.is_warm_up else "The"
        return self.finding(
            rank,
            title=f"{once} GPU waits while the CPU {doing}{where}: {pauses} of 1 ms and more",
            cost_ns=cost_ns,
            # What runs only once is not saved in each step, and the advice is about the pauses that have it in common.
            saving=Saving() if work.is_warm_up else Saving(0, None, rank.per_step(iv.total(part)), "bounded"),
            advice=work.advice,
            fix=work.fix,
            claim=Claim(idle),
            confidence=0.7,
            location=location,
            evidence=(*_gap_evidence(rank, idle, count), *work.evidence),
            subject="pauses",
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
                "The next kernel had been launched long before, so it waited for something that the file does not "
                "hold: a callback on the host, another process on this GPU, or work that was not recorded. Look at "
                "the longest gap in the exported trace."
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
            cost_ns=0,
            saving=Saving(),
            advice="Nothing to fix in the program: record again, with all kernels, to see what the GPU does here.",
            fix="perfdoctor run train.py",
            claim=Claim(),
            confidence=0.9,
            evidence=(
                Evidence(f"time not recorded per {rank.unit_name}", idle_ns, "ns"),
                *_gap_evidence(rank, idle, len(idle)),
            ),
            subject="unrecorded",
        )


def _pausing_threads(rank: Rank, pauses: Intervals) -> Int32Array:
    """For each pause the thread that launched the item after it: what it did meanwhile is why the item came late."""
    gaps = rank.gaps
    gap = np.searchsorted(gaps.start_ns, pauses[:, 0], side="right") - 1
    result: Int32Array = rank.trace.calls.thread[gaps.launch[gap]]
    return result


def _lines_in_longest(rank: Rank, pauses: Intervals) -> list[SourceLocation | None]:
    """The user's lines that were executing in the middle of the longest pauses."""
    longest = pauses[np.argsort(pauses[:, 0] - pauses[:, 1], kind="stable")[:_LONGEST_PAUSES]]
    middle_ns = longest.mean(axis=1).astype(np.int64)
    return rank.locations.at(_pausing_threads(rank, longest), middle_ns)


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
