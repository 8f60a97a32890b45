"""What PD003 says of slow steps: their number and length, when they come back, and what they contain more of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._pd003_causes import SlowCause
from perfdoctor.analyzers._pd003_slow_steps import Activity, SlowSteps
from perfdoctor.rules import Evidence, Finding, Int64Array, Rank, Recurrence, RunSteps

# Names in evidence of parts of the account whose own names say little.
_PART_NAMES: Mapping[str, str] = {
    "memcpy": "copying",
    "latency": "time in short kernels or ops",
    "idle_dataloader": "wait for the loader",
    "idle_sync": "wait for the GPU",
    "idle_launch": "time between launches or ops",
    "idle_communication": "wait for other ranks",
    "idle_allocator": "memory allocation",
    "idle_unexplained": "unexplained time",
}


class SeenExcess(NamedTuple):
    """What slow steps of a trace contain more of."""

    rank: Rank
    cause: SlowCause
    part: str
    part_ns: int
    activity: Activity | None

    def evidence(self, where: str) -> tuple[Evidence, ...]:
        """The part and the op or annotation that exceed most, with figures of the step without the profiler."""
        rank, activity = self.rank, self.activity
        return (
            Evidence(
                f"more {_PART_NAMES.get(self.part, self.part)} in {where}", rank.to_unprofiled_ns(self.part_ns), "ns"
            ),
            Evidence("most more time in", None if activity is None else activity.name),
            Evidence(
                f"that is, in {where}", None if activity is None else rank.to_unprofiled_ns(activity.excess_ns), "ns"
            ),
        )

    def limit_severity(self, rank: Rank, finding: Finding) -> Finding:
        """The finding, low at most where no cause was seen: on a CPU other programs may have made steps slow."""
        return limit_severity(finding, self.cause) if rank.device_kind == "cpu" else finding


def limit_severity(finding: Finding, cause: SlowCause) -> Finding:
    """The finding, low at most where its cause was not seen, is intended, or lies in another rank."""
    may_be_right = cause.is_intended or cause.is_elsewhere or not (cause.is_seen or cause.took_cpu_time)
    return replace(finding, severity="low") if may_be_right and finding.severity != "info" else finding


def find_skip_to_record(rank: Rank, steps: RunSteps, slow: SlowSteps, spacing: int | None) -> int | None:
    """The N of `perfdoctor run --skip N` that lets the recording hold a slow step; None where it is not known."""
    first, base = rank.facts.windows.timing.first_step, steps.number[~steps.is_after]
    if first is None or not len(base):
        return None
    until_recording, recorded = first - int(base.min()), rank.steps.count
    slow_numbers = steps.number[slow.rows]
    later = slow_numbers[slow_numbers >= until_recording + recorded // 2]
    if not len(later) or (spacing is None and len(slow) < 3):  # it may not come back
        return None
    return int(later[0]) - until_recording - recorded // 2


def measure_excess(values: Int64Array | None, slow: SlowSteps) -> int | None:
    """By how much the slow steps exceed the median of the others in something; None where that is not known."""
    if values is None:
        return None
    usual = np.ones(len(values), bool)
    usual[slow.rows] = False
    return int(values[slow.rows].mean() - np.median(values[usual]))


def recurrence_of(slow: SlowSteps, dur_ns: Int64Array, rank: Rank | None = None) -> Recurrence:
    """In how many of the steps it is slow, and by how much these exceed the median; `rank` where they were recorded."""
    excess_ns = np.maximum(dur_ns[slow.rows] - slow.median_ns, 0)
    median_ns, max_ns = int(np.median(excess_ns)), int(excess_ns.max())
    if rank is not None:
        median_ns, max_ns = rank.to_unprofiled_ns(median_ns), rank.to_unprofiled_ns(max_ns)
    return Recurrence(len(slow), len(dur_ns), median_ns, max_ns)


def format_range(rank: Rank, dur_ns: Int64Array) -> str:
    return f"{format_ms(rank, int(dur_ns.min()))} to {format_ms(rank, int(dur_ns.max()))} ms"


def format_ms(rank: Rank, recorded_ns: int) -> str:
    ms = rank.to_unprofiled_ns(recorded_ns) / 1e6
    return f"{ms:,.0f}" if ms >= 99.95 else f"{ms:.3g}"


def describe_slow_steps(slow: SlowSteps, count: int, longest_ns: int, steps: str) -> str:
    take = "takes" if len(slow) == 1 else "take up to"
    return f"{len(slow)} of {count:,} {steps} {take} {longest_ns / slow.median_ns:.1f} times the median"
