"""The grammar of JSON: where strings, numbers and whole values end."""

from __future__ import annotations

from perfdoctor.trace.scanner.intrinsics import brackets, byte, compiled, four, lowest, others, quotes

QUOTE, COMMA, MINUS, POINT, ZERO = 34, 44, 45, 46, 48
OPEN_LIST, CLOSE_LIST, OPEN, CLOSE = 91, 93, 123, 125
NULL = 0x6C6C756E  # four bytes of text as a number
DIGITS = 18  # that surely fit into int64
_COLON, _NINE = 58, 57
_DEEPEST = 60  # levels of nesting that fit into the bits of one number
_TRUE, _FALS = 0x65757274, 0x736C6166
_INFI, _NITY, _NAN, _C_INF, _C_NAN = 0x69666E49, 0x7974696E, 0x4E614E, 0x666E69, 0x6E616E


@compiled
def spaces_end(p: int) -> int:
    """The end of the white space at p."""
    if byte(p) > 32:
        return p
    if byte(p) == 32 and byte(p + 1) > 32:  # one space, as behind most colons and commas where there are any
        return p + 1
    bits = others(p)
    while bits == 0:
        p += 64
        bits = others(p)
    return p + lowest(bits)


@compiled
def _escape(p: int) -> int:
    """The end of the escape at p, which is a backslash."""
    c = byte(p + 1)
    if c == 117:  # u
        for at in range(p + 2, p + 6):
            digit = byte(at)
            if not (ZERO <= digit <= _NINE or 97 <= digit | 32 <= 102):
                return -at
        return p + 6
    # one of " \ / b f n r t
    if c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116:
        return p + 2
    return -(p + 1)


@compiled
def string_end(p: int, end: int) -> int:
    """The closing quotation mark of the string whose first byte is at p."""
    while p < end:
        bits = quotes(p)
        if bits == 0:
            p += 64
            continue
        p += lowest(bits)
        if byte(p) == QUOTE:
            return p
        p = _escape(p)
        if p < 0:
            return p
    return -max(p, end)


@compiled
def key_end(p: int, end: int) -> int:
    """The closing quotation mark of the key that begins at p, which has no escapes."""
    if byte(p) != QUOTE:
        return -p
    p += 1
    while p < end:
        bits = quotes(p)
        if bits != 0:
            p += lowest(bits)
            return p if byte(p) == QUOTE else -p
        p += 64
    return -max(p, end)


@compiled
def value_of(close: int) -> int:
    """Where the value begins that belongs to the key with this closing quotation mark."""
    p = spaces_end(close + 1)
    return spaces_end(p + 1) if byte(p) == _COLON else -p


@compiled
def digits_end(p: int) -> int:
    """The end of the digits at p, of which there is at least one."""
    q = p
    while ZERO <= byte(q) <= _NINE:
        q += 1
    return q if q > p else -p


@compiled
def number_end(p: int) -> int:
    """The end of the number at p, whose integer has no more than 18 digits and no leading zero."""
    p += byte(p) == MINUS
    q = digits_end(p)
    if q < 0 or q - p > DIGITS or (q - p > 1 and byte(p) == ZERO):
        return -p
    if byte(q) == POINT:
        q = digits_end(q + 1)
        if q < 0:
            return q
    if byte(q) | 32 == 101:  # e
        q += 1
        q = digits_end(q + (byte(q) == MINUS or byte(q) == 43))
    return q


@compiled
def _scalar(p: int) -> int:
    """The end of the number, true, false or null at p."""
    letters = four(p)
    if letters in (NULL, _TRUE):
        return p + 4
    if letters == _FALS and byte(p + 4) == 101:
        return p + 5
    return number_end(p)


@compiled
def printed_end(p: int) -> int:
    """The end of what C or Python prints for a number that is none, as a member's value: inf, nan, NaN, Infinity."""
    q = p + (byte(p) == MINUS)
    letters = four(q)
    if letters & 0xFFFFFF == _NAN and q == p:
        return p + 3
    if letters == _INFI and four(q + 4) == _NITY:
        return q + 8
    if letters & 0xFFFFFF == _C_INF or letters & 0xFFFFFF == _C_NAN:
        after = spaces_end(q + 3)
        if byte(after) == COMMA or byte(after) == CLOSE:
            return q + 3
    return -p


@compiled
def _opened(p: int, end: int) -> int:
    """Past the bracket at p: at the first value within it, or at the closing bracket where there is none."""
    is_object = byte(p) == OPEN
    p = spaces_end(p + 1)
    if is_object and byte(p) != CLOSE:
        close = key_end(p, end)
        return value_of(close) if close > 0 else close
    return p


@compiled
def _next_value(p: int, end: int, in_object: bool) -> int:
    """Past the comma at p: at the next value of the list or object."""
    p = spaces_end(p + 1)
    if not in_object:
        return p
    close = key_end(p, end)
    return value_of(close) if close > 0 else close


@compiled
def plain_end(p: int, end: int) -> int:
    """The end of the string, number, true, false or null at p."""
    if byte(p) != QUOTE:
        return _scalar(p)
    close = string_end(p + 1, end)
    return close + 1 if close > 0 else close


@compiled
def value_end(p: int, end: int) -> int:
    """The end of the value at p, whatever is nested in it: strict JSON, byte for byte."""
    depth, objects = 0, 0
    while p > 0:
        c = byte(p)
        if c in (OPEN, OPEN_LIST):
            if depth == _DEEPEST:
                return -p
            depth += 1
            objects = 2 * objects + (c == OPEN)
            p = _opened(p, end)
            closes = byte(p) == (CLOSE if c == OPEN else CLOSE_LIST) if p > 0 else False
            if not closes:
                continue
        else:
            p = plain_end(p, end)
        while p > 0 and depth:
            p = spaces_end(p)
            c = byte(p)
            if c == COMMA:
                p = _next_value(p, end, objects & 1 != 0)
                break
            if c != (CLOSE if objects & 1 else CLOSE_LIST):
                return -p
            depth -= 1
            objects >>= 1
            p += 1
        if depth == 0:
            return p
    return p


@compiled
def nest_end(p: int, end: int) -> int:
    """Where the bracket at p is closed, if what lies between is well formed; `value_end` tells."""
    depth = 0
    while p < end:
        bits = brackets(p)
        block, p = p, p + 64
        while bits:
            at = block + lowest(bits)
            bits &= bits - 1
            c = byte(at)
            if c == QUOTE:
                close = string_end(at + 1, end)
                if close < 0:
                    return close
                if close - block >= 64:
                    p = close + 1
                    break
                bits &= -1 << (close - block)
                bits &= bits - 1
            else:
                depth += 1 if c | 32 == OPEN else -1
                if depth == 0:
                    return at + 1
    return -end
