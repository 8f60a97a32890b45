"""Calls outside of ops that a step can do without: garbage collection, flushing to disk, checkpoints, copies."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.rules import Intervals, Trace
from perfdoctor.rules import intervals as iv

# Of the time without ops so much has to be in a call that is named as its cause.
_MIN_SHARE = 0.3


class KnownCall(NamedTuple):
    """A call that takes time without ops.

    Attributes:
        name: As users write it.
        situation: In the table of advice.
        frames: A pattern of the Python frames that it is, as stacks name them.
    """

    name: str
    situation: str
    frames: str


class TimeInCall(NamedTuple):
    """What a known call takes of the time without ops: its share (0 to 1), and when it runs."""

    call: KnownCall
    share: float
    time: Intervals


_CALLS = (
    KnownCall("gc.collect", "garbage is collected in the step", r"^<built-in function collect>$"),
    KnownCall("os.fsync", "the step waits until a file is on disk", r"^<built-in function (fsync|fdatasync)>$"),
    KnownCall("torch.save", "the step saves a checkpoint", r"torch/serialization\.py\(\d+\): save$"),
    KnownCall("copy.deepcopy", "the step copies objects", r"(^|/)copy\.py\(\d+\): deepcopy$"),
)


def find_known_call(trace: Trace, breaks: Intervals) -> TimeInCall | None:
    """The known call with most of some time; None where none has enough of it, or no stacks were recorded."""
    found = [_time_in(trace, breaks, call) for call in _CALLS]
    most = max(found, key=lambda each: each.share)
    return most if most.share >= _MIN_SHARE else None


def _time_in(trace: Trace, breaks: Intervals, call: KnownCall) -> TimeInCall:
    rows = trace.match_rows(trace.frames, call.frames)
    time = iv.intersect(breaks, iv.union(trace.frames.start_ns[rows], trace.frames.end_ns[rows]))
    return TimeInCall(call, iv.total(time) / max(iv.total(breaks), 1), time)
