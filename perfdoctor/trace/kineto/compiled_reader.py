"""The fast reader: plain events go through the compiled scanner, everything else through the reference's code.

So what is odd has one meaning, whichever reader meets it: an event that the scanner does not take is parsed by `Walk`
and judged by `Columns`, like every event of the reference reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array
from perfdoctor.trace.kineto import event_columns as c
from perfdoctor.trace.kineto.argument_values import integers, json_texts
from perfdoctor.trace.kineto.event_columns import Columns
from perfdoctor.trace.kineto.event_walker import CutError, Walk, parse_list, parse_value
from perfdoctor.trace.scanner import layout as at
from perfdoctor.trace.scanner.scan import Column, Plan, Rows, Scanner
from perfdoctor.trace.scanner.window import Window
from perfdoctor.trace.tables.model import KERNEL

_KINDS = (c.GPU, c.CALLS, c.OPS, c.RANGES, c.GPU_RANGES, c.FRAMES, c.SYNCS, c.COMMS)
_EVERY_KIND = {
    "start_ns": (at.START, False),
    "dur_ns": (at.DURATION, False),
    "name": (at.NAME, True),
    "thread": (at.PAIR, True),
    "place": (at.ORDER, False),
}
_TEXTS_OF: dict[str, dict[str, tuple[str, ...]]] = {c.OPS: c.TEXTS, c.COMMS: c.LABELS}
_PHASES = {b"X": at.COMPLETE, b"B": at.HALF, b"E": at.HALF}
_ODD_AT_ONCE = 10_000
_PATIENCE_S = 0.05


def _plan() -> Plan:
    """The plan for PyTorch's traces, from the tables of `columns`."""
    usual = [*sorted({name for kind in _KINDS[:-1] for name in c.NUMBERS.get(kind, {})}), *c.TEXTS, "blocks"]
    fields = [*usual, *c.LABELS, *c.NUMBERS[c.COMMS]]
    slots = {name: at.FIRST_FREE + number for number, name in enumerate(fields)}
    told: list[tuple[int, dict[str, tuple[str, ...]]]] = [(at.NUMBER, numbers) for numbers in c.NUMBERS.values()] + [
        (at.TEXT, c.TEXTS),
        (at.WORD, c.LABELS),
    ]
    arguments = {
        spelling: (action, slots[name])
        for action, columns in told
        for name, spellings in columns.items()
        for spelling in spellings
    }
    arguments[c.GRID] = at.PRODUCT, slots["blocks"]
    kinds = []
    for kind in _KINDS:
        kept = _EVERY_KIND if kind != c.COMMS else {"place": _EVERY_KIND["place"]}
        kept = kept | {name: (slots[name], False) for name in c.NUMBERS.get(kind, {})}
        kept |= {name: (slots[name], True) for name in _TEXTS_OF.get(kind, {})}
        if kind == c.GPU:
            kept |= {"kind": (at.MARK, True), "blocks": (slots["blocks"], False)}
        kinds.append(kept)
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
    return Plan(keys, arguments, at.FIRST_FREE + len(fields), common, tuple(kinds), _judge)


def _judge(tag: bytes) -> tuple[int, int, int]:
    """What a tag means as a phase, as a category, and the mark of its rows."""
    category = _string(tag).lower()
    kind = c.KIND_OF_CATEGORY.get(category)
    number = at.NONE if kind is None else _KINDS.index(kind)
    return (
        _PHASES.get(_string(tag).encode(errors="replace"), at.PASSED),
        number,
        c.ITEM_OF_CATEGORY.get(category, KERNEL),
    )


PLAN = _plan()
"""What the scanner keeps of PyTorch's traces."""


def _string(body: bytes) -> str:
    """The text of a JSON string, given without its quotation marks."""
    return str(parse_value(b'"' + body + b'"'))


def _strings(bodies: list[bytes]) -> list[str]:
    """The texts of JSON strings, all at once where that goes."""
    texts = parse_list(b",".join(b'"' + body + b'"' for body in bodies))
    return texts if texts is not None and len(texts) == len(bodies) else [_string(body) for body in bodies]


def _values(texts: list[bytes]) -> list[bytes | None]:
    """JSON texts as `columns` writes them."""
    values = parse_list(b",".join(texts))
    if values is None:
        values = [parse_value(text) for text in texts]
    return json_texts(values)


class Part(Walk):
    """One run of a text's events, scanned as far as they are plain.

    Attributes:
        last: Place in the text at which the run should end; None for the end of the list.
        columns: What the events say that the scanner did not take.
        ended: Whether the list ended in this run; `complete` is False when it is cut short there.
        abandoned: Set by another thread when nobody wants this run any more.
    """

    def __init__(self, window: Window, last: int | None = None) -> None:
        super().__init__(window)
        self.scanner = Scanner(PLAN)
        self.columns = Columns()
        self.last = last
        self.ended = self.abandoned = False
        self._odd: list[Any] = []
        self._places: list[int] = []

    @property
    def met_last(self) -> bool:
        """Whether the run ended exactly where it should, between two events."""
        return self.complete and not self.ended and self.position == self.last

    def scan(self) -> None:
        """Read events up to the end of the list, or to `last`, or as far as the text goes."""
        try:
            while not self.ended and not self.abandoned:
                stopped = self.scanner.scan(self.window, self.last)
                if stopped == at.REACHED:
                    break
                if stopped == at.CLOSED:
                    self.window.position += 1
                    self.ended = True
                elif stopped == at.ODD or not self.window.more():
                    self.ended = self._one_odd()
        except CutError:
            self.complete = False
        self._take_odd()

    def _one_odd(self) -> bool:
        """Read one element of the list in Python; returns whether the list ended instead."""
        batch: list[Any] = []
        try:
            return self._element(batch)
        finally:
            for event in batch:
                self._odd.append(event)
                self._places.append(self.scanner.seen)
                self.scanner.seen += 1
            if len(self._odd) >= _ODD_AT_ONCE:
                self._take_odd()

    def _take_odd(self) -> None:
        if self._odd:
            self.columns.add(self._odd, self._places)
            self._odd, self._places = [], []


class FastReader(Walk):
    """Reads a text into columns; an iterator over no lists of events at all, as everything is taken.

    Args:
        window: The text.
        split: Opens the windows for the other parts of the list, once it is known where the list begins. A part of the
            text may begin in the middle of anything: where it does, it is found out and read again.
        waiting: Called now and then while other threads work.
    """

    def __init__(
        self,
        window: Window,
        split: Callable[[int], list[Window]] | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(window)
        self._waiting = waiting
        self.parts: list[Part] = []
        self._split = split

    def columns(self) -> Columns:
        """Read everything."""
        for _ in self:
            raise AssertionError("the fast reader takes events itself")
        return gather(self.parts)

    def _array(self) -> Iterator[list[Any]]:
        self.found = True
        self._expect(b"[")
        windows = [self.window] + (self._split(self.position) if self._split and not self.parts else [])
        lasts = [window.base for window in windows[1:]] + [None]
        parts = [Part(window, last) for window, last in zip(windows, lasts, strict=True)]
        for part in _scanned(parts, self._waiting):
            self.parts.append(part)
            self.dropped += part.dropped
            self.window = part.window
            if not part.complete:
                raise CutError
        yield from ()


def _scanned(parts: list[Part], waiting: Callable[[], None]) -> Iterator[Part]:
    """The parts that make up the list, in order, each scanned by a thread of its own.

    The first part begins where the list does. Each next one counts only if the one before ended exactly where it
    begins; else that cut was none between two events, and the part before goes on to the end alone.
    """
    with ThreadPoolExecutor(max(len(parts) - 1, 1), "perfdoctor-scan") as pool:
        later = [pool.submit(part.scan) for part in parts[1:]]
        try:
            parts[0].scan()
            for part, done in zip(parts, [None, *later], strict=True):
                while done is not None and not wait((done,), _PATIENCE_S).done:
                    waiting()
                if done is not None:
                    done.result()
                if not part.met_last and part.complete and not part.ended:
                    _abandon(parts)
                    part.abandoned, part.last = False, None
                    part.scan()
                yield part
                if not part.met_last:
                    return
        finally:
            _abandon(parts)


def _abandon(parts: list[Part]) -> None:
    for part in parts:
        part.abandoned = True


def gather(parts: list[Part]) -> Columns:
    """The columns of the parts of one text, in their order."""
    whole = Columns(workers=max(len(parts), 1))
    place = 0
    for part in parts:
        scanner = part.scanner
        scanner.finish()
        part.columns.seen = scanner.seen
        part.columns.phases += scanner.phases
        whole.absorb(part.columns, place)
        _Moved(part, whole, place).add_all()
        place += scanner.seen
    return whole


class _Moved:
    """Takes the blocks of a scanner over into columns: its codes become theirs."""

    def __init__(self, part: Part, whole: Columns, place: int) -> None:
        self._scanner = part.scanner
        self._whole = whole
        self._place = place
        self._words = part.scanner.words.texts()
        threads = [whole.pairs.number(self._id(pid), self._id(tid)) for pid, tid in part.scanner.pairs.pairs()]
        self._threads = np.array(threads, np.int32)
        self._names, unnamed = self._codes("name", decode=_strings)
        if unnamed:
            self._names[-1] = whole.strings[""]
        self._texts, _ = self._codes(*c.TEXTS, decode=_values)
        self._labels, _ = self._codes(*c.LABELS, decode=_strings)

    def add_all(self) -> None:
        """Take over every block."""
        for kind, blocks in zip(_KINDS, self._scanner.blocks, strict=True):
            for number, block in enumerate(blocks):
                self._whole.add_block(kind, self._moved(kind, block))
                blocks[number] = {}
            blocks.clear()

    def _codes(self, *names: str, decode: Callable[[list[bytes]], list[Any]]) -> tuple[Int32Array, bool]:
        """The code of each word that some columns have, at the end the one for no word; and whether they need that."""
        used = np.zeros(len(self._words) + 1, bool)
        for blocks in self._scanner.blocks:
            for column in (block[name] for block in blocks for name in names if name in block):
                used[column] = True
        words = np.flatnonzero(used[:-1])
        codes = np.full(len(used), NONE, np.int32)
        decoded = decode([self._words[word] for word in words.tolist()])
        codes[words] = self._whole.strings.column(decoded, len(words))
        return codes, bool(used[-1])

    def _id(self, value: int) -> int | str | None:
        """A process or thread id as the text has it."""
        if value == at.NOTHING:
            return None
        return _string(self._words[value - at.STRING]) if value < at.STRING // 2 else value

    def _moved(self, kind: str, block: Rows) -> Rows:
        moved = {"place": block["place"] + self._place}
        if kind == c.COMMS:
            moved |= {name: self._labels[block[name]] for name in c.LABELS}
        else:
            moved |= {"thread": self._threads[block["thread"]], "name": self._names[block["name"]]}
        if kind == c.OPS:
            moved |= {name: self._texts[block[name]] for name in c.TEXTS}
        moved |= {name: self._numbers(block[name]) for name in c.NUMBERS.get(kind, {})}
        return block | moved

    def _numbers(self, column: Column) -> Column:
        """Numbers, with what the file has as text read as one."""
        texts = (column >= at.STRING) & (column < at.STRING // 2)
        if texts.any():
            words, which = np.unique(column[texts] - at.STRING, return_inverse=True)
            column[texts] = integers(_strings([self._words[word] for word in words.tolist()]))[which]
        return column
