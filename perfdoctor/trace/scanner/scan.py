"""JSON bytes become columns of numbers: one pass, no Python object per event.

Nothing here knows of PyTorch: a `Plan` says which keys to read, how to read their values, and which events make rows of
which kind. The C library does the work; this module owns its memory, makes room, and classifies new tags.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import IntArray
from perfdoctor.trace.scanner import layout as at
from perfdoctor.trace.scanner.core_library import load_library
from perfdoctor.trace.scanner.layout import PAD
from perfdoctor.trace.scanner.text_window import TextWindow

Rows: TypeAlias = dict[str, IntArray]

# Rows of a kind that are collected before they are copied out: the buffers stay in the cache. With a power of two all
# columns of a row would compete for one set of its lines.
BATCH = 4104
_NEVER = 1 << 62
# For the hashes of this process: with known ones somebody could write a trace of strings that all collide.
_SECRETS = np.frombuffer(os.urandom(64), np.uint64)
_SPARE = 256  # bytes of an arena that stay free: strings are written and compared 64 bytes at a time


class Plan(NamedTuple):
    """Which keys and events are read, and how.

    Attributes:
        keys: Keys of an event, with the action for their values and the slot that the result goes to.
        arguments: The same for the keys of the object under a key whose action is INSIDE.
        slots: Number of slots.
        common: The slots from this one on are filled by few events: by those that fill this one, which make a row of
            the last kind too, beside that of their own.
        kinds: For each kind the columns, with the slot that each is taken from, and whether they fit into 32 bits.
        classify: For the text of a tag its meaning as a phase (PASSED, COMPLETE, HALF or INSTANT), as a category (the
            number of a kind, or NONE), and the mark of its rows.
        optional_duration: Whether an event without a duration makes a row, as one that takes no time.
        instants: The kind whose events are instants, which have no duration; NONE where there is none.
    """

    keys: Mapping[str, tuple[int, int]]
    arguments: Mapping[str, tuple[int, int]]
    slots: int
    common: int
    kinds: tuple[Mapping[str, tuple[int, bool]], ...]
    classify: Callable[[bytes], tuple[int, int, int]]
    optional_duration: bool = False
    instants: int = at.NONE


class Interner:
    """A table of byte strings with their ids, counted up as they are first seen.

    Attributes:
        table: The table as the library has it.
    """

    def __init__(self, bits: int = 12, room: int = 1 << 16) -> None:
        self._places = np.zeros(1 << bits, at.PLACE)
        self._offsets = np.zeros((1 << bits) // 2 + 2, np.int64)
        self._arena = np.zeros(room, np.uint8)
        self.table = at.Table()
        self._write_parts()

    def __len__(self) -> int:
        return int(self.table.count)

    @property
    def capacity(self) -> int:
        """The most strings that the table can ever hold as it is."""
        return len(self._offsets) - 1

    def intern(self, text: bytes) -> int:
        """The id of a string, for which there is room."""
        return int(load_library().perfdoctor_intern(text + bytes(PAD), len(text), ctypes.byref(self.table)))

    def make_room(self, size: int) -> None:
        """Grow if the table might refuse a string of that many bytes."""
        used = int(self._offsets[len(self)]) + size + _SPARE
        if 2 * (len(self) + 2) > len(self._places):
            old, self._places = self._places, np.zeros(4 * len(self._places), at.PLACE)
            load_library().perfdoctor_rehash(
                old.ctypes.data, len(old), self._places.ctypes.data, len(self._places) - 1
            )  # fmt: skip
            self._offsets = _extend(self._offsets, len(self._places) // 2 + 2)
        if used > len(self._arena):
            self._arena = _extend(self._arena, 2 * used)
        self._write_parts()

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

    def _write_parts(self) -> None:
        """Write down where the parts are, and how large."""
        table = self.table
        table.places, table.mask = self._places.ctypes.data, len(self._places) - 1
        table.offsets = self._offsets.ctypes.data
        table.arena, table.room = self._arena.ctypes.data, len(self._arena)
        table.secrets = _SECRETS.ctypes.data


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
        self._tags, self._keys = Interner(8, 1 << 12), Interner(8, 1 << 12)
        self._uses = self._number_keys()
        self._steps = np.zeros(at.STEPS * at.STEP_BYTES, np.uint8)
        self._blank = np.full(at.MAX_SLOTS, at.NONE, np.int64)
        self._blank[[at.START, at.DURATION, at.PID, at.TID]] = at.NOTHING
        if plan.optional_duration:
            self._blank[at.DURATION] = 0
        self._record = self._blank.copy()
        self._verdicts = np.empty((0, at.VERDICTS), np.int64)
        width = max(map(len, plan.kinds))
        self._sources = np.full((len(plan.kinds), width), -1, np.int64)
        for kind, columns in enumerate(plan.kinds):
            self._sources[kind, : len(columns)] = [slot for slot, _ in columns.values()]
        self._rows = np.empty((len(plan.kinds), width, batch), np.int64)
        self._filled = np.zeros(len(plan.kinds), np.int64)
        self._run_of = at.Scan()
        self._classified = 0
        self._make_room(0)

    @property
    def seen(self) -> int:
        """Events read, wanted or not."""
        return int(self._run_of.seen)

    @seen.setter
    def seen(self, count: int) -> None:
        self._run_of.seen = count

    @property
    def phases(self) -> int:
        """Events that have a phase."""
        return int(self._run_of.phases)

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
            IRREGULAR at what is not a plain event.
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
        text, run = window.array, self._run_of
        run.text, run.size = text.ctypes.data, len(text)
        run.begin, run.end, run.last = window.position, window.end, last
        stopped = load_library().perfdoctor_run(ctypes.byref(run))
        if stopped == at.FAULT:
            raise AssertionError("the scanner was given a window without zero bytes behind its text")
        window.position = run.position
        return int(stopped)

    def _number_keys(self) -> npt.NDArray[np.int16]:
        """Action and slot of each known key, for events and for their arguments."""
        names = dict.fromkeys((*self._plan.keys, *self._plan.arguments))
        known = np.zeros((len(names), 2, 2), np.int16)
        for name in names:
            self._keys.make_room(len(name))
            number = self._keys.intern(name.encode())
            for level, keys in enumerate((self._plan.keys, self._plan.arguments)):
                known[number, level] = keys.get(name, (at.SKIP, 0))
        if (known[..., 1] >= min(self._plan.slots, at.MAX_SLOTS - 1)).any():
            raise AssertionError("a plan has a slot that a record has not")
        return known

    def _make_room(self, size: int) -> None:
        """Grow every table that has no room for a string of that many bytes, and write all addresses down."""
        for table in (self.words, self.pairs, self._tags):
            table.make_room(size)
        verdicts = np.full((self._tags.capacity, at.VERDICTS), at.UNKNOWN, np.int64)
        verdicts[: self._classified] = self._verdicts[: self._classified]
        self._verdicts = verdicts
        run = self._run_of
        interners = {"keys": self._keys, "words": self.words, "tags": self._tags, "pairs": self.pairs}
        for name, interner in interners.items():
            setattr(run, name, ctypes.addressof(interner.table))
        for name in ("uses", "steps", "blank", "verdicts", "sources", "rows", "filled", "record"):
            setattr(run, name, getattr(self, f"_{name}").ctypes.data)
        run.slots, run.common, run.aside = self._plan.slots, self._plan.common, len(self._plan.kinds) - 1
        run.instants = self._plan.instants
        run.columns, run.batch = self._rows.shape[1], self._batch

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
