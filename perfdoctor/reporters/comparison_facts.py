"""What a comparison says, in words and rows of text that every format lays out. Values only, no layout."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.match_rows import ChangeTable, RowChange
from perfdoctor.comparison.comparison import Comparison
from perfdoctor.comparison.match_findings import ALL_TOGETHER, FindingChange, Promise
from perfdoctor.comparison.memory_changes import CategoryChange, MemoryChange
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.report.memory_summary import NAMES_OF_CATEGORIES
from perfdoctor.reporters.clean_text import clean_line, shorten_end, shorten_path
from perfdoctor.reporters.device_comparison_text import head_of_devices
from perfdoctor.reporters.time_split import CPU_DETAIL_LABELS, DETAIL_LABELS
from perfdoctor.units import (
    format_count,
    format_duration,
    format_percent,
    format_range,
    format_signed,
    format_signed_size,
    format_size,
)

TITLES = {
    "places": "By line",
    "kernels": "By kernel",
    "ops": "By op",
    "modules": "By module",
    "collectives": "By collective",
}
_MAX_ROWS, _MAX_ROWS_LONG = 6, 25
# A row that explains a smaller share of the step than this is not shown.
_MIN_SHARE = 0.001
_MAX_SHAPE, _MAX_NAME = 40, 60
_MAX_PATH = 40
_MAX_DEVICES = 4
_SHOWN_LOW = (("low", "fixed"), ("low", "smaller"), ("low", "new"))


class ShownRow(NamedTuple):
    """A row of a table: three times or sizes as text, and what it is."""

    difference: str
    before: str
    after: str
    what: str


class ShownTable(NamedTuple):
    """The heading of a table, and its rows."""

    title: str
    rows: tuple[ShownRow, ...]


def verdict_of(comparison: Comparison) -> str:
    """What became of the step, in a sentence."""
    step, unit = comparison.step, "step" if comparison.has_steps else "recording"
    change = f"{format_duration(step.before_ns)} before, {format_duration(step.after_ns)} after"
    if comparison.memory and not (comparison.before.mean_ns or comparison.after.mean_ns):
        return "Memory alone is compared: snapshots have no times."
    if comparison.devices is not None:
        return head_of_devices(comparison.devices, unit)
    if comparison.reasons:
        figures = "" if step.difference_ns is None else f" The {unit} takes {change}."
        return f"Cannot be judged: {clean_line(comparison.reasons[0].sentence)}.{figures}"
    if step.difference_ns is None:
        return f"Cannot be judged: {clean_line(step.basis)}."
    percent = format_percent(100 * abs(step.relative or 0.0))
    amount = f"{format_duration(abs(step.difference_ns))} ({percent})"
    if step.verdict == "unknown":
        return f"Cannot be judged: the {unit} takes {change}; {clean_line(step.basis)}."
    if step.verdict == "same":
        return f"No difference beyond the noise: the {unit} takes {change} ({format_signed(step.difference_ns)})."
    return f"The {unit} became {step.verdict} by {amount}, beyond the noise: {change}."


def describe_noise(comparison: Comparison) -> str | None:
    """Between what the difference lies, what could have been seen, and how that is known; None where it is not."""
    step = comparison.step
    if step.low_ns is None or step.high_ns is None or step.visible_ns is None or not step.before_ns:
        return None
    low, high, seen = format_signed(step.low_ns), format_signed(step.high_ns), format_duration(step.visible_ns)
    return (
        f"The difference lies between {low} and {high}, with a confidence of {100 * (step.confidence or 0):.0f}%; the "
        f"smallest that could be seen is {seen} ({format_percent(100 * step.visible_ns / step.before_ns)}). "
        f"By {step.basis}."
    )


def describe_sides(comparison: Comparison) -> list[str]:
    """A line for each side: what it is."""
    return [
        f"{name}: {_describe_paths(side.paths)} ({_describe_steps(side.steps, side.is_unprofiled)}"
        f"{'' if side.device is None else ', ' + clean_line(side.device)}"
        f"{'' if side.ranks == 1 else f', {side.ranks} ranks'})"
        for name, side in (("before", comparison.before), ("after", comparison.after))
    ]


def _describe_paths(paths: tuple[str, ...]) -> str:
    first = shorten_path(clean_line(paths[0]), _MAX_PATH)
    return first if len(paths) == 1 else f"{first} and {format_count(len(paths) - 1, 'more recording')}"


def _describe_steps(steps: int, unprofiled: bool) -> str:
    if not steps:
        return "no steps"
    return f"{format_count(steps, 'step')}{' without the profiler' if unprofiled else ''}"


def reason_lines(comparison: Comparison) -> list[str]:
    """The reasons why the step cannot be judged, but for one that the verdict tells."""
    shown = comparison.reasons[0 if comparison.devices is not None else 1 :]
    return [f"{clean_line(reason.sentence)}" for reason in shown]


def account_table(comparison: Comparison) -> ShownTable | None:
    """The mean step by where its time went, before and after; None where one side does not say."""
    if not comparison.account:
        return None
    labels = CPU_DETAIL_LABELS if comparison.runs_on_gpu is False else DETAIL_LABELS
    min_ns = _MIN_SHARE * max(comparison.before.mean_ns, comparison.after.mean_ns)
    unit = "the mean step" if comparison.has_steps else "the recording"
    rows = [(labels.get(row.detail, row.detail), row.before_ns, row.after_ns) for row in comparison.account]
    shown = [row for row in rows if max(row[1:]) >= min_ns]
    shown.append((unit, comparison.before.mean_ns, comparison.after.mean_ns))
    texts = (
        ShownRow(format_signed(new - old), format_duration(old), format_duration(new), what) for what, old, new in shown
    )
    return ShownTable(f"Where the time of {unit} went", tuple(texts))


def memory_lines(comparison: Comparison) -> list[str]:
    """A sentence on the peak of each device's memory: of the highest ones, where there are many."""
    lines = [
        f"The peak of memory on {_name_memory(change)}: {format_size(change.before_bytes)} before, "
        f"{format_size(change.after_bytes)} after ({_say_difference(change)})."
        for change in comparison.memory[:_MAX_DEVICES]
    ]
    more = len(comparison.memory) - len(lines)
    return [*lines, f"{format_count(more, 'more device')} in the JSON."] if more else lines


def _say_difference(change: MemoryChange) -> str:
    if not change.difference_bytes:
        return "the same"
    share = (
        f", {format_percent(100 * abs(change.difference_bytes) / change.before_bytes)}" if change.before_bytes else ""
    )
    return f"{format_signed_size(change.difference_bytes)}{share}"


def _name_memory(change: MemoryChange) -> str:
    device = "the CPU" if change.device is None else f"GPU {change.device}"
    return device if change.rank is None else f"{device} of rank {change.rank}"


def memory_table(comparison: Comparison) -> ShownTable | None:
    """What the highest peak is made of before and after; None where no part of it changed."""
    change = next(iter(comparison.memory), None)
    if change is None or not any(part.difference_bytes for part in change.by_category):
        return None
    least = _MIN_SHARE * max(change.before_bytes, change.after_bytes)
    parts = sorted(change.by_category, key=lambda part: -max(part.before_bytes, part.after_bytes))
    rows = [
        _size_row(part, NAMES_OF_CATEGORIES.get(part.category, part.category))
        for part in parts
        if max(part.before_bytes, part.after_bytes) >= least
    ]
    return ShownTable(f"What the peak on {_name_memory(change)} is made of", (*rows, _size_row(change, "the peak")))


def _size_row(change: MemoryChange | CategoryChange, what: str) -> ShownRow:
    sizes = (format_size(change.before_bytes), format_size(change.after_bytes))
    return ShownRow(format_signed_size(change.difference_bytes), *sizes, what)


def shown_tables(comparison: Comparison, *, verbose: bool) -> list[ShownTable]:
    """All tables in their order: account and memory, and what explains the difference."""
    known = (account_table(comparison), memory_table(comparison))
    return [*(table for table in known if table is not None), *change_tables(comparison, verbose=verbose)]


def change_tables(comparison: Comparison, *, verbose: bool) -> list[ShownTable]:
    """The tables of what explains the difference: the most telling ones, in the long form all that are known."""
    names = ["places", "kernels" if comparison.kernels.is_known else "ops", "collectives", "modules"]
    if verbose:
        names = ["places", "kernels", "ops", "collectives", "modules"]
    tables = (_change_table(name, comparison, verbose=verbose) for name in names)
    return [table for table in tables if table is not None]


def _change_table(name: str, comparison: Comparison, *, verbose: bool) -> ShownTable | None:
    table = comparison.table(name)
    if not table.is_known or not any(row.difference_ns for row in table.rows):
        return None
    rows = _rows_to_show(table, comparison, verbose=verbose)
    if name == "places" and all(row.kind != "line" for row in rows):
        return None  # without lines places are ops and modules, which have tables of their own
    if name in ("modules", "collectives") and all(row.kind.startswith("idle_") for row in rows):
        return None  # the idle time is in the other tables, too
    shown = [
        ShownRow(
            format_signed(row.difference_ns),
            "-" if row.status == "came" else format_duration(row.before_ns),
            "-" if row.status == "went" else format_duration(row.after_ns),
            describe_row(row, runs_on_gpu=comparison.runs_on_gpu is not False),
        )
        for row in rows
    ]
    rest_ns = (table.difference_ns or 0) - sum(row.difference_ns for row in rows)
    if rest_ns or not rows:
        shown.append(ShownRow(format_signed(rest_ns), "", "", "everything else"))
    unit = "the mean step" if comparison.has_steps else "the recording"
    return ShownTable(f"{TITLES[name]}, what explains {format_signed(table.difference_ns)} of {unit}", tuple(shown))


def _rows_to_show(table: ChangeTable, comparison: Comparison, *, verbose: bool) -> list[RowChange]:
    min_ns = _MIN_SHARE * max(comparison.before.mean_ns, 1)
    large = [row for row in table.rows if abs(row.difference_ns) >= min_ns]
    return large[: _MAX_ROWS_LONG if verbose else _MAX_ROWS]


def describe_row(row: RowChange, *, runs_on_gpu: bool) -> str:
    """What a row is, and what became of it: "came: softmax [64,10]", "addmm: sgemm -> bf16 gemm"."""
    if row.kind.startswith("idle_"):
        label = (DETAIL_LABELS if runs_on_gpu else CPU_DETAIL_LABELS)[row.kind]
        return f"{label} (within its noise)" if row.beyond_noise is False else label
    name = _short_name(row.name)
    if row.status == "replaced":
        other = "calls something else" if row.kind == "line" else "on other shapes"
        name = f"{name} -> {_short_name(row.new_name)}" if row.new_name else f"{name} {other}"
    name = f"{clean_line(row.op)}: {name}" if row.op and row.kind != "line" else name
    if row.status in ("came", "went"):
        name = f"{row.status}: {name}"
    details = [shorten_end(clean_line(row.shape), _MAX_SHAPE)] if row.shape else []
    counts = _describe_counts(row)
    details += [counts] if counts else []
    details += ["within its noise"] if row.beyond_noise is False else []
    return f"{name} ({'; '.join(details)})" if details else name


def _describe_counts(row: RowChange) -> str:
    old, new = row.before_count, row.after_count
    if old is None or new is None or abs(new - old) < 0.5:
        return ""
    return f"{old:,.0f} -> {new:,.0f} times"


def _short_name(name: str | None) -> str:
    parts = [short_kernel_name(part) for part in (name or "").split(" + ")]
    shown = parts[0] if len(parts) == 1 else f"{parts[0]} and {len(parts) - 1} more"
    return shorten_end(clean_line(shown), _MAX_NAME)


def finding_lines(comparison: Comparison, *, verbose: bool) -> list[tuple[str, str]]:
    """What became of each finding: a word, and what it is.

    Those of severity info are only in the long form, and those of severity low that are still there.
    """
    shown = [
        change
        for change in comparison.findings
        if verbose or change.severity in ("high", "medium") or (change.severity, change.status) in _SHOWN_LOW
    ]
    return [(change.status, _describe_finding(change)) for change in shown]


def _describe_finding(change: FindingChange) -> str:
    place = ""
    if change.file is not None:
        place = f", at {clean_line(SourceLocation(change.file, change.line).short)}"
    if not change.before_cost_ns and not change.after_cost_ns:
        return f"{change.rule} {clean_line(change.title)}{place}"
    if change.before_cost_ns is None:
        cost = f"costs {format_duration(change.after_cost_ns)}"
    elif change.after_cost_ns is None:
        cost = f"cost {format_duration(change.before_cost_ns)}"
    else:
        cost = f"{format_duration(change.before_cost_ns)} -> {format_duration(change.after_cost_ns)}"
    return f"{change.rule} {clean_line(change.title)}{place} ({cost})"


def promise_lines(comparison: Comparison) -> list[str]:
    """What was promised for the findings that went, against what came."""
    return [_describe_promise(promise) for promise in comparison.promises]


def _describe_promise(promise: Promise) -> str:
    name = clean_line(promise.name if promise.rule == ALL_TOGETHER else f"{promise.rule} {promise.name}")
    said = promise.promised
    min_ns, max_ns = said.low_ns or 0, said.high_ns if said.high_ns is not None else said.expected_ns or 0
    expected = f"{format_duration(said.expected_ns)} " if said.expected_ns is not None else ""
    promised = f"promised {expected}({format_range(min_ns, max_ns)})"
    if promise.came_ns is None:
        return f"{name}: {promised}"
    came = f"came {format_signed(promise.came_ns)}".replace("+", "")
    if promise.low_ns is None or promise.high_ns is None:
        return f"{name}: {promised}; {came}, and the noise is not known"
    between = f"{format_signed(promise.low_ns)} to {format_signed(promise.high_ns)}"
    outcome = {"kept": "within what was promised", "less": "less than promised", "more": "more than promised"}
    return f"{name}: {promised}; {came} ({between}): {outcome.get(promise.outcome, 'not known')}"


def note_lines(comparison: Comparison) -> list[str]:
    """What else a reader should know."""
    return [clean_line(note) for note in comparison.notes]
