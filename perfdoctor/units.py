"""Times, shares, sizes, rates and counts as people read them.

Figures that stand beside each other, as in tables and on pages, always have three digits: "1.20 ms" (`format_duration`,
`format_size`). Sentences leave out zeros at the end: "1.2 ms" (`format_time`, `format_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN = "n/a"

_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_FLOP_UNITS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def three_digits(value: float) -> str:
    """Three significant digits, or the whole number from 100 on: 9.87, 43.1, 812, 3600."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def format_duration(ns: float | None) -> str:
    """A time in the unit that suits it: "43.1 ms", "812 us", "1.24 s"; "n/a" for None."""
    if ns is None:
        return UNKNOWN
    if round(ns) == 0:
        return "0 ms"
    for factor, unit in _TIME_UNITS:
        if ns >= 0.9995 * factor:
            return f"{ns:.0f} ns" if unit == "ns" else f"{three_digits(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def format_signed(ns: int | None) -> str:
    """A difference with its sign: "+1.20 ms", "-37.9 ms"; "n/a" for None."""
    if ns is None:
        return UNKNOWN
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"


def format_minutes(seconds: float) -> str:
    """How long a command took: "45 s", "3 min 5 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_range(low_ns: float, high_ns: float) -> str:
    """Two times with their unit once where they have the same: "2.00 to 30.0 ms", "800 us to 1.20 ms", "0 to 3 ms"."""
    low, high = format_duration(low_ns), format_duration(high_ns)
    number, unit = low.split(" ")
    return f"{number} to {high}" if unit == high.split(" ")[1] or not low_ns else f"{low} to {high}"


def format_share(share: float | None) -> str:
    """A share from 0 to 1 as a percentage: "44%", "3.2%"; "n/a" for None, "<0.1%" for what would round to nothing."""
    return UNKNOWN if share is None else format_percent(100 * share)


def format_percent(percent: float) -> str:
    """A percentage: one decimal below 10, none above."""
    if percent and abs(percent) < 0.05:
        return "<0.1%"
    return f"{percent:.1f}%" if 0 < abs(percent) < 9.95 else f"{percent:.0f}%"


def format_size(size_bytes: float) -> str:
    """A number of bytes in decimal units: "1.31 GB"."""
    for factor, unit in _SIZE_UNITS:
        if size_bytes >= 0.9995 * factor:
            return f"{three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} bytes"


def format_signed_size(size_bytes: int) -> str:
    """A difference of bytes with its sign: "+1.31 GB", "-253 MB"."""
    return f"{'-' if size_bytes < 0 else '+'}{format_size(abs(size_bytes))}"


def format_flops(flops: float) -> str:
    """A number of floating-point operations: "5.80 TFLOP"."""
    for factor, unit in _FLOP_UNITS:
        if flops >= 0.9995 * factor:
            return f"{three_digits(flops / factor)} {unit}"
    return f"{flops:,.0f} FLOP"


def format_flops_rate(flops_per_s: float) -> str:
    """A rate of operations, from a billion a second on in the unit of datasheets: "312 TFLOP/s", "0.82 TFLOP/s"."""
    return f"{three_digits(flops_per_s / 1e12)} TFLOP/s" if flops_per_s >= 1e10 else f"{format_flops(flops_per_s)}/s"


def format_number(value: float) -> str:
    """A count or a ratio: "1,234", "86.5", "8.67"."""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 step", "8 steps"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_time(ns: float) -> str:
    """A length of time: "4.2 us", "12.5 ms", "1.2 s"."""
    return _format(ns, (("us", 1e3), ("ms", 1e6), ("s", 1e9)))


def format_ms(ns: float, spec: str | None = None) -> str:
    """A length of time in milliseconds, however long, for what is compared with others: "12.5 ms", "2,500 ms"."""
    return f"{ns / 1e6:{spec or (',.0f' if ns >= 99.95e6 else '.3g')}} ms"


def format_bytes(size_bytes: float, *, in_kb: bool = True) -> str:
    """A size: "4.2 KB", "30 MB", "1.2 GB"; where `in_kb` is false, small ones are "0.0042 MB"."""
    return _format(size_bytes, (("KB", 1e3), ("MB", 1e6), ("GB", 1e9))[not in_kb :])


def format_rate(bytes_per_s: float) -> str:
    """A rate: "27.7 GB/s"."""
    return f"{format_bytes(bytes_per_s)}/s"


def format_ranges(numbers: Iterable[int]) -> str:
    """The numbers as ranges, short even for thousands: "0-3, 7". Two in a row are listed singly."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def _format(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Three digits, in the first unit in which the value stays below a thousand."""
    unit, size = next((each for each in units if value < 999.5 * each[1]), units[-1])
    scaled = value / size
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"
