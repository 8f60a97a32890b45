"""The fast reader: plain events go through the scanner in C, all others through the code of the reference reader.

So irregular events mean the same to both readers: an event that the scanner cannot read is parsed by
`JsonEventWalker` and interpreted by `EventColumns`, like every event of the reference reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array, IntArray
from perfdoctor.trace.kineto import event_columns as c
from perfdoctor.trace.kineto.argument_values import parse_integers, to_json_list
from perfdoctor.trace.kineto.event_columns import EventColumns
from perfdoctor.trace.kineto.event_walker import JsonEventWalker, TruncatedError, parse_list, parse_value
from perfdoctor.trace.scanner import layout as at
from perfdoctor.trace.scanner.scan import Plan, Rows, Scanner
from perfdoctor.trace.scanner.text_window import TextWindow
from perfdoctor.trace.tables.model import KERNEL

_KINDS = (c.GPU, c.CALLS, c.OPS, c.RANGES, c.GPU_RANGES, c.FRAMES, c.SYNCS, c.OTHER_DEVICE, c.MEMORY, c.COMMS)
_EVERY_KIND = {
    "start_ns": (at.START, False),
    "dur_ns": (at.DURATION, False),
    "name": (at.NAME, True),
    "thread": (at.PAIR, True),
    "event_index": (at.ORDER, False),
}
_TEXTS_OF: dict[str, dict[str, tuple[str, ...]]] = {c.OPS: c.TEXTS, c.COMMS: c.LABELS}
_PHASES = {b"X": at.COMPLETE, b"B": at.HALF, b"E": at.HALF, b"i": at.INSTANT}
_IRREGULAR_BATCH = 10_000  # events
_POLL_S = 0.05


def _make_plan() -> Plan:
    """The plan for PyTorch's traces, from the tables of `event_columns`."""
    usual = [*sorted({name for kind in _KINDS[:-1] for name in c.NUMBERS.get(kind, {})}), *c.TEXTS, "blocks"]
    fields = [*usual, *c.LABELS, *c.NUMBERS[c.COMMS]]
    slots = {name: at.FIRST_FREE + number for number, name in enumerate(fields)}
    actions: list[tuple[int, dict[str, tuple[str, ...]]]] = [
        *((at.NUMBER, numbers) for numbers in c.NUMBERS.values()),
        (at.TEXT, c.TEXTS),
        (at.WORD, c.LABELS),
    ]
    arguments = {
        spelling: (action, slots[name])
        for action, spelled in actions
        for name, spellings in spelled.items()
        for spelling in spellings
    }
    arguments[c.GRID] = at.PRODUCT, slots["blocks"]
    kinds = []
    for kind in _KINDS:
        columns = _EVERY_KIND if kind != c.COMMS else {"event_index": _EVERY_KIND["event_index"]}
        columns = columns | {name: (slots[name], False) for name in c.NUMBERS.get(kind, {})}
        columns |= {name: (slots[name], True) for name in _TEXTS_OF.get(kind, {})}
        if kind in (c.GPU, c.OTHER_DEVICE):
            columns |= {"kind": (at.MARK, True)}
        if kind == c.GPU:
            columns |= {"blocks": (slots["blocks"], False)}
        kinds.append(columns)
    keys = {
        "ph": (at.TAG, at.PHASE),
        "cat": (at.TAG, at.CATEGORY),
        "name": (at.WORD, at.NAME),
        "pid": (at.NUMBER, at.PID),
        "tid": (at.NUMBER, at.TID),
        "ts": (at.TIME, at.START),
        "dur": (at.TIME, at.DURATION),
        "args": (at.INSIDE, at.ARGUMENTS),
    }
    common = at.FIRST_FREE + len(usual)
    return Plan(
        keys,
        arguments,
        at.FIRST_FREE + len(fields),
        common,
        tuple(kinds),
        _classify_tag,
        instants=_KINDS.index(c.MEMORY),
    )


def _classify_tag(tag: bytes) -> tuple[int, int, int]:
    """What a text means as a phase, as a category, and what its rows have in column `kind`."""
    category = _decode_string(tag).lower()
    kind = c.KIND_OF_CATEGORY.get(category)
    number = at.NONE if kind is None else _KINDS.index(kind)
    return (
        _PHASES.get(_decode_string(tag).encode(errors="replace"), at.PASSED),
        number,
        c.MARK_OF_CATEGORY.get(category, KERNEL),
    )


PLAN = _make_plan()
"""What the scanner reads of PyTorch's traces."""


def _decode_string(body: bytes) -> str:
    """The text of a JSON string without its quotation marks."""
    return str(parse_value(b'"' + body + b'"'))


def _decode_strings(bodies: list[bytes]) -> list[str]:
    """The texts of JSON strings without their quotation marks, decoded at once where that is possible."""
    texts = parse_list(b",".join(b'"' + body + b'"' for body in bodies))
    return texts if texts is not None and len(texts) == len(bodies) else [_decode_string(body) for body in bodies]


def _normalize_json(texts: list[bytes]) -> list[str | None]:
    """JSON texts as `EventColumns` writes them."""
    values = parse_list(b",".join(texts))
    if values is None:
        values = [parse_value(text) for text in texts]
    return to_json_list(values)


class Chunk(JsonEventWalker):
    """One part of a list of events, which one thread scans; irregular events in it are parsed in Python.

    Attributes:
        limit: Byte of the text at which the chunk should end; None for the end of the list.
        plan: What is read of an event.
        columns: The irregular events.
        ended: Whether the list ended in this chunk; `complete` is False when it is cut short there.
        cancelled: Set by another thread when the chunk is not needed any more.
    """

    def __init__(self, window: TextWindow, limit: int | None = None, plan: Plan = PLAN) -> None:
        super().__init__(window)
        self.scanner = Scanner(plan)
        self.columns = EventColumns()
        self.limit = limit
        self.ended = self.cancelled = False
        self._irregular: list[Any] = []
        self._indices: list[int] = []

    @property
    def ended_at_limit(self) -> bool:
        """Whether the chunk ended exactly where it should, between two events."""
        return self.complete and not self.ended and self.position == self.limit

    def scan(self) -> None:
        """Read events up to the end of the list, or to `limit`, or as far as the text goes."""
        try:
            while not self.ended and not self.cancelled:
                stopped = self.scanner.scan(self.window, self.limit)
                if stopped == at.REACHED:
                    break
                if stopped == at.CLOSED:
                    self.window.position += 1
                    self.ended = True
                elif stopped == at.IRREGULAR or not self.window.read_more():
                    self.ended = self._read_irregular()
        except TruncatedError:
            self.complete = False
        self._flush_irregular()

    def _read_irregular(self) -> bool:
        """Read one element of the list in Python; returns whether the list ended instead."""
        batch: list[Any] = []
        try:
            return self._read_element(batch)
        finally:
            for event in batch:
                self._irregular.append(event)
                self._indices.append(self.scanner.seen)
                self.scanner.seen += 1
            if len(self._irregular) >= _IRREGULAR_BATCH:
                self._flush_irregular()

    def _flush_irregular(self) -> None:
        if self._irregular:
            self.columns.add_events(self._irregular, self._indices)
            self._irregular, self._indices = [], []


class FastReader(JsonEventWalker):
    """Reads a text into columns; as an iterator it yields no lists of events.

    Args:
        window: The text.
        split: Opens the windows for the other chunks of the list, once it is known where the list begins. A window may
            begin in the middle of anything: then its chunk is read again from the end of the chunk before.
        waiting: Called now and then while other threads work.
    """

    def __init__(
        self,
        window: TextWindow,
        split: Callable[[int], list[TextWindow]] | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(window)
        self._waiting = waiting
        self.chunks: list[Chunk] = []
        self._split = split

    def read_columns(self) -> EventColumns:
        """Read everything."""
        for _ in self:
            raise AssertionError("the fast reader yields no events")
        return merge_chunks(self.chunks)

    def _read_list(self) -> Iterator[list[Any]]:
        self.has_events = True
        self._expect(b"[")
        windows = [self.window] + (self._split(self.position) if self._split and not self.chunks else [])
        limits = [window.base for window in windows[1:]] + [None]
        chunks = [Chunk(window, limit) for window, limit in zip(windows, limits, strict=True)]
        for chunk in _scan_in_threads(chunks, self._waiting):
            self.chunks.append(chunk)
            self.dropped += chunk.dropped
            self.window = chunk.window
            if not chunk.complete:
                raise TruncatedError
        yield from ()


def _scan_in_threads(chunks: list[Chunk], waiting: Callable[[], None]) -> Iterator[Chunk]:
    """Scan each chunk in a thread of its own; yields those that make up the list, in order.

    The first chunk begins where the list does. Each further one counts only if the one before ended exactly where it
    begins. Else the text was not cut between two events, and the chunk before reads on to the end alone.
    """
    with ThreadPoolExecutor(max(len(chunks) - 1, 1), "perfdoctor-scan") as pool:
        later = [pool.submit(chunk.scan) for chunk in chunks[1:]]
        try:
            chunks[0].scan()
            for chunk, future in zip(chunks, [None, *later], strict=True):
                while future is not None and not wait((future,), _POLL_S).done:
                    waiting()
                if future is not None:
                    future.result()
                if not chunk.ended_at_limit and chunk.complete and not chunk.ended:
                    _cancel(chunks)
                    chunk.cancelled, chunk.limit = False, None
                    chunk.scan()
                yield chunk
                if not chunk.ended_at_limit:
                    return
        finally:
            _cancel(chunks)


def _cancel(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.cancelled = True


def merge_chunks(chunks: list[Chunk]) -> EventColumns:
    """The columns of the chunks of one text, in their order."""
    whole = EventColumns(workers=max(len(chunks), 1))
    first_index = 0
    for chunk in chunks:
        scanner = chunk.scanner
        scanner.finish()
        chunk.columns.seen = scanner.seen
        chunk.columns.phases += scanner.phases
        whole.append(chunk.columns, first_index)
        _BlockRecoder(chunk, whole, first_index).add_blocks()
        first_index += scanner.seen
    return whole


class _BlockRecoder:
    """Moves the blocks of a scanner into columns, whose codes replace those of the scanner."""

    def __init__(self, chunk: Chunk, whole: EventColumns, first_index: int) -> None:
        self._scanner = chunk.scanner
        self._whole = whole
        self._first_index = first_index
        self._words = chunk.scanner.words.texts()
        threads = [whole.pairs.number(self._decode_id(p), self._decode_id(t)) for p, t in chunk.scanner.pairs.pairs()]
        self._threads = np.array(threads, np.int32)
        self._names, unnamed = self._codes_of("name", decode=_decode_strings)
        if unnamed:
            self._names[-1] = whole.strings[""]
        self._texts, _ = self._codes_of(*c.TEXTS, decode=_normalize_json)
        self._labels, _ = self._codes_of(*c.LABELS, decode=_decode_strings)

    def add_blocks(self) -> None:
        """Move every block."""
        for kind, blocks in zip(_KINDS, self._scanner.blocks, strict=True):
            for number, block in enumerate(blocks):
                self._whole.add_block(kind, self._recode(kind, block))
                blocks[number] = {}  # its memory is free before the next one is recoded
            blocks.clear()

    def _codes_of(self, *names: str, decode: Callable[[list[bytes]], list[Any]]) -> tuple[Int32Array, bool]:
        """The code of each word that some columns have, and last the code for no word; and whether any row has none."""
        used = np.zeros(len(self._words) + 1, bool)
        for blocks in self._scanner.blocks:
            for column in (block[name] for block in blocks for name in names if name in block):
                used[column] = True
        words = np.flatnonzero(used[:-1])
        codes = np.full(len(used), NONE, np.int32)
        decoded = decode([self._words[word] for word in words.tolist()])
        codes[words] = self._whole.strings.encode(decoded, len(words))
        return codes, bool(used[-1])

    def _decode_id(self, value: int) -> int | str | None:
        """A process or thread id as the text has it."""
        if value == at.NOTHING:
            return None
        return _decode_string(self._words[value - at.STRING]) if value < at.STRING // 2 else value

    def _recode(self, kind: str, block: Rows) -> Rows:
        recoded = {"event_index": block["event_index"] + self._first_index}
        if kind == c.COMMS:
            recoded |= {name: self._labels[block[name]] for name in c.LABELS}
        else:
            recoded |= {"thread": self._threads[block["thread"]], "name": self._names[block["name"]]}
        if kind == c.OPS:
            recoded |= {name: self._texts[block[name]] for name in c.TEXTS}
        recoded |= {name: self._decode_numbers(block[name]) for name in c.NUMBERS.get(kind, {})}
        return block | recoded

    def _decode_numbers(self, column: IntArray) -> IntArray:
        """Numbers; those that the file holds as text are parsed."""
        texts = (column >= at.STRING) & (column < at.STRING // 2)
        if texts.any():
            words, which = np.unique(column[texts] - at.STRING, return_inverse=True)
            column[texts] = parse_integers(_decode_strings([self._words[word] for word in words.tolist()]))[which]
        return column
