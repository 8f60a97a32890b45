"""Events become rows: the keys that a plan knows, the record of their values, and the column buffers of each kind."""

from __future__ import annotations

from perfdoctor.trace.arrays import LIMIT_NS
from perfdoctor.trace.scanner.intern_words import ARENA, OFFSETS, SIZE, find, hashed, interned, put, rehash, same
from perfdoctor.trace.scanner.intrinsics import byte, compiled, four, load, store
from perfdoctor.trace.scanner.json_grammar import (
    CLOSE,
    CLOSE_LIST,
    COMMA,
    NULL,
    OPEN,
    OPEN_LIST,
    QUOTE,
    key_end,
    printed_end,
    spaces_end,
    value_end,
    value_of,
)
from perfdoctor.trace.scanner.layout import (
    ARGUMENTS,
    BEFORE,
    CATEGORY,
    CLASSIFY,
    CLOSED,
    COMPLETE,
    CONTROL,
    DURATION,
    FAULT,
    FULL,
    HALF,
    INSIDE,
    INTERN,
    IRREGULAR,
    LONGEST_KEY,
    MARK,
    MORE,
    MOST_KEYS,
    NESTING,
    NONE,
    NOTHING,
    NUMBER,
    ORDER,
    PAD,
    PAIR,
    PHASE,
    PID,
    PRODUCT,
    REACHED,
    SCAN,
    SEEN,
    SKIP,
    START,
    STRING,
    TAG,
    TIME,
    UNKNOWN,
    VERDICTS,
    WORD,
)
from perfdoctor.trace.scanner.nest_events import nest
from perfdoctor.trace.scanner.store_values import store_integer, store_product, store_text, store_time, store_word

(
    _AT_TEXT, _AT_SIZE, _AT_BEGIN, _AT_END, _AT_LAST, _AT_STOP, _AT_KEYS, _AT_WORDS, _AT_TAGS, _AT_PAIRS, _AT_ACTIONS,
    _AT_FOLLOWS, _AT_BLANK, _AT_SLOTS, _AT_COMMON, _AT_ASIDE, _AT_VERDICTS, _AT_SOURCES, _AT_COLUMNS, _AT_ROWS,
    _AT_BATCH, _AT_FILLED, _AT_POSITION, _AT_SEEN, _AT_PHASES,
) = range(0, 8 * len(CONTROL), 8)  # fmt: skip
_RECORD = 8 * len(CONTROL)
_VERDICT_SIZE = 8 * VERDICTS
_NEAR = 16  # a word or number that ends this close to the end of the text may go on beyond it


@compiled
def _is_near(failed: int, end: int) -> bool:
    """Whether reading failed so close to the end of the text that more of it may help."""
    return -failed + _NEAR >= end


@compiled
def _skipped(p: int, end: int) -> int:
    """The end of a value at p that is not wanted."""
    q = value_end(p, end)
    if q > 0 or _is_near(q, end):
        return q
    printed = printed_end(p)
    return printed if printed > 0 else q


@compiled
def _take(p: int, action: int, slot: int, t: int) -> int:
    """Read the value at p as the action says."""
    c = byte(p)
    at = t + _RECORD + 8 * slot
    if action == TIME:
        return store_time(p, at)
    if action == INSIDE:
        return _open(p, t) if c == OPEN else _skipped(p, load(t + _AT_STOP))
    if action == TAG:
        return store_word(p, load(t + _AT_STOP), at, 0, load(t + _AT_TAGS)) if c == QUOTE else -p
    if c == QUOTE and action in (WORD, NUMBER):
        return store_word(p, load(t + _AT_STOP), at, STRING if action == NUMBER else 0, load(t + _AT_WORDS))
    if action == WORD:
        return -p
    if action == PRODUCT and c == OPEN_LIST:
        return store_product(p, at)
    if four(p) == NULL:
        return p + 4
    if action == PRODUCT:
        return -p
    return store_integer(p, at) if action == NUMBER else store_text(p, load(t + _AT_STOP), at, load(t + _AT_WORDS))


@compiled
def _open(p: int, t: int) -> int:
    """Step into the arguments whose brace is at p: to the first key, or behind them where they are empty."""
    p = spaces_end(p + 1)
    if byte(p) == CLOSE:
        return p + 1
    store(t + _RECORD + 8 * ARGUMENTS, 1)
    return p


@compiled
def _begin_of_key(key: int, t: int) -> int:
    """Where the text of a numbered key begins in its table's arena."""
    return load(load(load(t + _AT_KEYS) + OFFSETS) + 8 * key)


@compiled
def _length_of_key(key: int, t: int) -> int:
    """The bytes of a numbered key."""
    return _begin_of_key(key + 1, t) - _begin_of_key(key, t)


@compiled
def _key(p: int, guess: int, t: int) -> int:
    """The number of the key at p: the guess if it fits, else looked up; MOST_KEYS where there is no room for it."""
    if guess >= 0 and byte(p) == QUOTE:
        text, length = load(load(t + _AT_KEYS) + ARENA) + _begin_of_key(guess, t), _length_of_key(guess, t)
        if byte(p + 1 + length) == QUOTE and same(p + 1, text, length):
            return guess
    close = key_end(p, load(t + _AT_STOP))
    if close < 0:
        return close
    # A longer one than the zeros behind the text is never compared with a guess.
    if close - p > LONGEST_KEY:
        return MOST_KEYS
    mixed = hashed(p + 1, close)
    number = find(p + 1, close, mixed, load(t + _AT_KEYS))
    if number < 0 and load(load(load(t + _AT_KEYS) + SIZE)) < MOST_KEYS:
        number = put(p + 1, close, mixed, -number - 1, load(t + _AT_KEYS))
    return number if number >= 0 else MOST_KEYS


@compiled
def _member(p: int, inside: int, t: int) -> int:
    """Read the member whose key is at p. An event with the same known key twice is irregular.

    Events are alike: what followed the key before the last time is what follows it now, nearly always.
    """
    before = load(t + _AT_FOLLOWS) + 8 * (inside * (MOST_KEYS + 1) + load(t + _RECORD + 8 * BEFORE))
    guess = load(before)
    key = _key(p, guess, t)
    if key < 0:
        return key
    store(t + _RECORD + 8 * BEFORE, key)
    if key == MOST_KEYS:
        value = value_of(key_end(p, load(t + _AT_STOP)))
    else:
        store(before, key)
        value = value_of(p + 1 + _length_of_key(key, t))
    if value < 0:
        return value
    entry = load(t + _AT_ACTIONS) + 16 * (inside * (MOST_KEYS + 1) + key)
    action, slot = load(entry), load(entry + 8)
    if action == SKIP:
        return _skipped(value, load(t + _AT_STOP))
    seen = load(t + _RECORD + 8 * SEEN)
    if seen & (1 << slot):
        return -p
    store(t + _RECORD + 8 * SEEN, seen | (1 << slot))
    return _take(value, action, slot, t)


@compiled
def _event(p: int, t: int) -> int:
    """Read the event whose brace is at p into the record."""
    inside = 0
    p = spaces_end(p + 1)
    if byte(p) == CLOSE:
        return p + 1
    while True:
        p = _member(p, inside, t)
        if p < 0:
            return p
        if load(t + _RECORD + 8 * ARGUMENTS) != inside:
            inside = 1
            continue
        p = spaces_end(p)
        if inside and byte(p) == CLOSE:
            inside = 0
            store(t + _RECORD + 8 * ARGUMENTS, 0)
            p = spaces_end(p + 1)
        if byte(p) == CLOSE:
            return p + 1
        if byte(p) != COMMA:
            return -p
        p = spaces_end(p + 1)


@compiled
def _commit(t: int, order: int) -> int:
    """Write the record as a row of its kind if it is wanted; 0, or a negative code."""
    phase = load(t + _RECORD + 8 * PHASE)
    category = load(t + _RECORD + 8 * CATEGORY)
    verdict = load(load(t + _AT_VERDICTS) + _VERDICT_SIZE * phase) if phase >= 0 else 0
    kind = load(load(t + _AT_VERDICTS) + _VERDICT_SIZE * category + 8) if category >= 0 else NONE
    if verdict == UNKNOWN or kind == UNKNOWN:
        return CLASSIFY
    if verdict != COMPLETE or kind < 0:
        return IRREGULAR if verdict == HALF else 0
    start, duration = load(t + _RECORD + 8 * START), load(t + _RECORD + 8 * DURATION)
    if start == NOTHING or duration == NOTHING or start + duration >= LIMIT_NS:
        return IRREGULAR
    pid = t + _RECORD + 8 * PID
    pair = interned(pid, pid + 16, load(t + _AT_PAIRS))
    if pair < 0:
        return pair
    store(t + _RECORD + 8 * PAIR, pair)
    store(t + _RECORD + 8 * ORDER, order)
    store(t + _RECORD + 8 * MARK, load(load(t + _AT_VERDICTS) + _VERDICT_SIZE * category + 16))
    # An event that finds no room for one of its rows is read again: then the other must not stand there already.
    if _is_full(kind, t) or (_speaks_aside(t) and _write(load(t + _AT_ASIDE), t) == FULL):
        return FULL
    return _write(kind, t)


@compiled
def _is_full(kind: int, t: int) -> bool:
    """Whether there is no room for another row of a kind."""
    return load(load(t + _AT_FILLED) + 8 * kind) >= load(t + _AT_BATCH)


@compiled
def _speaks_aside(t: int) -> bool:
    """Whether the event in the record makes a row of the last kind too."""
    return _has_more(t) and load(t + _RECORD + 8 * load(t + _AT_COMMON)) != NONE


@compiled
def _has_more(t: int) -> bool:
    """Whether the event in the record has keys that few events have."""
    return load(t + _RECORD + 8 * SEEN) >> load(t + _AT_COMMON) != 0


@compiled
def _write(kind: int, t: int) -> int:
    """Write the columns of a kind from the record; 0, or FULL where there is no room for another row."""
    if _is_full(kind, t):
        return FULL
    row = load(load(t + _AT_FILLED) + 8 * kind)
    for column in range(kind * load(t + _AT_COLUMNS), (kind + 1) * load(t + _AT_COLUMNS)):
        source = load(load(t + _AT_SOURCES) + 8 * column)
        if source < 0:
            break
        store(load(t + _AT_ROWS) + 8 * (column * load(t + _AT_BATCH) + row), load(t + _RECORD + 8 * source))
    store(load(t + _AT_FILLED) + 8 * kind, row + 1)
    return 0


@compiled
def _after(p: int) -> int:
    """Where the next event may begin, after the one that ends at p: past the comma, or at the closing bracket."""
    p = spaces_end(p)
    c = byte(p)
    return p + 1 if c == COMMA else p if c == CLOSE_LIST else -p


@compiled
def _one(p: int, order: int, t: int) -> int:
    """Read and commit the event at p; returns where the next may begin."""
    if byte(p) != OPEN:
        return CLOSED if byte(p) == CLOSE_LIST else -p
    # The event before is still in the record, and says how much of it must be wiped.
    for slot in range(load(t + (_AT_SLOTS if _has_more(t) else _AT_COMMON))):
        store(t + _RECORD + 8 * slot, load(load(t + _AT_BLANK) + 8 * slot))
    p = _event(p, t)
    p = _after(p) if p > 0 else p
    code = _commit(t, order) if p > 0 else p
    return p if code == 0 else code


@compiled
def _is_sound(control: int) -> bool:
    """Whether the text lies within its buffer, with zeros behind it."""
    begin, end, size = (load(control + _AT_BEGIN), load(control + _AT_END), load(control + _AT_SIZE))
    if not 0 <= begin <= end <= size - PAD:
        return False
    behind = 0
    for at in range(0, PAD, 8):
        behind |= load(load(control + _AT_TEXT) + end + at)
    return behind == 0


@compiled
def scan(control: int) -> int:
    """Read events until something stops it, which is returned; `position`, `seen` and `phases` say how far it came.

    Args:
        control: Address of int64 numbers in the order of `layout.CONTROL`.
    """
    if not _is_sound(control):
        return FAULT
    t = control
    text, last = load(control + _AT_TEXT), load(control + _AT_LAST)
    store(control + _AT_STOP, text + load(control + _AT_END))
    p = text + load(control + _AT_BEGIN)
    seen, phases = load(control + _AT_SEEN), load(control + _AT_PHASES)
    stopped = REACHED
    while p - text < last:
        q = _one(spaces_end(p), seen, t)
        if q < 0:
            stopped = q if q >= FAULT else MORE if _is_near(q, load(t + _AT_STOP)) else IRREGULAR
            break
        p = q
        seen += 1
        phases += load(t + _RECORD + 8 * PHASE) >= 0
    store(control + _AT_POSITION, spaces_end(p) - text if stopped != REACHED else p - text)
    store(control + _AT_SEEN, seen)
    store(control + _AT_PHASES, phases)
    return stopped


@compiled
def enter(operation: int, a: int, b: int, c: int, d: int, e: int) -> int:
    """The one function that is called from outside; the arguments are those of what is done.

    Args:
        operation: SCAN, INTERN (the bytes from one address to another, in the table at a third), REHASH, or NESTING.
        a: The first argument, and so on.
        b: See `a`.
        c: See `a`.
        d: See `a`.
        e: See `a`.
    """
    if operation == SCAN:
        return scan(a)
    if operation == INTERN:
        return interned(a, b, c)
    if operation == NESTING:
        return nest(a)
    return rehash(a, b, c, d, e)
