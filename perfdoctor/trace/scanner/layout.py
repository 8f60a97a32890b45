"""What Python and the C library agree on: codes, slots of a record, structures. `core/perfdoctor.h` has the same."""

from __future__ import annotations

import ctypes

import numpy as np

PAD = 128
"""Zero bytes that follow the text, so that it can be read 64 bytes at a time."""

STEPS, STEP_BYTES = 2048, 128
"""What the library notes of the layout of events: so many steps of templates, of so many bytes each."""
MAX_SLOTS = 64
"""Values of an event."""

# Why scanning or copying stopped.
MORE, CLOSED, REACHED, IRREGULAR, GROW, CLASSIFY, FULL, FAULT = range(-1, -9, -1)

# What to do with the value of a key.
SKIP, TAG, WORD, NUMBER, TIME, TEXT, PRODUCT, INSIDE = range(8)
"""Nothing; intern as a tag (phase and category); intern a string; an integer or an interned string; microseconds;
intern the JSON text of any value; the product of a list of positive integers; go on with the keys inside."""

# Slots of the record that an event is read into. The columns of arguments come after them.
PHASE, CATEGORY, ORDER, MARK, START, DURATION, NAME, PID, TID, PAIR, ARGUMENTS, FIRST_FREE = range(12)

NONE = -1
STRING = -(1 << 62)
"""What stands for an interned string in a column of numbers: its id is added to this."""
NOTHING = STRING - 1
"""What stands for no value in the slots of times and of process and thread ids."""

# Three numbers for each tag: what events of this phase are, the kind of this category, and the mark of its
# rows.
VERDICTS = 3
UNKNOWN, PASSED, COMPLETE, HALF, INSTANT = -2, 0, 1, 2, 3

PLACE = np.dtype([("hash", np.uint64), ("id", np.int64)])
"""A place of a hash table."""


def _structure(**fields: type) -> list[tuple[str, type]]:
    return list(fields.items())


_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class Table(ctypes.Structure):
    """`perfdoctor_table`: a table of interned strings."""

    _fields_ = _structure(
        places=_ADDRESS, mask=_NUMBER, offsets=_ADDRESS, arena=_ADDRESS, room=_NUMBER, count=_NUMBER, secrets=_ADDRESS
    )  # fmt: skip


class Scan(ctypes.Structure):
    """`perfdoctor_scan`: one run of the scanner; `position`, `seen` and `phases` are results."""

    _fields_ = _structure(
        text=_ADDRESS, size=_NUMBER, begin=_NUMBER, end=_NUMBER, last=_NUMBER,
        keys=_ADDRESS, words=_ADDRESS, tags=_ADDRESS, pairs=_ADDRESS, uses=_ADDRESS,
        steps=_ADDRESS, learned=_NUMBER,
        blank=_ADDRESS, slots=_NUMBER, common=_NUMBER, aside=_NUMBER, instants=_NUMBER, verdicts=_ADDRESS,
        sources=_ADDRESS, columns=_NUMBER, rows=_ADDRESS, batch=_NUMBER, filled=_ADDRESS, record=_ADDRESS,
        position=_NUMBER, seen=_NUMBER, phases=_NUMBER,
    )  # fmt: skip


class Copy(ctypes.Structure):
    """`perfdoctor_copy`: one run of the copier; `text`, `out` and `next` are moved."""

    _fields_ = _structure(
        text=_ADDRESS, stop=_ADDRESS, out=_ADDRESS, next=_NUMBER, moved=_ADDRESS,
        changes=_NUMBER, offset_ns=_NUMBER, pid_shift=_NUMBER, id_shift=_NUMBER,
    )  # fmt: skip


class Nest(ctypes.Structure):
    """`perfdoctor_nest`: events by start, longest first, and instants in their order."""

    _fields_ = _structure(
        start=_ADDRESS, end=_ADDRESS, lane=_ADDRESS, count=_NUMBER, parent=_ADDRESS, top=_ADDRESS,
        asked=_ADDRESS, asked_lane=_ADDRESS, questions=_NUMBER, found=_ADDRESS,
    )  # fmt: skip
