"""The passes of an engine or a loop in words: an account for each kind of pass. No layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfdoctor.analysis.context.name_signs import SERVING_ENGINES
from perfdoctor.report.pass_summary import PassSummary
from perfdoctor.report.report import Report
from perfdoctor.reporters.time_rows import TimeRow, TimeRows
from perfdoctor.units import format_count, format_duration, format_share

# What takes less of a pass is not named.
_MIN_SHARE = 0.01
_NAMED = 2
_WORK: Mapping[str, str] = {
    "no_requests": "waiting for requests",
    "preparing": "preparing inputs",
    "model": "running the model",
    "between": "between passes",
}
_ALONE = "recorded alone: in a row of passes the engine prepares each while the GPU works on the one before"


def pass_text_of(report: Report) -> TimeRows | None:
    """The passes on the rank whose passes take longest: their mean time, the GPU's work in it; None without any."""
    if not report.passes:
        return None
    longest = max(report.passes, key=lambda row: row.time_ns * row.passes).rank
    rows = [row for row in report.passes if row.rank == longest]
    on_rank = f" on rank {longest}" if len(report.account) > 1 else ""
    of_whom = "engine" if SERVING_ENGINES.intersection(report.context.frameworks) else "model"
    title = f"Passes of the {of_whom}{on_rank}: mean time, GPU busy"
    is_only = report.context.schedules_ahead and sum(row.passes for row in rows) == 1
    return TimeRows(title, tuple(_describe(row, is_only and 2 * row.busy_ns >= row.time_ns) for row in rows))


def _describe(row: PassSummary, is_alone: bool) -> TimeRow:
    sizes = [f"of {format_count(round(row.requests), 'request')}"] if row.requests else []
    sizes += [format_count(round(row.tokens), "token")] if row.tokens and row.tokens != row.requests else []
    sizes += [f"padded to {round(row.rows)}"] if row.rows and row.tokens and row.rows > row.tokens else []
    kind = "" if row.kind == "other" else f"{row.kind} "
    passes = format_count(row.passes, f"{kind}pass", f"{kind}passes")
    parts = [" ".join((passes, ", ".join(sizes))).strip(), *_details(row), *([_ALONE] if is_alone else [])]
    return TimeRow(format_duration(row.time_ns), format_share(row.busy_ns / max(row.time_ns, 1)), "; ".join(parts))


def _details(row: PassSummary) -> Iterator[str]:
    """What is large of a pass: its idle time by what the CPU did, collectives, the cache; and its floor."""
    least_ns = _MIN_SHARE * row.time_ns
    idle = sorted(((ns, name) for name, ns in row.idle_ns.items() if ns >= least_ns), reverse=True)[:_NAMED]
    if idle:
        yield "idle: " + ", ".join(f"{_WORK.get(name, name)} {format_duration(ns)}" for ns, name in idle)
    if row.communication_ns >= least_ns:
        by_layer = f" ({row.collectives / row.cache_writes:.2g} a layer)" if row.cache_writes >= 1 else ""
        yield f"{format_count(round(row.collectives), 'collective')}{by_layer} {format_duration(row.communication_ns)}"
    if row.cache_ns >= least_ns:
        yield f"KV cache {format_duration(row.cache_ns)}"
    if row.floor_ns is not None:
        yield f"reading its weights takes {format_duration(row.floor_ns)} at least"
