"""Words and numbers as people read them, and names from a trace made harmless.

A name in a trace is data. Whatever it holds, it must not move a cursor, colour a line, reorder text or break a line:
every reporter passes what it prints through `clean` first, and then through the escaping of its own format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line cleans what it prints with this module, and must not wait for numpy
    from perfdoctor.analysis.host.locations import SourceLocation
    from perfdoctor.report.finding import Evidence
    from perfdoctor.savings.saving import Saving

UNKNOWN = "n/a"

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

# ECMA-48: CSI sequences, OSC/DCS/SOS/PM/APC strings up to their terminator, and two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
# C0, DEL, C1; marks that turn the reading direction or have no width: they make a name look like another one.
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean(text: str) -> str:
    """One line without escape sequences, control characters, invisible marks or lone surrogates; breaks are blanks."""
    text = _BREAKS.sub(" ", _ESCAPES.sub("", text))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _INVISIBLE.sub("", text)).strip()


def clean_block(text: str) -> str:
    """The same for a text of several lines: line breaks and indentation stay, tabs become four spaces."""
    lines = text.replace("\r\n", "\n").expandtabs(4).split("\n")
    kept = [" " * (len(line) - len(line.lstrip(" "))) + clean(line) for line in lines]
    return "\n".join(line.rstrip() for line in kept).strip("\n")


def shorten(text: str, width: int, ellipsis: str = "...") -> str:
    """`text` in at most `width` characters, the middle left out: a kernel's name tells most by both of its ends."""
    if len(text) <= width:
        return text
    room = max(width - len(ellipsis), 2)
    head = (room + 1) // 2
    return text[:head].rstrip() + ellipsis + text[len(text) - (room - head) :].lstrip()


def shorten_words(text: str, width: int) -> str:
    """`text` with every word longer than `width` shortened in its middle, so that lines can break."""
    return " ".join(shorten(word, width) for word in text.split(" "))


def _digits(value: float) -> str:
    """Three significant digits, as far as a reader needs them: 9.87, 43.1, 812."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def duration(ns: float | None) -> str:
    """A time in the unit that suits it: "43.1 ms", "812 us", "1.24 s"; "n/a" for None."""
    if ns is None:
        return UNKNOWN
    if round(ns) == 0:
        return "0 ms"
    for factor, unit in _DURATIONS:
        if ns >= 0.9995 * factor:
            return f"{ns:.0f} ns" if unit == "ns" else f"{_digits(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def share(fraction: float | None) -> str:
    """A fraction of 1 as a percentage: "44%", "3.2%"; "n/a" for None, "<0.1%" for what would round to nothing."""
    return UNKNOWN if fraction is None else percent(100 * fraction)


def percent(value: float) -> str:
    """A percentage with as many digits as matter."""
    if value and abs(value) < 0.05:
        return "<0.1%"
    return f"{value:.1f}%" if 0 < abs(value) < 9.95 else f"{value:.0f}%"


def size(count: float) -> str:
    """A number of bytes, decimal units."""
    for factor, unit in _SIZES:
        if count >= 0.9995 * factor:
            return f"{_digits(count / factor)} {unit}"
    return f"{count:.0f} bytes"


def quantity(evidence: Evidence) -> str:
    """The value of an Evidence in words; names in it are cleaned, not shortened."""
    value, unit = evidence.value, evidence.unit
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return clean(f"{value} {unit}")
    if unit == "ns":
        return duration(value)
    if unit == "%":
        return percent(value)
    if unit == "bytes":
        return size(value)
    whole = float(value).is_integer()
    number = f"{int(value):,}" if whole else f"{value:,.0f}" if abs(value) >= 1000 else _digits(value)
    return number if unit in ("", "count") else clean(f"{number} {unit}")


def place(location: SourceLocation) -> str:
    """Where in the user's code: "train.py:41 in main"."""
    where = clean(str(location))
    return f"{where} in {clean(location.function)}" if location.function else where


def saving(value: Saving, per: str) -> str:
    """A saving with its basis, `per` being " a step" or "": "saves up to 12.3 ms a step (bounded, expected 9.8 ms)"."""
    low, expected, high = value.low_ns, value.expected_ns, value.high_ns
    best = expected if expected is not None else high if high is not None else low
    if best is None:
        return f"saving: {UNKNOWN}"
    if high == 0:
        return f"saves nothing by itself ({value.basis}): other work sets the pace, or a finding above counts it"
    if value.basis == "bounded" and high is not None:
        return f"saves up to {duration(high)}{per} (bounded{_bounds(low, expected, high)})"
    known = low is not None and high is not None and low < high
    between = f", {duration(low)} to {duration(high)}" if known else ""
    return f"saves {'about ' if value.basis == 'replayed' else ''}{duration(best)}{per} ({value.basis}{between})"


def _bounds(low: int | None, expected: int | None, high: int) -> str:
    words = f", at least {duration(low)}" if low else ""
    return words + (f", expected {duration(expected)}" if expected is not None and expected < high else "")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 step", "8 steps"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
