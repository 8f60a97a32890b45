"""What has grown where steps drift: by what was timed of each step, and by late windows against the first ones."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.rules import Evidence, Rank, SourceLocation, captured_location
from perfdoctor.rules.internal import PYTHON, RowChange, RunDrift, WindowGrowth

# A part that has at least this share of the rise is its cause.
_MAIN_SHARE = 0.5
# Ops of which a step calls more are the cause from here on: Python around them, which no op shows, has the rest.
_CALLS_SHARE = 0.3
_MORE_CALLS = 1.2
# From this share of more steps on that compile something, compilation is what takes the time.
_MORE_COMPILING = 0.2
# Clocks of a busy GPU that nothing throttles stay within 3 %.
_SLOWER_CLOCK = 0.95
# Of several lines that grow, those with at least this part of the largest rise may be the origin.
_ORIGIN_SHARE = 1 / 3
# A line that took less of the first step counts as if it had taken so much: nearly nothing grows by any factor.
_MIN_LINE_SHARE = 0.05
# Causes that are no other work of the program.
SAME_WORK = ("ops", "cpu", "waits", "unknown")
_BACKWARD = " backward"


class DriftCause(NamedTuple):
    """What has grown.

    Attributes:
        id: One of the causes in `_pd010_texts`.
        rise_ns: By how much it makes a step longer; None where that was not measured by itself.
        location: The line of the user's code; None where it is not known.
        evidence: What shows it.
    """

    id: str
    rise_ns: int | None = None
    location: SourceLocation | None = None
    evidence: tuple[Evidence, ...] = ()


def find_cause(rank: Rank, drift: RunDrift) -> DriftCause:
    """What makes the steps longer: what each step tells first, then what the windows show; "unknown" else.

    Who has the program's cores slows the same work, too: it shares caches, memory and the clock.
    """
    cause = _cause_in_steps(rank, drift) or _cause_on_gpu(rank) or _cause_in_windows(rank) or _cause_in_clocks(drift)
    queued = drift.parts.get("queued_ns")
    if queued is None or queued.rise < _MAIN_SHARE * drift.mean_rise_ns:
        return cause
    if cause.id in SAME_WORK or (cause.id == "host" and _ops_are_slower(rank)):
        return DriftCause("cores", _rise_of(drift, "queued_ns"))
    return cause


def _ops_are_slower(rank: Rank) -> bool:
    """Whether ops that run as often as at first, on the same shapes, are slower by half of what the whole step is."""
    growth = rank.growth
    if growth is None or rank.early is None or not _same_shapes(rank.early, rank):
        return False
    rows = [row for row in growth.ops.rows if row.name != PYTHON and row.before_ns and not _calls_more(row)]
    before_ns, after_ns = sum(row.before_ns or 0 for row in rows), sum(row.after_ns or 0 for row in rows)
    return (after_ns - before_ns) * growth.before_ns >= _MAIN_SHARE * growth.rise_ns * before_ns > 0


def _cause_in_steps(rank: Rank, drift: RunDrift) -> DriftCause | None:
    def is_main(part: str) -> bool:
        return part in drift.parts and drift.parts[part].rise >= _MAIN_SHARE * drift.mean_rise_ns

    if is_main("gc_ns"):
        return DriftCause("collector", _rise_of(drift, "gc_ns"), _line_of_collector(rank))
    if is_main("host_call_ns"):
        return _cause_in_host_calls(rank, drift)
    if drift.compiling.rise >= _MORE_COMPILING:
        shares = Evidence("steps that compile", f"{drift.compiling.before:.0%}, then {drift.compiling.after:.0%}")
        return DriftCause("compile", None, _line_that_grows(rank), (shares,))
    if drift.is_wait_for_core:
        return DriftCause("cores", _rise_of(drift, "queued_ns"))
    if is_main("loader_wait_ns"):
        return _cause_in_loader(rank, drift)
    samples = drift.parts.get("samples")
    if samples is not None and samples.before > 0:
        growth = samples.after / samples.before
        if growth - 1 >= _MAIN_SHARE * (drift.growth - 1):
            return DriftCause(
                "samples", None, None, (Evidence("samples", f"{samples.before:.4g}, {samples.after:.4g}"),)
            )
    return None


def _rise_of(drift: RunDrift, part: str) -> int:
    return round(drift.parts[part].rise)


def _line_of_collector(rank: Rank) -> SourceLocation | None:
    collector = rank.facts.collector
    has_calls = (collector.collect_ns or 0) >= (collector.collections_ns or 0)
    return captured_location(collector.location) if has_calls else None


def _cause_in_host_calls(rank: Rank, drift: RunDrift) -> DriftCause:
    calls = max(rank.facts.host_calls or (), key=lambda call: call.ns or 0, default=None)
    rise_ns = _rise_of(drift, "host_call_ns")
    if calls is None:
        return DriftCause("host_calls", rise_ns)
    evidence = [Evidence("call", calls.call), Evidence("calls", calls.count, "count")]
    known = None if rank.early is None else rank.early.facts.host_calls
    early = [each for each in known or () if each.location == calls.location]
    for each, when in ((early[0] if early else None, "at first"), (calls, "over the run")):
        if each is not None and each.count and each.bytes is not None:
            evidence.append(Evidence(f"size of a file {when}", each.bytes // each.count, "bytes"))
    return DriftCause("host_calls", rise_ns, captured_location(calls.location), tuple(evidence))


def _cause_in_loader(rank: Rank, drift: RunDrift) -> DriftCause:
    """A loader whose batches take more CPU time computes more; else it waits, as for files.

    Waits for a core come with the work on a machine that is busy, and are left out.
    """
    loader, rise_ns = rank.facts.main_loader, _rise_of(drift, "loader_wait_ns")
    early = None if rank.early is None else rank.early.facts.main_loader.fetch
    location = captured_location(loader.items_location) or captured_location(loader.location)
    late = loader.fetch
    if early is None or None in (early.median_ns, early.cpu_ns, late.median_ns, late.cpu_ns):
        return DriftCause("loader", rise_ns, location)
    own_ns = [(each.median_ns or 0) - (each.queued_ns or 0) for each in (early, late)]
    more_ns, more_cpu_ns = own_ns[1] - own_ns[0], (late.cpu_ns or 0) - (early.cpu_ns or 0)
    evidence = (
        Evidence("a batch took at first", early.median_ns, "ns"),
        Evidence("of that CPU time", early.cpu_ns, "ns"),
        Evidence("a batch takes", late.median_ns, "ns"),
        Evidence("of that CPU time now", late.cpu_ns, "ns"),
    )
    kind = "loader_work" if more_cpu_ns >= _MAIN_SHARE * more_ns else "loader_files"
    return DriftCause(kind, rise_ns, location, evidence)


def _cause_on_gpu(rank: Rank) -> DriftCause | None:
    """Clocks that fell between the windows, and time in the allocator."""
    growth, early = rank.growth, rank.early
    if growth is None or early is None or rank.device_kind != "gpu":
        return None
    for before, after in zip(early.facts.nvml.devices, rank.facts.nvml.devices, strict=False):
        old, new = (each.under_load.get("timing") for each in (before, after))
        if (
            old is not None
            and new is not None
            and old.sm_mhz
            and new.sm_mhz
            and new.sm_mhz <= _SLOWER_CLOCK * old.sm_mhz
        ):
            clocks = Evidence("clock", f"{old.sm_mhz:.0f} MHz, then {new.sm_mhz:.0f} MHz")
            reasons = Evidence("reasons by NVML", ", ".join(sorted(new.reasons)) or None)
            return DriftCause("clocks", None, None, (clocks, reasons))
    waits_ns = [
        each.per_step(each.account.detail["idle_allocator"]) if each.steps.count else 0 for each in (early, rank)
    ]
    if waits_ns[1] - waits_ns[0] >= _MAIN_SHARE * growth.rise_ns > 0:
        retries = Evidence("allocator retries", rank.facts.cuda_memory.get("num_alloc_retries"), "count")
        return DriftCause("allocator", waits_ns[1] - waits_ns[0], _line_that_grows(rank), (retries,))
    return None


def _cause_in_windows(rank: Rank) -> DriftCause | None:
    growth = rank.growth
    if growth is None or rank.early is None or growth.rise_ns <= 0:
        return None
    rows = growth.ops.rows
    more_calls = [row for row in rows if _calls_more(row)]
    backward_ns, calls_ns = (
        sum(row.difference_ns for row in more_calls if row.name.endswith(_BACKWARD) is is_backward)
        for is_backward in (True, False)
    )
    if backward_ns >= max(_CALLS_SHARE * growth.rise_ns, calls_ns):
        return _cause_of_row("graph", max(more_calls, key=lambda row: row.difference_ns), backward_ns, growth)
    if calls_ns >= _CALLS_SHARE * growth.rise_ns:
        row = max(more_calls, key=lambda row: row.difference_ns)
        return _cause_of_row("calls", row, calls_ns, growth, is_origin=True)
    largest = max(rows, key=lambda row: row.difference_ns, default=None)
    if largest is None:
        return None
    if largest.name == PYTHON:
        return DriftCause("host", largest.difference_ns, _line_that_grows(rank))
    kind = "ops" if _same_shapes(rank.early, rank) else "shapes"
    return _cause_of_row(kind, largest, largest.difference_ns, growth, is_origin=kind == "shapes")


def _calls_more(row: RowChange) -> bool:
    """Whether a step calls an op more often than at first."""
    return row.after_count is not None and row.after_count > _MORE_CALLS * (row.before_count or 0) > 0


def _same_shapes(early: Rank, late: Rank) -> bool:
    """Whether the steps multiply matrices of the same shapes; True where no shapes were recorded."""
    return {*early.breakdown.matrix_ops} == {*late.breakdown.matrix_ops}


def _cause_of_row(
    kind: str, row: RowChange, rise_ns: int, growth: WindowGrowth, *, is_origin: bool = False
) -> DriftCause:
    counts = f"{row.before_count or 0:.4g}, then {row.after_count or 0:.4g}"
    evidence = (
        Evidence("grows most", row.name),
        Evidence("more time in it", row.difference_ns, "ns"),
        Evidence("calls of it", counts if row.after_count is not None else None),
    )
    line = _origin(growth) if is_origin else growth.lines[0].location if growth.lines else None
    return DriftCause(kind, rise_ns, line, evidence)


def _line_that_grows(rank: Rank) -> SourceLocation | None:
    lines = () if rank.growth is None else rank.growth.lines
    return lines[0].location if lines and lines[0].rise_ns > 0 else None


def _origin(growth: WindowGrowth) -> SourceLocation | None:
    """Of the lines that grow most the one that grows by the largest factor.

    The line of a backward pass, and one that calls a model, grow with the lines that they run.
    """
    if not growth.lines or growth.lines[0].rise_ns <= 0:
        return None
    grown = [line for line in growth.lines if line.rise_ns >= _ORIGIN_SHARE * growth.lines[0].rise_ns]
    floor_ns = max(_MIN_LINE_SHARE * growth.before_ns, 1)
    return max(grown, key=lambda line: line.after_ns / max(line.before_ns, floor_ns)).location


def _cause_in_clocks(drift: RunDrift) -> DriftCause:
    """What the steps' own clocks say where no window shows more: the system's work, work on the CPU, or waits."""
    for part, kind in (("system_cpu_ns", "system"), ("cpu_ns", "cpu")):
        if part in drift.parts and drift.parts[part].rise >= _MAIN_SHARE * drift.mean_rise_ns:
            return DriftCause(kind, _rise_of(drift, part))
    return DriftCause("waits" if "cpu_ns" in drift.parts else "unknown")
