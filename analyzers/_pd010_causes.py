"""What has grown where steps drift: by what was timed of each step, and by late windows against the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from perfdoctor.rules import (
    PYTHON,
    Evidence,
    OpGrowth,
    Rank,
    RowChange,
    RunDrift,
    SourceLocation,
    WindowGrowth,
    captured_location,
    format_ms,
)

# A part that has at least this share of the rise is its cause.
_MAIN_SHARE = 0.5
# Ops of which a step calls more are the cause from here on: Python around them, which no op shows, has the rest.
_CALLS_SHARE = 0.3
_MORE_CALLS = 1.2
# From this share of more steps on that compile something, compilation is what takes the time.
_MORE_COMPILING = 0.2
# Clocks of a busy GPU that nothing throttles stay within 3 %.
_SLOWER_CLOCK = 0.95
# Rows of what the CPU does between ops, and those of waits that no work of this program explains.
_HOST_ROWS = (PYTHON, "idle_launch")
_WAITS = ("idle_dataloader", "idle_sync", "idle_communication", "idle_allocator", "idle_unexplained")
# The same ops on the same shapes take longer where they have so much of what their line takes longer.
_ALL_SHARE = 0.9
# Other ops that have so much of the rise are named beside the first.
_ALSO_SHARE = 0.1
# An op is named beside the one that grows most at its line where it has so much of its rise.
_NAMED_SHARE = 1 / 4
# Causes that are no other work of the program.
SAME_WORK = ("ops", "slower", "cpu", "waits", "unknown")
_BACKWARD = " backward"


class DriftCause(NamedTuple):
    """What has grown.

    Attributes:
        id: One of the causes in `remedies/texts/drift.toml`.
        rise_ns: By how much it makes a step longer; None where that was not measured by itself.
        location: The line of the user's code; None where it is not known.
        evidence: What shows it.
        detail: The ops that grew, their line and times, and what they have more of; "" where that was not recorded.
    """

    id: str
    rise_ns: int | None = None
    location: SourceLocation | None = None
    evidence: tuple[Evidence, ...] = ()
    detail: str = ""


def find_cause(rank: Rank, drift: RunDrift) -> DriftCause:
    """What makes the steps longer: what each step tells first, then what the windows show; "unknown" else.

    Who has the program's cores slows the same work, too: it shares caches, memory and the clock.
    """
    cause = _cause_in_steps(rank, drift) or _cause_on_gpu(rank) or _cause_in_windows(rank) or _cause_in_clocks(drift)
    queued = drift.parts.get("queued_ns")
    if queued is None or queued.rise < _MAIN_SHARE * drift.mean_rise_ns:
        return cause
    growth = rank.growth
    if cause.id in SAME_WORK or (cause.id == "host" and growth is not None and _ops_are_slower(growth)):
        return DriftCause("cores", _rise_of(drift, "queued_ns"))
    return cause


def _ops_are_slower(growth: WindowGrowth) -> bool:
    """Whether ops that run as often as at first, on inputs no larger, are slower by half of what the whole step is."""
    if _kind_of([op for op in growth.ops_at_lines if op.rise_ns > 0]) == "shapes":
        return False
    rows = [row for row in growth.ops.rows if row.name != PYTHON and row.before_ns and not _calls_more(row)]
    own_ns, more_ns = sum(row.before_ns for row in rows), sum(row.difference_ns for row in rows)
    return more_ns * growth.before_ns >= _MAIN_SHARE * growth.rise_ns * own_ns > 0


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
    rows = [row for row in growth.ops.rows if row.difference_ns > 0]
    more_calls = [row for row in rows if _calls_more(row)]
    of_backward = [row for row in more_calls if row.name.endswith(_BACKWARD)]
    others = [row for row in more_calls if row not in of_backward]
    backward_ns, calls_ns = (sum(row.difference_ns for row in some) for some in (of_backward, others))
    least_ns = 1 if _calls_grow_like_the_step(growth) else _CALLS_SHARE * growth.rise_ns
    if backward_ns >= max(least_ns, calls_ns):
        return _cause_of_rows("graph", of_backward, backward_ns, growth)
    if calls_ns >= least_ns:
        return _cause_of_rows("calls", others, calls_ns, growth)
    if not rows or rows[0].kind in _WAITS:
        return None
    if rows[0].name in _HOST_ROWS:
        return DriftCause("host", rows[0].difference_ns, _line_that_grows(rank))
    return _cause_of_rows("", [row for row in rows if row.name not in _HOST_ROWS], rows[0].difference_ns, growth)


def _calls_grow_like_the_step(growth: WindowGrowth) -> bool:
    """Whether a step runs so many more ops that calling them takes the time, on a GPU in idle time."""
    before, after = (
        sum(count or 0 for count in counts)
        for counts in zip(*((row.before_count, row.after_count) for row in growth.ops.rows), strict=True)
    )
    return (after - before) * growth.before_ns >= _MAIN_SHARE * growth.rise_ns * before > 0


def _calls_more(row: RowChange) -> bool:
    """Whether a step calls an op more often than at first."""
    return row.after_count is not None and row.after_count > _MORE_CALLS * (row.before_count or 0) > 0


def _cause_of_rows(kind: str, rows: Sequence[RowChange], rise_ns: int, growth: WindowGrowth) -> DriftCause:
    """The cause at the line at which ops of these rows take longer by most; a kind of "" is for `_kind_of` to say."""
    names = {row.name for row in rows}
    grown = [op for op in growth.ops_at_lines if op.name in names and op.rise_ns > 0]
    rise_at = Counter[SourceLocation | None]()
    for op in grown:
        rise_at[op.location] += op.rise_ns
    place = max(rise_at, key=lambda each: rise_at[each], default=None)
    there = [op for op in grown if op.location == place]
    kind = kind or _kind_of(there)
    shown = [op for op in there if kind != "shapes" or op.inputs == "larger"]
    evidence = [Evidence("grows most", rows[0].name), Evidence("more time in it", rows[0].difference_ns, "ns")]
    evidence += [
        Evidence("also grows", _describe_growth([op], kind))
        for op in grown
        if op not in there and op.rise_ns >= _ALSO_SHARE * rise_ns and (kind != "shapes" or op.inputs == "larger")
    ]
    line = place or next((each.location for each in growth.lines[:1] if each.rise_ns >= _ALSO_SHARE * rise_ns), None)
    return DriftCause(kind, rise_ns, line, tuple(evidence), _describe_growth(shown, kind))


def _kind_of(ops: Sequence[OpGrowth]) -> str:
    """Whether ops have larger inputs ("shapes") or take longer on the same ("ops"); else "slower", as for unknown."""
    rise_ns = Counter[str]()
    for op in ops:
        rise_ns[op.inputs] += op.rise_ns
    if rise_ns["larger"] >= _MAIN_SHARE * rise_ns.total() > 0:
        return "shapes"
    return "ops" if rise_ns["same"] >= _ALL_SHARE * rise_ns.total() > 0 else "slower"


def _line_that_grows(rank: Rank) -> SourceLocation | None:
    lines = () if rank.growth is None else rank.growth.lines
    return lines[0].location if lines and lines[0].rise_ns > 0 else None


def _cause_in_clocks(drift: RunDrift) -> DriftCause:
    """What the steps' own clocks say where no window shows more: the system's work, work on the CPU, or waits."""
    for part, kind in (("system_cpu_ns", "system"), ("cpu_ns", "cpu")):
        if part in drift.parts and drift.parts[part].rise >= _MAIN_SHARE * drift.mean_rise_ns:
            return DriftCause(kind, _rise_of(drift, part))
    return DriftCause("waits" if "cpu_ns" in drift.parts else "unknown")


def _describe_growth(ops: Sequence[OpGrowth], kind: str) -> str:
    """What ops at one line take, and what grew by the kind of cause; "" for none.

    For example "std and cat at job.py:15 take 3.10 ms early and 84.0 ms late, as their input grew from [360, 256] to
    [6720, 256]".
    """
    named = [op for op in ops if op.rise_ns >= _NAMED_SHARE * ops[0].rise_ns][:2]
    if not named:
        return ""
    first, (verb, whose) = named[0], ("takes", "its") if len(named) == 1 else ("take", "their")
    place = f" at {first.location.short}" if first.location else ""
    early, late = (format_ms(sum(each)) for each in zip(*((op.before_ns, op.after_ns) for op in named), strict=True))
    names = " and ".join(op.name for op in named)
    return f"{names}{place} {verb} {early} early and {late} late, {_describe_change(first, kind, whose)}"


def _describe_change(op: OpGrowth, kind: str, whose: str) -> str:
    if kind in ("calls", "graph"):
        early, late = (each.calls if each else 0 for each in (op.before, op.after))
        return f"as a step runs {early:,.0f} of {op.name} early and {late:,.0f} late"
    if op.before is None or op.after is None or op.inputs == "unknown":
        return "on inputs of unknown shapes"
    old, new = op.before.smallest, op.after.largest
    if op.inputs == "same":
        return f"on {list(max(new, key=prod))} both times"
    if op.inputs == "other":
        return "on inputs that vary in size"
    if len(old) != len(new):
        return f"as {whose} inputs grew from {len(old)} to {len(new)} tensors"
    grown = max(range(len(old)), key=lambda number: prod(new[number]) - prod(old[number]))
    return f"as {whose} input grew from {list(old[grown])} to {list(new[grown])}"
