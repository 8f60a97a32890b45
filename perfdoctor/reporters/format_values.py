"""Evidence, savings and places in the code as people read them."""

from __future__ import annotations

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import USED_AT, Evidence, Finding
from perfdoctor.reporters.clean_text import clean_line, shorten_path
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Saving, SavingAlone, SavingPromise
from perfdoctor.units import UNKNOWN, format_duration, format_percent, format_range, format_size, three_digits

# An upper bound that is this share of the step is not a promise.
_MEANINGLESS = 0.9


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
    used = finding.find_evidence(USED_AT)
    used = shorten_path(clean_line(used), width - len("(used at )")) if isinstance(used, str) else ""
    return f"{place} (used at {used})" if used and used != str(finding.location) else place


_LOWERS = {
    "allocated": "lowers the peak",
    "reserved": "lowers what is reserved",
    "run": "lowers the memory at the end of the run",
}
WRONG_RESULTS = "makes the results wrong, so it comes before anything that is slow"
"""What stands in place of a saving where the fix is about results and no time is known to be lost."""


def format_finding_saving(finding: Finding) -> str:
    """What the fix of a finding saves; a bound that is nearly the whole step says nothing and is not printed."""
    saving, share = finding.saving, finding.share_of_step
    if finding.saved_bytes is not None:
        return format_saved_bytes(finding.saved_bytes)
    if finding.makes_results_wrong and not saving.high_ns and not saving.expected_ns:
        return WRONG_RESULTS
    upper_ns = saving.high_ns or 0
    if saving.expected_ns is None and share and finding.cost_ns and share * upper_ns >= _MEANINGLESS * finding.cost_ns:
        return "how much a fix saves is not known"
    return format_saving(saving)


def format_saved_bytes(saved: SavedBytes) -> str:
    """How much lower a peak is after a fix: "lowers the peak by about 9.80 GB (8.00 GB to 11.6 GB)"."""
    low, high = format_size(saved.low), format_size(saved.high)
    lowers = _LOWERS[saved.of]
    if saved.high <= 0:
        return f"{lowers} by nothing more after the fixes above (alone by {format_size(saved.alone)})"
    if low == high:
        return f"{lowers} by {high}"
    if saved.low <= 0:
        return f"{lowers} by up to {high}"
    return f"{lowers} by about {format_size(saved.expected)} ({low} to {high})"


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
    is_range = low is not None and format_duration(low) != format_duration(upper_ns)
    between = f"{format_range(low, upper_ns)}, " if is_range and low is not None else ""
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
