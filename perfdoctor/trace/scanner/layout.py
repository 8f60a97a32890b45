"""Constants that both halves of the scanner, Python and compiled, share: codes, slots of a record, control blocks."""

from __future__ import annotations

from perfdoctor.trace.arrays import LIMIT_NS

PAD = 128
"""Zero bytes that follow the text, so that it can be read 64 bytes at a time."""

MOST_KEYS, LONGEST_KEY = 512, PAD // 2
"""Keys that are numbered, and how long they may be. Others are unknown, and so are numbered ones that no plan has."""

# Why the scanner stopped; minus an address, which is far below, says where it could not go on.
MORE, CLOSED, REACHED, IRREGULAR, GROW, CLASSIFY, FULL, FAULT = range(-1, -9, -1)

# What the compiled code can be asked for.
SCAN, INTERN, REHASH, NESTING = range(4)

# What to do with the value of a key.
SKIP, TAG, WORD, NUMBER, TIME, TEXT, PRODUCT, INSIDE = range(8)
"""Nothing; intern as a tag (phase and category); intern a string; an integer or an interned string; microseconds;
intern the JSON text of any value; the product of a list of positive integers; go on with the keys inside."""

# Slots of the record that an event is read into. The columns of arguments come after them. ARGUMENTS is 1 while these
# are read, SEEN has a bit for each slot whose key has come up, BEFORE is the number of the last key.
PHASE, CATEGORY, ORDER, MARK, START, DURATION, NAME, PID, TID, PAIR, ARGUMENTS, SEEN, BEFORE, FIRST_FREE = range(14)

NONE = -1
STRING = -(1 << 62)
"""What stands for an interned string in a column of numbers: its id is added to this."""
NOTHING = STRING - 1
"""What stands for no value in the slots of times and of process and thread ids."""
LIMIT_US = LIMIT_NS // 1000

# Three numbers for each tag: whether events of this phase are complete, the kind of this category, and the mark of its
# rows.
VERDICTS = 3
UNKNOWN, PASSED, COMPLETE, HALF = -2, 0, 1, 2

# The control block: arguments of the compiled code, its results from "position" on, and behind them the record.
CONTROL = (
    "text", "size", "begin", "end", "last", "stop", "keys", "words", "tags", "pairs", "actions", "follows", "blank",
    "slots", "common", "aside", "verdicts", "sources", "columns", "rows", "batch", "filled", "position", "seen",
    "phases",
)  # fmt: skip

TABLE = ("hashes", "ids", "mask", "offsets", "arena", "room", "count")
"""The control block of a table of interned strings."""

NEST = ("start", "end", "lane", "count", "parent", "top", "asked", "asked_lane", "questions", "found")
"""The control block of nesting: events by start, longest first, and instants in their order."""
