"""Times, shares, sizes, savings and places in the code as people read them."""

from __future__ import annotations

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import USED_AT, Evidence, Finding
from perfdoctor.reporters.clean_text import clean_line, shorten_path
from perfdoctor.savings.saving import Saving, SavingAlone, SavingPromise

UNKNOWN = "n/a"

_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
# An upper bound of so much of the step is no promise.
_MEANINGLESS = 0.9
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


def format_flops(flops: float) -> str:
    """A number of floating-point operations: "5.80 TFLOP"."""
    for factor, unit in _FLOP_UNITS:
        if flops >= 0.9995 * factor:
            return f"{three_digits(flops / factor)} {unit}"
    return f"{flops:,.0f} FLOP"


def format_flops_rate(flops_per_s: float) -> str:
    """A rate of operations, from a billion a second on in the unit of datasheets: "312 TFLOP/s", "0.82 TFLOP/s"."""
    return f"{three_digits(flops_per_s / 1e12)} TFLOP/s" if flops_per_s >= 1e10 else f"{format_flops(flops_per_s)}/s"


def format_evidence(evidence: Evidence) -> str:
    """The value of an Evidence in its unit; a name is cleaned, but not shortened."""
    value, unit = evidence.value, evidence.unit
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return clean_line(f"{value} {unit}")
    if unit == "ns":
        return format_duration(value)
    if unit == "%":
        return format_percent(value)
    if unit == "bytes":
        return format_size(value)
    whole = float(value).is_integer()
    number = f"{int(value):,}" if whole else f"{value:,.0f}" if abs(value) >= 1000 else three_digits(value)
    return number if unit in ("", "count") else clean_line(f"{number} {unit}")


def format_location(location: SourceLocation) -> str:
    """A place in the user's code: "train.py:41 in main"."""
    place = clean_line(str(location))
    return f"{place} in {clean_line(location.function)}" if location.function else place


def format_place(finding: Finding, width: int = 1000) -> str:
    """The line to change, and where the thing that it makes is used: "train.py:12 in main (used at train.py:41)".

    Each path loses leading folders until it fits into `width`.
    """
    if finding.location is None:
        return ""
    place = shorten_path(format_location(finding.location), width - len("at "))
    used = next((each.value for each in finding.evidence if each.label == USED_AT), None)
    used = shorten_path(clean_line(used), width - len("(used at )")) if isinstance(used, str) else ""
    return f"{place} (used at {used})" if used and used != str(finding.location) else place


WRONG_RESULTS = "makes the results wrong, so it comes before anything that is slow"
"""What stands in place of a saving where the fix is about results and no time is known to be lost."""


def format_finding_saving(finding: Finding) -> str:
    """What the fix of a finding saves; a bound that is nearly the whole step says nothing and is not printed."""
    saving, share = finding.saving, finding.share_of_step
    if finding.makes_results_wrong and not saving.high_ns and not saving.expected_ns:
        return WRONG_RESULTS
    upper_ns = saving.high_ns or 0
    if saving.expected_ns is None and share and finding.cost_ns and share * upper_ns >= _MEANINGLESS * finding.cost_ns:
        return "how much a fix saves is not known"
    return format_saving(saving)


def format_saving(saving: Saving) -> str:
    """A saving with its range and basis: "saves about 9.80 ms (2.00 ms to 12.3 ms, replayed)".

    "About" stands only where something is expected that is neither nothing nor all: else it is "up to" the most.
    """
    if saving.promised is not None:
        return _format_measured(saving, saving.promised)
    low, expected, high = saving.low_ns, saving.expected_ns, saving.high_ns
    upper_ns = high if high is not None else expected if expected is not None else low
    if upper_ns is None:
        return f"saving: {UNKNOWN}"
    if upper_ns == 0:
        alone = saving.alone.expected_ns or saving.alone.high_ns
        return f"saves nothing {'more after the fixes above' if alone else 'alone: other work sets the pace'}"
    if expected is None or (saving.basis == "bounded" and not low):
        likely = f"expected {format_duration(expected)}, " if expected and expected < upper_ns else ""
        return f"saves up to {format_duration(upper_ns)} ({likely}{saving.basis})"
    between = f"{format_range(low, upper_ns)}, " if low is not None and low < upper_ns else ""
    about = "" if saving.basis == "measured" else "about "
    return f"saves {about}{format_duration(expected)} ({between}{saving.basis})"


def _format_measured(saving: Saving, promised: SavingPromise) -> str:
    """What a trial measured, with the promise beside it: "saves 9.80 ms (9.10 to 10.2 ms, measured; promised ...)"."""
    before = f"measured; promised {format_promise(promised)}"
    low, saved, high = saving.low_ns, saving.expected_ns, saving.high_ns
    if not saved:
        if saving.alone == SavingAlone():
            return f"measured together with another finding ({before})"
        if saving.alone.expected_ns:
            return (
                f"gives nothing on top of better changes, {format_duration(saving.alone.expected_ns)} alone ({before})"
            )
        return f"gave nothing when it was tried ({before})"
    between = f"{format_range(low, high)}, " if low is not None and high is not None and low < high else ""
    return f"saves {format_duration(saved)} ({between}{before})"


def format_promise(promised: SavingPromise) -> str:
    """What was promised: "12.1 ms (7.06 to 13.0 ms)", "up to 5.23 ms", "nothing in figures"."""
    low, expected, high = promised.low_ns, promised.expected_ns, promised.high_ns
    upper_ns = high if high is not None else low
    if expected is None:
        return "nothing in figures" if upper_ns is None else f"up to {format_duration(upper_ns)}"
    between = f" ({format_range(low, high)})" if low is not None and high is not None and low < high else ""
    return f"{format_duration(expected)}{between}"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 step", "8 steps"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
