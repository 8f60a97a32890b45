"""Calls in which the CPU waits for a disk, copies a model or collects garbage: as captured, or as stacks show them.

A capture has timed them without a profiler, over the whole run, so that those of every hundredth step are known,
too. Stacks show those of the recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    CapturedFacts,
    Claim,
    HostCall,
    Intervals,
    Rank,
    Recurrence,
    SourceLocation,
    Trace,
    captured_location,
    format_time,
    loader_waits_of,
    loop_thread_of,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

COLLECT, SAVE, FSYNC, DEEPCOPY, PRINT = "gc.collect", "torch.save", "os.fsync", "copy.deepcopy", "print"
# The Python frames of each call, as stacks name them.
_FRAMES: Mapping[str, str] = {
    COLLECT: r"^<built-in function collect>$",
    FSYNC: r"^<built-in function (fsync|fdatasync)>$",
    SAVE: r"torch/serialization\.py\(\d+\): save$",
    DEEPCOPY: r"(^|/)copy\.py\(\d+\): deepcopy$",
    PRINT: r"^<built-in function print>$",
}
# The ranges that `perfdoctor run` puts around them.
_RANGES: Mapping[str, str] = {
    COLLECT: vocabulary.COLLECT_MARK,
    FSYNC: vocabulary.FILE_SYNC_MARK,
    SAVE: vocabulary.SAVE_MARK,
    DEEPCOPY: vocabulary.DEEPCOPY_MARK,
}
# Parameters are copied by a method of their own, which nothing but a module's copy calls.
_MODEL_FRAME = r"torch/nn/parameter\.py\(\d+\): __deepcopy__$"
_ALL_RANGES = "|".join(_RANGES.values())
# Of the steps' time, from which on they are reported: CheckFreq (FAST 2021) takes 3.5 % as what checkpoints may cost; a
# smaller cost of garbage would not even be a finding of low severity.
MIN_SHARE, MIN_SHARE_OF_GARBAGE = 0.035, 0.01
# What happened in one step alone may be the end of an epoch, or of the start-up; nobody knows whether it comes back.
_MIN_STEPS = 2
# What is in so many of the steps is in each of them, to users.
_NEARLY_ALL = 0.9


class HostPause(NamedTuple):
    """Calls of one kind, all lines together.

    Attributes:
        call: The function, as users write it.
        location: The line that takes most of their time; None where none is known.
        share: Their share (0 to 1) of the time of the steps; on a GPU what the steps are longer by.
        calls: How many there were in all steps.
        ns: How long they took together.
        steps, of: In how many of how many steps there was one.
        largest_ns: The most that they took of a step.
        bytes: Size of the files that were written; None where that is not known.
        is_timed: Whether they were timed without a profiler.
        lines: At how many lines of the user's code there were some.
        copied: What is copied there, as captured; None where that is not known.
    """

    call: str
    location: SourceLocation | None
    share: float
    calls: int
    ns: int
    steps: int
    of: int
    largest_ns: int
    bytes: int | None = None
    is_timed: bool = True
    lines: int = 1
    copied: str | None = None

    @property
    def comes_back(self) -> bool:
        """Whether it was seen in several steps."""
        return self.steps >= _MIN_STEPS

    @property
    def step_ns(self) -> int:
        """How long they take in a step that has any, in the mean."""
        return round(self.ns / max(self.steps, 1))

    @property
    def frequency(self) -> str:
        """In how many steps, in words: "in each step", "in 4 of 20 steps"."""
        if self.steps >= _NEARLY_ALL * self.of:
            return "in each step"
        return f"in {self.steps:,} of {self.of:,} steps"

    def length_on(self, rank: Rank) -> str:
        """How long they take, and in how many steps, for titles: "4 ms in each step", "4 ms each in 4 of 20 steps".

        Of each step of a program on the CPU that is what they cost, which other programs and stacks lengthen.
        """
        is_usual = self.steps >= _NEARLY_ALL * self.of
        ns = cost_of(rank, self) if is_usual and rank.device_kind == "cpu" else self.step_ns
        return f"{format_time(ns)}{'' if is_usual else ' each'} {self.frequency}"

    @property
    def recurrence(self) -> Recurrence:
        """In how many of the steps, and how long there."""
        mean_ns = min(self.step_ns, self.largest_ns)
        return Recurrence(self.steps, self.of, mean_ns, self.largest_ns)


def has_captured_calls(facts: CapturedFacts) -> bool:
    """Whether a capture has watched these calls: recordings of earlier releases have not."""
    return facts.host_calls is not None and bool(facts.collector)


def find_calls(rank: Rank, call: str) -> HostPause | None:
    """All calls of one kind; None where there are none, or where nothing shows them."""
    if has_captured_calls(rank.facts) and call != PRINT:
        return _of_sites(rank, call, [each for each in rank.facts.host_calls or () if _is_of(each, call)])
    return _in_stacks(rank, call)


def find_collect_calls(rank: Rank) -> HostPause | None:
    """Explicit calls of gc.collect."""
    if not has_captured_calls(rank.facts):
        return _in_stacks(rank, COLLECT)
    found = rank.facts.collector
    site = HostCall(
        count=found.collect_calls,
        ns=found.collect_ns,
        steps=found.collect_steps,
        step_ns=found.collect_step_ns,
        largest_step_ns=found.collect_largest_step_ns,
        location=found.location,
    )
    return _of_sites(rank, COLLECT, [site])


def find_automatic_collections(rank: Rank) -> HostPause | None:
    """Collections that Python began by itself; only a capture tells them apart."""
    found = rank.facts.collector
    site = HostCall(
        count=found.collections,
        ns=found.collections_ns,
        steps=found.collection_steps,
        step_ns=found.collection_step_ns,
        largest_step_ns=found.collection_largest_step_ns,
    )
    return _of_sites(rank, COLLECT, [site])


def time_of_calls(trace: Trace, calls: Iterable[str] = tuple(_FRAMES)) -> Intervals:
    """When such calls ran, by the ranges around them and by their frames."""
    ranges, frames = trace.ranges, trace.frames
    found = [iv.EMPTY]
    for call in calls:
        if call in _RANGES:
            rows = trace.match_rows(ranges, _RANGES[call])
            found.append(iv.union(ranges.start_ns[rows], ranges.end_ns[rows]))
        rows = trace.match_rows(frames, _FRAMES[call])
        found.append(iv.union(frames.start_ns[rows], frames.end_ns[rows]))
    return iv.union_of(found)


def has_ranges_of_calls(trace: Trace) -> bool:
    """Whether a trace has ranges around such calls."""
    return bool(trace.match_rows(trace.ranges, _ALL_RANGES).any())


def time_of_reported_calls(rank: Rank) -> Intervals:
    """When such calls ran that come back and cost enough to be reported, so that no other rule tells their time."""
    found = {call: find_calls(rank, call) for call in (SAVE, FSYNC, DEEPCOPY)}
    pauses = [(pause, MIN_SHARE) for pause in found.values()]
    pauses += [(pause, MIN_SHARE_OF_GARBAGE) for pause in (find_collect_calls(rank), find_automatic_collections(rank))]
    return time_of_calls(
        rank.trace,
        {pause.call for pause, min_share in pauses if pause and pause.comes_back and pause.share >= min_share},
    )


def is_of_model(rank: Rank, pause: HostPause) -> bool:
    """Whether copies are known to be of a model or its state: as captured, else by what stacks show inside of them."""
    if pause.copied is not None:
        return pause.copied in ("model", "state")
    for trace in filter(None, (rank.trace, rank.evidence_trace)):
        frames, copies = trace.frames, time_of_calls(trace, (pause.call,))
        if iv.contains(copies, frames.start_ns[trace.match_rows(frames, _MODEL_FRAME)]).any():
            return True
    return False


def is_in_loader(rank: Rank, pause: HostPause) -> bool:
    """Whether most of the time of such calls lies in waits for a batch that the training process loads itself."""
    for trace in filter(None, (rank.trace, rank.evidence_trace)):
        copies, waits = time_of_calls(trace, (pause.call,)), loader_waits_of(trace).intervals
        if len(copies):
            return 2 * iv.total(iv.intersect(copies, waits)) > iv.total(copies)
    return False


def claim_of(rank: Rank, calls: Iterable[str], cost_ns: int) -> Claim:
    """The time of such calls in the window, and what more they cost of steps that are not in it."""
    time = iv.intersect(time_of_calls(rank.trace, calls), rank.window)
    of_window_ns = rank.in_window_ns(cost_ns)
    if rank.device_kind == "gpu":
        time = iv.intersect(time, _idle_of(rank))
    elif not len(time):  # only another window has stacks: without them it is time for which nothing else is known
        time = iv.shorten(rank.account.parts["idle_unexplained"], of_window_ns)
    in_window_ns = iv.total(time)
    return Claim(time, unshared_ns=max(of_window_ns - in_window_ns, 0))


def cost_of(rank: Rank, pause: HostPause) -> int:
    """What calls cost a step, in ns."""
    whole_ns = rank.mean_step_ns
    return min(round(pause.share * whole_ns), whole_ns)


def _is_of(site: HostCall, call: str) -> bool:
    return site.call == call or (call == FSYNC and site.call == "os.fdatasync")


def _of_sites(rank: Rank, call: str, sites: list[HostCall]) -> HostPause | None:
    """The calls of some captured sites together."""
    of, run_ns = rank.facts.run.unprofiled_steps, rank.facts.run.unprofiled_ns
    sites = [site for site in sites if site.ns and site.steps and site.count]
    ns = sum(site.ns or 0 for site in sites)
    if not sites or not of or not run_ns or ns > run_ns:
        return None
    longest = max(sites, key=lambda site: site.ns or 0)
    steps = min(max(site.steps or 0 for site in sites), of)
    lost_ns = ns if rank.device_kind == "cpu" else min(ns, _lost_on_gpu(rank, call, sites, steps, of, run_ns))
    return HostPause(
        call,
        captured_location(longest.location),
        lost_ns / run_ns,
        sum(site.count or 0 for site in sites),
        ns,
        steps,
        of,
        max(max(site.largest_step_ns or 0 for site in sites), round(ns / steps)),
        sum(site.bytes or 0 for site in sites) or None,
        lines=len(sites),
        copied=longest.copied,
    )


def _lost_on_gpu(rank: Rank, call: str, sites: list[HostCall], steps: int, of: int, run_ns: int) -> int:
    """How much longer such calls made the run on a GPU, which may have had work queued meanwhile.

    Steps with such calls are compared with the others; where most steps have some, the GPU's idle time in them counts.
    """
    median_ns = rank.facts.run.median_ns
    if 2 * steps < of and median_ns:
        step_ns = max(site.step_ns or 0 for site in sites)
        return max(step_ns - steps * median_ns, 0)
    idle = iv.intersect(iv.intersect(time_of_calls(rank.trace, (call,)), rank.window), _idle_of(rank))
    return round(iv.total(idle) / max(rank.window_ns, 1) * run_ns)


def _idle_of(rank: Rank) -> Intervals:
    return iv.union_of([part for name, part in rank.account.parts.items() if name.startswith("idle_")])


def _in_stacks(rank: Rank, call: str) -> HostPause | None:
    """Such calls in the recorded steps of a program on the CPU: on a GPU their pauses are PD103's."""
    evidence = rank.evidence
    shown = rank if len(rank.trace.frames) or evidence is None else evidence
    trace, steps = shown.trace, shown.steps
    frames = trace.frames
    in_loop = frames.thread == loop_thread_of(trace)
    rows = np.flatnonzero(trace.match_rows(frames, _FRAMES[call]) & in_loop)
    if rank.device_kind != "cpu" or not steps.count or not len(rows):
        return None
    time = iv.intersect(iv.union(frames.start_ns[rows], frames.end_ns[rows]), steps.window)
    if call != SAVE:  # what it does itself, such as os.fsync, belongs to it
        time = iv.subtract(time, time_of_calls(trace, (SAVE,)))
    in_step_ns = iv.overlap(steps.intervals[:, 0], steps.intervals[:, 1], time)
    if not in_step_ns.any():
        return None
    return HostPause(
        call,
        shown.places.line_in(time),
        iv.total(time) / max(iv.total(steps.window), 1),
        len(time),
        shown.per_step(iv.total(time)) * steps.count,
        int(np.count_nonzero(in_step_ns)),
        steps.count,
        int(in_step_ns.max()),
        is_timed=False,
    )
