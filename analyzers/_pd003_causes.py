"""Why slow steps are slow: what they were seen to contain, in words, and what to do; never a guess.

Also what is said of their number and length, and of when they come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._own_steps import took_cpu_time
from perfdoctor.analyzers._pd003_slow_steps import (
    Activity,
    MoreOps,
    SlowSteps,
    count_ops,
    find_largest_activity_excess,
    find_largest_part_excess,
)
from perfdoctor.rules import Action, BoolArray, Evidence, Finding, Int64Array, Rank, Recurrence, RunSteps, read_texts

# Of the time by which slow steps exceed the others, what names its cause.
_MIN_SHARE_OF_EXCESS = 0.5
# Calls of an op or annotation in a slow step over those in another one, from which on the slow step does more.
_MORE_CALLS = 1.2
# From so many times as many ops on, all of them forward, a step evaluates; an augmentation calls a few more.
_EVALUATION_CALLS = 2.0
# Up to so many times as many nodes of backward passes are as many.
_AS_MANY = 1.05


class SlowCause(NamedTuple):
    """What makes steps slow.

    Attributes:
        text: What they contain, after a colon or before "in the long ones"; "" where nothing was seen.
        advice: What to do about it, or how to find out.
        is_seen: Whether a recording shows it.
        is_intended: Whether it is work that the program was written to do now and then, such as an evaluation.
        took_cpu_time: Whether the steps took more CPU time, though not for what: the program is at work.
        is_elsewhere: Whether another rank has it, so that nothing is to be done on this one.
        actions: What the advice does, for `perfdoctor try`.
    """

    text: str
    advice: str
    is_seen: bool = True
    is_intended: bool = False
    took_cpu_time: bool = False
    is_elsewhere: bool = False
    actions: tuple[Action, ...] = ()


# PD113 and PD110 tell these, where a capture has timed them.
_OF_OTHER_RULES = ("save", "gc")
_ACTIONS = {"gc": (Action("gc"),)}
_WORK_VARIES = "Give steps the same work: group batches by length, or cap it, if inputs vary."


def find_steps_with_content(
    steps: RunSteps, dur_ns: Int64Array, max_share: float
) -> Iterator[tuple[SlowSteps, SlowCause]]:
    """The steps that contain something that others do not, where they are longer, and that as their cause.

    Args:
        steps: The steps of the run.
        dur_ns: Their durations without what other programs took, for equal work.
        max_share: The share of the steps (0 to 1) that may contain it.
    """
    for content, text in read_texts("slow-steps")["content"].items():
        if content in _OF_OTHER_RULES and steps.host_call_ns is not None:
            continue
        has = steps.which_contain(content)
        if not 0 < int(has.sum()) <= max_share * len(steps):
            continue
        median_ns = int(np.median(dur_ns[~has]))
        excess_ns = int((dur_ns[has] - median_ns).sum())
        if float(np.median(dur_ns[has])) > median_ns and excess_ns > 0:
            yield (
                SlowSteps(np.flatnonzero(has), median_ns, excess_ns),
                SlowCause(**text, actions=_ACTIONS.get(content, ())),
            )


def cause_in_run(steps: RunSteps, slow: SlowSteps, skip: int | None, *, is_regular: bool) -> SlowCause:
    """What slow steps of a run were seen to do, none of which contains what others do not.

    Args:
        steps: The steps of the run.
        slow: The slow ones.
        skip: For `perfdoctor run --skip`, so that the recording contains the next slow step; None where not known.
        is_regular: Whether a step is slow every so many steps.
    """
    is_slow = np.zeros(len(steps), bool)
    is_slow[slow.rows] = True
    excess_ns = slow.excess_ns / len(slow)
    if _excess_of(steps.loader_wait_ns, is_slow) > _MIN_SHARE_OF_EXCESS * excess_ns:
        return SlowCause("they wait for the loader", _even_out_loader(None))
    record = "Record what they do: perfdoctor run" + (f" --skip {skip}" if skip is not None else ", with --skip")
    if steps.cpu_ns is None:
        shared = "" if is_regular else " It may be that other programs share the machine: then nobody is to blame."
        return SlowCause("", f"What they do was not recorded. {record}.{shared}", is_seen=False)
    if _excess_of(steps.cpu_ns, is_slow) < _MIN_SHARE_OF_EXCESS * excess_ns:
        waits = "they wait, without more CPU time"
        return SlowCause(
            waits, f"What they wait for (a file, a network, a lock, a GPU) was not recorded. {record}.", is_seen=False
        )
    return SlowCause("they take more CPU time", f"What takes it was not recorded. {record}.", is_seen=False)


def _excess_of(values: np.ndarray, is_slow: BoolArray) -> float:
    return float(values[is_slow].mean() - np.median(values[~is_slow]))


def _even_out_loader(rank: Rank | None) -> str:
    """What evens out a loader, by its settings, where they were captured."""
    loaders = rank.facts.loaders if rank is not None else ()
    workers = [each.num_workers for each in loaders]
    if workers and all(count == 0 for count in workers):
        return "Make the batches of these steps cheaper: the loop makes them itself, as the loader has no workers."
    if loaders and all(each.persistent_workers for each in loaders):
        return "Even it out by a larger prefetch_factor."
    return "Even it out by a larger prefetch_factor, and by persistent_workers=True where epochs are short."


def _cause_in_trace(
    rank: Rank, part: str, excess_ns: int, activity: Activity | None, ops: MoreOps, *, took_cpu_time: bool
) -> SlowCause:
    """What slow steps of a trace contain more of.

    Args:
        rank: The rank.
        part: The part of the account in which they exceed the others most.
        excess_ns: By how much they exceed the others.
        activity: The op or annotation that takes most more time in them; None where there is none.
        ops: How many ops they call, and others.
        took_cpu_time: Whether most of that is CPU time: steps that wait for a core do no more work.
    """
    texts = read_texts("slow-steps")
    if part in texts["parts"]:
        cause = SlowCause(**texts["parts"][part])
        return cause if cause.advice else cause._replace(advice=_even_out_loader(rank))
    if activity is not None and activity.excess_ns >= _MIN_SHARE_OF_EXCESS * excess_ns:
        does_more = activity.calls > _MORE_CALLS * activity.usual_calls
        if activity.is_annotation:
            advice = f"See what {activity.name} does there, and how often it must."
            return SlowCause(f"more time in {activity.name}", advice, is_seen=does_more)
        if does_more:
            return SlowCause(
                f"more calls of {activity.name} ({activity.calls:.3g} instead of {activity.usual_calls:.3g})",
                _WORK_VARIES,
            )
    if ops.calls > _MORE_CALLS * ops.usual_calls > 0:
        times = f"{ops.calls:,.0f} ops instead of {ops.usual_calls:,.0f}"
        is_larger = ops.calls >= _EVALUATION_CALLS * ops.usual_calls
        if is_larger and 0 < ops.backward_calls <= _AS_MANY * ops.usual_backward_calls:
            return SlowCause(**{**texts["content"]["evaluation"], "text": times})
        return SlowCause(times, _WORK_VARIES, is_seen=False)
    on_gpu = rank.device_kind == "gpu"
    if part in ("compute", "bandwidth", "latency"):
        if on_gpu:
            return SlowCause("more GPU work", _WORK_VARIES)
        if took_cpu_time:
            return SlowCause("more work in the ops", _WORK_VARIES, is_seen=False, took_cpu_time=True)
        return SlowCause(
            "the same ops take longer",
            f"{_WORK_VARIES} Else other programs shared the machine, and nothing is to be done.",
            is_seen=False,
        )
    return SlowCause(
        "work on the CPU that no op shows",
        "What it is was not recorded: record stacks (with_stack=True, or perfdoctor run).",
        is_seen=False,
    )


class SeenExcess(NamedTuple):
    """What slow steps of a trace contain more of."""

    rank: Rank
    cause: SlowCause
    part: str
    part_ns: int
    activity: Activity | None

    def evidence(self, where: str) -> tuple[Evidence, ...]:
        """The part and the op or annotation that exceed most, with figures of the step without the profiler."""
        rank, activity, names = self.rank, self.activity, read_texts("slow-steps")["names"]
        return (
            Evidence(f"more {names.get(self.part, self.part)} in {where}", rank.to_unprofiled_ns(self.part_ns), "ns"),
            Evidence("most more time in", None if activity is None else activity.name),
            Evidence(
                f"that is, in {where}", None if activity is None else rank.to_unprofiled_ns(activity.excess_ns), "ns"
            ),
        )

    def limit_severity(self, rank: Rank, finding: Finding) -> Finding:
        """The finding, low at most where no cause was seen: on a CPU other programs may have made steps slow."""
        return limit_severity(finding, self.cause) if rank.device_kind == "cpu" else finding


def see_excess(rank: Rank, is_slow: BoolArray, excess_ns: float) -> SeenExcess:
    """What the slow steps of a trace contain more of, which exceed the others by so much."""
    part, part_ns = find_largest_part_excess(rank, is_slow)
    activity, took = find_largest_activity_excess(rank, is_slow), took_cpu_time(rank, is_slow, excess_ns)
    cause = _cause_in_trace(rank, part, round(excess_ns), activity, count_ops(rank, is_slow), took_cpu_time=took)
    return SeenExcess(rank, cause, part, part_ns, activity)


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
