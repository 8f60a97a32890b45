"""JSON bytes become columns of numbers: one pass, no Python object per event.

Nothing here knows of PyTorch: a `Plan` says which keys to read, how to read their values, and which events make rows of
which kind. The compiled code does the work; this module owns its memory, makes room, and classifies new tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import Int64Array, IntArray
from perfdoctor.trace.scanner import layout as at
from perfdoctor.trace.scanner import scanner_code
from perfdoctor.trace.scanner.layout import PAD
from perfdoctor.trace.scanner.text_window import TextWindow

Rows: TypeAlias = dict[str, IntArray]

BATCH = 8192  # rows of a kind that are collected before they are copied out: the buffers stay in the cache
_NEVER = 1 << 62
_KEY_BITS = 11  # places for four times as many keys as are numbered


class Plan(NamedTuple):
    """Which keys and events are read, and how.

    Attributes:
        keys: Keys of an event, with the action for their values and the slot that the result goes to.
        arguments: The same for the keys of the object under a key whose action is INSIDE.
        slots: Number of slots.
        common: The slots from this one on are filled by few events: by those that fill this one, which make a row of
            the last kind too, beside that of their own.
        kinds: For each kind the columns, with the slot that each is taken from, and whether they fit into 32 bits.
        classify: For the text of a tag its meaning as a phase (PASSED, COMPLETE or HALF), as a category (the number of
            a kind, or NONE), and the mark of its rows.
        optional_duration: Whether an event without a duration makes a row, as one that takes no time.
    """

    keys: Mapping[str, tuple[int, int]]
    arguments: Mapping[str, tuple[int, int]]
    slots: int
    common: int
    kinds: tuple[Mapping[str, tuple[int, bool]], ...]
    classify: Callable[[bytes], tuple[int, int, int]]
    optional_duration: bool = False


class Interner:
    """A table of byte strings with their ids, counted up as they are first seen."""

    def __init__(self, bits: int = 12, room: int = 1 << 16) -> None:
        self._hashes = np.zeros(1 << bits, np.int64)
        self._ids = np.zeros(1 << bits, np.int64)
        self._offsets = np.zeros((1 << bits) // 2 + 2, np.int64)
        self._arena = np.zeros(room, np.uint8)
        self._count = np.zeros(1, np.int64)
        self.control = np.zeros(len(at.TABLE), np.int64)
        self._write_control()

    def __len__(self) -> int:
        return int(self._count[0])

    @property
    def capacity(self) -> int:
        """The most strings that the table can ever hold as it is."""
        return len(self._offsets) - 1

    def make_room(self, least: int) -> None:
        """Grow if the table might refuse a string of that many bytes."""
        count = len(self)
        used = int(self._offsets[count]) + least + PAD
        if 2 * (count + 2) > len(self._ids):
            old = self._hashes, self._ids
            self._hashes, self._ids = (np.zeros(4 * len(each), np.int64) for each in old)
            scanner_code.enter(at.REHASH, *(each.ctypes.data for each in (*old, self._hashes, self._ids)), len(old[0]))
            self._offsets = _extend(self._offsets, len(self._ids) // 2 + 2)
        if used > len(self._arena):
            self._arena = _extend(self._arena, 2 * used)
        self._write_control()

    def texts(self, first: int = 0) -> list[bytes]:
        """The strings from an id on."""
        count = len(self)
        start = int(self._offsets[first])
        arena = self._arena[start : int(self._offsets[count])].tobytes()
        ends = (self._offsets[first : count + 1] - start).tolist()
        return [arena[begin:end] for begin, end in pairwise(ends)]

    def pairs(self) -> list[tuple[int, int]]:
        """The strings as pairs of numbers, for a table of such."""
        return [(a, b) for a, b in np.frombuffer(b"".join(self.texts()), np.int64).reshape(-1, 2).tolist()]

    def _write_control(self) -> None:
        """Write the addresses and sizes into the control block."""
        parts = (self._hashes, self._ids, self._offsets, self._arena, self._count)
        hashes, ids, offsets, arena, count = (part.ctypes.data for part in parts)
        self.control[:] = hashes, ids, len(self._ids) - 1, offsets, arena, len(self._arena), count


def _extend(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.zeros(size, array.dtype)
    longer[: len(array)] = array
    return longer


class Scanner:
    """The rows of one run of events, in blocks by kind.

    Attributes:
        blocks: For each kind of the plan its rows so far. Every column named in the plan is there.
        words: The interned strings and JSON texts. A column of strings holds their ids, or -1; one of numbers holds
            `layout.STRING` + id where the text has a string.
        pairs: The interned pairs of process and thread id, both `layout.NOTHING` where there is none.
        seen: Events read, wanted or not; `phases` of them have a phase.
    """

    def __init__(self, plan: Plan, batch: int = BATCH) -> None:
        self._plan = plan
        self._batch = batch
        self.blocks: list[list[Rows]] = [[] for _ in plan.kinds]
        self.words, self.pairs = Interner(14, 1 << 20), Interner(8, 1 << 14)
        self._tags, self._keys = Interner(8, 1 << 12), Interner(_KEY_BITS, at.MOST_KEYS * (at.LONGEST_KEY + 8) + PAD)
        self._actions = self._key_table()
        self._follows = np.full(2 * (at.MOST_KEYS + 1), -1, np.int64)
        self._blank = np.full(plan.slots, at.NONE, np.int64)
        self._blank[[at.START, at.DURATION, at.PID, at.TID]] = at.NOTHING
        self._blank[[at.ARGUMENTS, at.SEEN]] = 0
        if plan.optional_duration:
            self._blank[at.DURATION] = 0
        self._blank[at.BEFORE] = at.MOST_KEYS
        self._verdicts = np.empty((0, at.VERDICTS), np.int64)
        width = max(map(len, plan.kinds))
        self._sources = np.full((len(plan.kinds), width), -1, np.int64)
        for kind, columns in enumerate(plan.kinds):
            self._sources[kind, : len(columns)] = [slot for slot, _ in columns.values()]
        self._rows = np.empty((len(plan.kinds), width, batch), np.int64)
        self._filled = np.zeros(len(plan.kinds), np.int64)
        self._control = np.concatenate((np.zeros(len(at.CONTROL), np.int64), self._blank))
        self._classified = 0
        self._make_room(0)

    @property
    def seen(self) -> int:
        """Events read, wanted or not."""
        return int(self._control[at.CONTROL.index("seen")])

    @seen.setter
    def seen(self, count: int) -> None:
        self._control[at.CONTROL.index("seen")] = count

    @property
    def phases(self) -> int:
        """Events that have a phase."""
        return int(self._control[at.CONTROL.index("phases")])

    @property
    def tags(self) -> list[bytes]:
        """The phases and categories by their ids, as the slots PHASE and CATEGORY hold them."""
        return self._tags.texts()

    def scan(self, window: TextWindow, last: int | None = None) -> int:
        """Read events from the window's position, as far as they are plain; moves the position.

        Args:
            window: The text.
            last: Place in the text at which to stop, between two events.

        Returns:
            MORE at the end of the window's text, CLOSED at the bracket that ends the list, REACHED at or behind `last`,
            IRREGULAR at what is no plain event.
        """
        while True:
            stopped = self._run(window, _NEVER if last is None else last - window.base)
            if stopped == at.FULL:
                self._flush(only_full=True)
            elif stopped == at.GROW:
                self._make_room(window.end - window.position)
            elif stopped == at.CLASSIFY:
                self._classify_tags()
            else:
                return stopped

    def finish(self) -> None:
        """Copy out the last rows."""
        self._flush(only_full=False)

    def _run(self, window: TextWindow, last: int) -> int:
        text = window.array
        arguments = (text.ctypes.data, len(text), window.position, window.end, last)
        self._control[: len(arguments)] = arguments
        stopped = scanner_code.enter(at.SCAN, self._control.ctypes.data)
        if stopped == at.FAULT:
            raise AssertionError("the scanner was given a window without zero bytes behind its text")
        window.position = int(self._control[at.CONTROL.index("position")])
        return int(stopped)

    def _key_table(self) -> Int64Array:
        """Action and slot of each known key, for events and for their arguments."""
        names = dict.fromkeys((*self._plan.keys, *self._plan.arguments))
        for name in names:
            text = np.frombuffer(name.encode() + bytes(PAD), np.uint8)
            scanner_code.enter(
                at.INTERN, text.ctypes.data, text.ctypes.data + len(name), self._keys.control.ctypes.data
            )
        table = np.full((2, at.MOST_KEYS + 1, 2), (at.SKIP, 0), np.int64)
        for level, keys in enumerate((self._plan.keys, self._plan.arguments)):
            for number, name in enumerate(names):
                table[level, number] = keys.get(name, (at.SKIP, 0))
        if (table[..., 1] >= min(self._plan.slots, 63)).any():
            raise AssertionError("a plan has a slot that a record has not")
        return table

    def _make_room(self, least: int) -> None:
        """Grow every table that has no room for a string of that many bytes, and write all addresses down."""
        for table in (self.words, self.pairs, self._tags):
            table.make_room(least)
        verdicts = np.full((self._tags.capacity, at.VERDICTS), at.UNKNOWN, np.int64)
        verdicts[: self._classified] = self._verdicts[: self._classified]
        self._verdicts = verdicts
        arrays = {
            "keys": self._keys.control, "words": self.words.control, "tags": self._tags.control,
            "pairs": self.pairs.control, "actions": self._actions, "follows": self._follows, "blank": self._blank,
            "verdicts": self._verdicts, "sources": self._sources, "rows": self._rows, "filled": self._filled,
        }  # fmt: skip
        arguments = {name: array.ctypes.data for name, array in arrays.items()}
        arguments |= {"slots": self._plan.slots, "common": self._plan.common, "aside": len(self._plan.kinds) - 1}
        for name, value in (arguments | {"columns": self._rows.shape[1], "batch": self._batch}).items():
            self._control[at.CONTROL.index(name)] = value

    def _classify_tags(self) -> None:
        """Classify the tags that are new since the last time."""
        for number, tag in enumerate(self._tags.texts(self._classified), self._classified):
            self._verdicts[number] = self._plan.classify(tag)
        self._classified = len(self._tags)

    def _flush(self, *, only_full: bool) -> None:
        """Copy rows out of the buffers."""
        for kind, columns in enumerate(self._plan.kinds):
            count = int(self._filled[kind])
            if not count or (only_full and count < self._batch):
                continue
            rows = self._rows[kind]
            self.blocks[kind].append(
                {
                    name: rows[at_row, :count].astype(np.int32 if short else np.int64)
                    for at_row, (name, (_, short)) in enumerate(columns.items())
                }
            )
            self._filled[kind] = 0


def warm() -> None:
    """Compile, or load what was compiled before, so that nothing later has to wait for it."""
    scanner_code.load()
