"""Writes tracks of our own: a process with threads, slices, counters and arrows, as events of a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.chrome_trace.copy_events import Changes, microseconds
from perfdoctor.reporters.chrome_trace.slices import TrackId
from perfdoctor.reporters.chrome_trace.viewer_times import seen_ns
from perfdoctor.trace.arrays import FloatArray, Int64Array
from perfdoctor.trace.tables.intervals import Intervals

# Larger than any process id of Linux (2**22), and than rank * 1e8 + pid in merged traces of 20 ranks. Viewers want it
# below 2**31.
PID = 2_147_483_000
CATEGORY = "perfdoctor"
# A viewer stays responsive up to some hundred thousand events in a track.
MAX_EVENTS = 200_000
_COALESCED = -1
_NO_CHANGES = Changes()
_ARROWS_OF_A_PROCESS = 1 << 20


@frozen_dataclass
class EventKind:
    """What all events of one kind on a track share."""

    name: str
    colour: str | None = None
    args: Mapping[str, Any] | None = None

    def json_tail(self) -> bytes:
        """The end of the JSON object of an event, after its times."""
        fields: dict[str, Any] = {"name": self.name}
        if self.colour:
            fields["cname"] = self.colour
        if self.args:
            fields["args"] = self.args
        return b"," + orjson.dumps(fields)[1:]


@frozen_dataclass
class TrackWriter:
    """Makes events of one process; each is a JSON object in bytes.

    Attributes:
        pid: The process.
        offset_ns: What is added to all times: from the clock of a rank to that of the file.
        changes: Of the rank's own events, which arrows point to.
    """

    pid: int = PID
    offset_ns: int = 0
    changes: Changes = _NO_CHANGES

    def name_process(self, name: str, sort_index: int) -> Iterator[bytes]:
        """Name the process, and say where it stands among the others."""
        yield self._metadata("process_name", 0, {"name": name})
        yield self._metadata("process_sort_index", 0, {"sort_index": sort_index})

    def name_thread(self, tid: int, name: str) -> Iterator[bytes]:
        """Name a track; tracks stand in the order of their ids."""
        yield self._metadata("thread_name", tid, {"name": name})
        yield self._metadata("thread_sort_index", tid, {"sort_index": tid})

    def slices(self, tid: int, rows: Intervals, kind: Int64Array, kinds: Sequence[EventKind]) -> Iterator[bytes]:
        """Slices for intervals that are sorted and disjoint; `kind` is the index in `kinds` of each.

        They are disjoint in viewers too: what would overlap there ends up to a quarter of a microsecond earlier.
        """
        start, end, kind, count = coalesce_short_intervals(rows[:, 0], rows[:, 1], kind)
        length = np.minimum(end - start, seen_ns(end + self.offset_ns) - seen_ns(start + self.offset_ns))
        tails = [each.json_tail() for each in kinds]
        head = b'{"ph":"X","cat":"%s","pid":%d,"tid":%d,"ts":' % (CATEGORY.encode(), self.pid, tid)
        for at, dur, index, parts in zip(start.tolist(), length.tolist(), kind.tolist(), count.tolist(), strict=True):
            if index == _COALESCED:
                tail = EventKind("several short parts", "white", {"parts": parts}).json_tail()
            else:
                tail = tails[index]
            yield head + self._time(at) + b',"dur":' + microseconds(dur) + tail

    def counter(self, name: str, series: str, time_ns: Int64Array, value: FloatArray | Int64Array) -> Iterator[bytes]:
        """The points of a counter: from each on it has the value that stands there, rounded to five digits."""
        head = orjson.dumps({"ph": "C", "cat": CATEGORY, "name": name, "pid": self.pid})[:-1] + b',"ts":'
        label = b',"args":{' + orjson.dumps(series) + b":"
        for at, number in zip(time_ns.tolist(), value.tolist(), strict=True):
            yield head + self._time(at) + label + b"%.5g}}" % number

    def counter_point(self, name: str, time_ns: int, values: Mapping[str, float]) -> bytes:
        """One point of a counter of several series."""
        head = orjson.dumps({"ph": "C", "cat": CATEGORY, "name": name, "pid": self.pid, "args": values})
        return head[:-1] + b',"ts":' + self._time(time_ns) + b"}"

    def arrow(
        self, name: str, number: int, points: Sequence[tuple[int, tuple[TrackId, TrackId] | int]]
    ) -> Iterator[bytes]:
        """An arrow through slices, in the order of time; its number tells it from the others of this process.

        `points` are for each slice a time in it, and its process and thread, or its thread in this process.
        """
        phases = ("s", *("t",) * (len(points) - 2), "f")
        for phase, (time_ns, track) in zip(phases, points, strict=True):
            pid, tid = (self.pid, track) if isinstance(track, int) else (self.changes.pid(track[0]), track[1])
            fields = {"ph": phase, "cat": CATEGORY, "name": name, "id": _ARROWS_OF_A_PROCESS * self.pid + number}
            fields |= {"pid": pid, "tid": tid} | ({"bp": "e"} if phase == "f" else {})
            yield orjson.dumps(fields)[:-1] + b',"ts":' + self._time(time_ns) + b"}"

    def _metadata(self, name: str, tid: int, args: Mapping[str, Any]) -> bytes:
        return metadata(name, self.pid, tid, args)

    def _time(self, ns: int) -> bytes:
        return microseconds(ns + self.offset_ns)


def metadata(name: str, pid: int | str | None, tid: int | str | None, args: Mapping[str, Any]) -> bytes:
    """An event that says something of a process or a thread."""
    return orjson.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args})


def coalesce_short_intervals(
    start: Int64Array, end: Int64Array, kind: Int64Array, max_events: int = MAX_EVENTS
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """About `max_events` intervals at most: the longest stay, half that number; each run of shorter ones becomes one.

    With `max_events` 4, the two longest of these five intervals stay::

        start  0  10  20  30  40        start  0  10  30  40
        end    9  12  23  39  41   ->   end    9  23  39  41
        kind   0   1   2   0   1        kind   0  -1   0   1

    Returns:
        Start, end, kind, and the number of intervals that each stands for. The kind of several is -1. Sorted and
        disjoint intervals come out sorted and disjoint.
    """
    if len(start) <= max_events:
        return start, end, kind, np.ones(len(start), np.int64)
    keep = np.zeros(len(start), bool)
    keep[np.argpartition(end - start, -(max_events // 2))[-(max_events // 2) :]] = True
    first = keep.copy()
    first[0] = True
    first[1:] |= keep[:-1]
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(start)) - 1
    count = tails - heads + 1
    return start[heads], end[tails], np.where(count == 1, kind[heads], _COALESCED), count
