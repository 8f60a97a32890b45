"""The slices of a trace's text and the ends of its arrows as columns, of whatever category: what viewers draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.kineto import reader_choice
from perfdoctor.trace.kineto.argument_values import parse_integers
from perfdoctor.trace.kineto.event_columns import EventColumns
from perfdoctor.trace.kineto.event_walker import CHUNK_BYTES, EventReader, JsonEventWalker
from perfdoctor.trace.kineto.exact_times import parse_times
from perfdoctor.trace.scanner import layout as at
from perfdoctor.trace.scanner.text_window import TextWindow

TrackId: TypeAlias = int | str | None
"""A process or thread id as the text has it."""

SLICE, ARROW = 0, 1
_PHASES = {"X": SLICE, "s": ARROW, "t": ARROW, "f": ARROW}
_CORRELATION = at.FIRST_FREE
_ARROW_ID = at.FIRST_FREE + 1


@frozen_dataclass(eq=False)
class Slices:
    """The slices and arrow ends of a text, one row for each, in its order.

    Attributes:
        start_ns, end_ns: Their time; that of an arrow's end is an instant.
        track: Index into `tracks`.
        index: The place among the elements of the list of events, counted from 0.
        kind: SLICE or ARROW.
        id: The correlation of a slice, the id of an arrow; -1 where there is none.
        category: Index into `categories`.
        tracks: Process and thread id of each track.
        categories: The names of the categories, in lower case.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    track: Int32Array
    index: Int64Array
    kind: Int32Array
    id: Int64Array
    category: Int32Array
    tracks: tuple[tuple[TrackId, TrackId], ...]
    categories: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def read_slices(path: str) -> Slices:
    """Read the slices of a trace file.

    Memory holds the columns, 50 bytes a slice, and a few blocks of the text. A file that is cut short counts as far as
    it goes. Halves of slices (`B` and `E`) are left out, as are events without a category; the profiler writes neither.

    Raises:
        TraceError: The file cannot be read.
    """
    with TextStream(path) as stream:
        if not reader_choice.choose_reader(stream).fast:
            collected = _Collected()
            for events in EventReader(TextWindow(stream.source(), block=CHUNK_BYTES)):
                collected.add_events(events)
            return _join([collected.rows()])
        reader = _SliceReader(TextWindow(stream.source(prefetch=True)))
        for _ in reader:
            raise AssertionError("the slices are columns, not lists of events")
        return _join(reader.parts)


# One part of a text: columns by name, its tracks and its categories.
_Part: TypeAlias = tuple[dict[str, Any], Sequence[tuple[TrackId, TrackId]], Sequence[str]]


class _Collected(EventColumns):
    """Slices among parsed events."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[tuple[int, dict[str, Any]]] = []

    def add_events(self, events: list[Any], indices: Any = None) -> None:
        """Add parsed events; `indices` are theirs in the file, where they do not just count on."""
        numbered = enumerate(events, self.seen) if indices is None else zip(indices, events, strict=True)
        self._events += [(index, event) for index, event in numbered if _is_drawn(event)]
        self.seen += len(events)

    def rows(self) -> _Part:
        """The slices so far."""
        indices, events = [index for index, _ in self._events], [event for _, event in self._events]
        start_ns, start_usable = parse_times([event.get("ts") for event in events])
        dur_ns, dur_usable = parse_times([event.get("dur", 0) for event in events])
        usable = start_usable & dur_usable
        kinds = [_PHASES[event["ph"]] for event in events]
        arguments = [event.get("args") for event in events]
        ids = [
            event.get("id") if kind == ARROW else args.get("correlation") if isinstance(args, dict) else None
            for event, kind, args in zip(events, kinds, arguments, strict=True)
        ]
        tracks: dict[tuple[TrackId, TrackId], int] = {}
        categories: dict[str, int] = {}
        columns = {
            "start_ns": start_ns,
            "dur_ns": dur_ns,
            "track": [tracks.setdefault((_id_of(e.get("pid")), _id_of(e.get("tid"))), len(tracks)) for e in events],
            "index": indices,
            "kind": kinds,
            "id": parse_integers(ids),
            "category": [categories.setdefault(event["cat"].lower(), len(categories)) for event in events],
        }
        part = {name: np.asarray(column, np.int64)[usable] for name, column in columns.items()}
        return part, tuple(tracks), tuple(categories)


def _is_drawn(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("ph"), str)
        and event["ph"] in _PHASES
        and isinstance(event.get("cat"), str)
    )


def _id_of(value: Any) -> TrackId:
    return value if type(value) in (int, str) else None


class _SliceReader(JsonEventWalker):
    """Reads the slices with the scanner in C, those of irregular events in Python; `parts` has them."""

    def __init__(self, window: TextWindow) -> None:
        super().__init__(window)
        self.parts: list[_Part] = []

    def _read_list(self) -> Iterator[list[Any]]:
        from perfdoctor.trace.kineto.compiled_reader import Chunk
        from perfdoctor.trace.scanner.scan import Plan

        self._expect(b"[")
        columns = {
            "start_ns": (at.START, False),
            "dur_ns": (at.DURATION, False),
            "track": (at.PAIR, True),
            "index": (at.ORDER, False),
            "phase": (at.PHASE, True),
            "category": (at.CATEGORY, True),
            "correlation": (_CORRELATION, False),
            "id": (_ARROW_ID, False),
        }
        keys = {
            "ph": (at.TAG, at.PHASE),
            "cat": (at.TAG, at.CATEGORY),
            "pid": (at.NUMBER, at.PID),
            "tid": (at.NUMBER, at.TID),
            "ts": (at.TIME, at.START),
            "dur": (at.TIME, at.DURATION),
            "id": (at.NUMBER, _ARROW_ID),
            "args": (at.INSIDE, at.ARGUMENTS),
        }
        arguments = {"correlation": (at.NUMBER, _CORRELATION)}
        # Two kinds, because the last is for rows aside; nothing has any here.
        plan = Plan(keys, arguments, _ARROW_ID + 2, _ARROW_ID + 1, (columns, {}), _classify, optional_duration=True)
        chunk = Chunk(self.window, plan=plan)
        chunk.columns = irregular = _Collected()
        chunk.scan()
        self.window, self.complete = chunk.window, chunk.complete
        self.parts += [_scanned(chunk.scanner), irregular.rows()]
        yield from ()


def _classify(tag: bytes) -> tuple[int, int, int]:
    """What a text means as a phase, and as a category: any."""
    return at.COMPLETE if _decode(tag) in _PHASES else at.PASSED, 0, 0


def _decode(body: bytes) -> str:
    """The text of a JSON string without its quotation marks."""
    from perfdoctor.trace.kineto.event_walker import parse_value

    return str(parse_value(b'"' + body + b'"')) if b"\\" in body else body.decode("utf-8", errors="replace")


def _scanned(scanner: Any) -> _Part:
    """The rows of a scanner."""
    scanner.finish()
    blocks = scanner.blocks[0]
    tags = [_decode(tag) for tag in scanner.tags]
    words = scanner.words.texts()

    def text_or_number(value: int) -> TrackId:
        if value == at.NOTHING:
            return None
        return _decode(words[value - at.STRING]) if value < at.STRING // 2 else value

    rows = {
        name: np.concatenate([block[name] for block in blocks]) if blocks else np.empty(0, np.int64)
        for name in ("start_ns", "dur_ns", "track", "index", "phase", "category", "correlation", "id")
    }
    kinds = np.array([_PHASES.get(tag, SLICE) for tag in tags] or [SLICE], np.int64)
    kind = kinds[rows.pop("phase")]
    correlation = rows.pop("correlation")
    rows["id"] = np.where(kind == ARROW, rows["id"], correlation)
    tracks = [(text_or_number(pid), text_or_number(tid)) for pid, tid in scanner.pairs.pairs()]
    return rows | {"kind": kind}, tracks, [tag.lower() for tag in tags]


def _join(parts: list[_Part]) -> Slices:
    """The parts of a text as one, in its order."""
    tracks: dict[tuple[TrackId, TrackId], int] = {}
    categories: dict[str, int] = {}
    blocks: list[dict[str, Any]] = []
    for rows, own_tracks, own_categories in parts:
        new_track = np.array([tracks.setdefault(each, len(tracks)) for each in own_tracks], np.int32)
        new_category = np.array([categories.setdefault(each, len(categories)) for each in own_categories], np.int32)
        if len(rows["start_ns"]):
            blocks.append(rows | {"track": new_track[rows["track"]], "category": new_category[rows["category"]]})
    names = ("start_ns", "dur_ns", "track", "index", "kind", "id", "category")
    joined = {name: np.concatenate([b[name] for b in blocks] or [np.empty(0, np.int64)]) for name in names}
    order = np.argsort(joined["index"], kind="stable")
    columns = {name: column[order] for name, column in joined.items()}
    return Slices(
        start_ns=columns["start_ns"],
        end_ns=columns["start_ns"] + np.maximum(columns["dur_ns"], 0),
        track=columns["track"].astype(np.int32),
        index=columns["index"],
        kind=columns["kind"].astype(np.int32),
        id=columns["id"],
        category=columns["category"].astype(np.int32),
        tracks=tuple(tracks),
        categories=tuple(categories),
    )
