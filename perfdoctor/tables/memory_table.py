"""The table of memory: what is allocated at the peak of a device, or the memory of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from perfdoctor.memory.categories import BEFORE_RECORDING, CATEGORIES
from perfdoctor.memory.device_memory import DeviceMemory, Peak, spans_of
from perfdoctor.rank import Rank
from perfdoctor.report.memory_summary import describe_failure, describe_instant, describe_memory
from perfdoctor.report.table import Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import code_modules, name_lines
from perfdoctor.tables.line_columns import LinesOfWork
from perfdoctor.tables.shared_columns import Groups, empty_table, make_column
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.units import format_size

_NOT_RECORDED = (
    "memory was not recorded: record with profile_memory=True, or take a snapshot "
    "(torch.cuda.memory._record_memory_history, then _dump_snapshot)"
)
_NO_OP = "op not known"
_ONLY_WHILE_RECORDING = "on the CPU the profiler counts what was allocated while it recorded"
_BEFORE = "before the recording"
_column = partial(make_column, owner="memory")


def memory_table(rank: Rank, by: str) -> Table:
    """What is allocated at the peak of the device with the highest one; the rows add up to it, to the byte.

    `by` is "category", "line", "module", "op" or "size"; by "step" it is the memory of each step instead.
    """
    source = rank.memory_source
    if source is None:
        return empty_table("memory", by, rank.rank, _NOT_RECORDED)
    memory = rank.memory[0]
    first, *others = rank.memory_summary
    sentences = (
        describe_memory(first),
        describe_instant(first),
        describe_failure(first),
        *map(describe_memory, others),
    )
    notes = [sentence for sentence in sentences if sentence]
    if memory.is_cpu:
        notes.append(_ONLY_WHILE_RECORDING)
    if by == "step":
        return _steps_table(source, memory, notes)
    peak = memory.peak
    if peak is None:
        return empty_table("memory", by, rank.rank, *notes)
    if by == "module" and not len(source.module_tree):
        missing = (
            "a snapshot does not name modules; use --by line"
            if memory.trace.stacks
            else explain_missing("stacks", frozenset())
        )
        return empty_table("memory", by, rank.rank, *notes, missing)
    return _peak_table(source, peak, by, notes)


def _peak_table(rank: Rank, peak: Peak, by: str, notes: Sequence[str]) -> Table:
    parts = np.flatnonzero(peak.bytes)
    names, code = _by_module(rank, peak) if by == "module" else _GROUPINGS[by](peak)
    groups = Groups.by(parts, peak.bytes[parts], code[parts])
    total = max(peak.allocated_bytes, 1)
    counts = groups.sum(parts < len(peak.holders.places)).astype(np.int64)
    columns = [
        _column("name", [names[each] for each in groups.of_first(code[parts])], title=by),
        _column("bytes", groups.time_ns),
        _column("share", groups.time_ns / total),
        _column("count", counts, known=counts > 0),
        replace(_column("max_bytes", groups.max_ns), is_main=by != "size"),
    ]
    if by != "category":
        columns.append(_column("category", groups.dominant(CATEGORIES, peak.categories[parts])))
    lines = LinesOfWork(*peak.lines)
    if by == "line":
        columns += name_lines(lines, groups.of_first(lines.code[parts]))[1]
    else:
        columns.append(_column("line", lines.names(groups.dominant_code(lines.code[parts]).tolist())))
    return Table("memory", by, tuple(columns), rank=rank.rank, notes=tuple(notes)).sort("bytes")


def _by_category(peak: Peak) -> tuple[Sequence[str], Int64Array]:
    return CATEGORIES, peak.categories.astype(np.int64)


def _by_line(peak: Peak) -> tuple[Sequence[str], Int64Array]:
    lines = LinesOfWork(*peak.lines)
    names = [*map(str, lines.locations), _BEFORE, "line not known"]
    return names, _with_rest(peak, lines.code.astype(np.int64), len(lines.locations))


def _by_module(rank: Rank, peak: Peak) -> tuple[Sequence[str], Int64Array]:
    """By the module, in a backward pass that of the forward op."""
    table, origin = rank.trace.memory, peak.memory.allocations.origin[peak.holders.places]
    at_ns = np.where(origin >= 0, table.time_ns[origin], NONE)
    names, code = code_modules(rank, at_ns, table.thread[origin], peak.holders.evidence.op)
    return [*names, _BEFORE], np.append(np.where(origin >= 0, code, len(names)), len(names))


def _by_op(peak: Peak) -> tuple[Sequence[str], Int64Array]:
    names, code = peak.holders.evidence.op_names, np.append(peak.holders.evidence.op_name, NONE)
    return [*names, _BEFORE, _NO_OP], _with_rest(peak, code.astype(np.int64), len(names))


def _with_rest(peak: Peak, code: Int64Array, count: int) -> Int64Array:
    """The codes with the next one for what was allocated before the recording, and the one after for the unknown."""
    is_before = peak.categories == BEFORE_RECORDING
    return np.where((code >= 0) & peak.has_origin, code, np.where(is_before, count, count + 1))


def _by_size(peak: Peak) -> tuple[Sequence[str], Int64Array]:
    """By the exact size: what is alike is often allocated by each layer."""
    sizes, code = np.unique(peak.bytes[:-1], return_inverse=True)
    return [*map(format_size, sizes.tolist()), _BEFORE], np.append(code.reshape(-1), len(sizes)).astype(np.int64)


_GROUPINGS: Mapping[str, Callable[[Peak], tuple[Sequence[str], Int64Array]]] = {
    "category": _by_category,
    "line": _by_line,
    "op": _by_op,
    "size": _by_size,
}


def _steps_table(rank: Rank, memory: DeviceMemory, notes: Sequence[str]) -> Table:
    steps = rank.steps
    if not steps.count or memory.peak is None:
        return empty_table("memory", "step", rank.rank, *notes, explain_missing("steps", frozenset()))
    spans = spans_of(memory, steps.intervals)
    numbers = steps.numbers or range(steps.count)
    begins, peaks, ends = (
        np.array(each, np.int64)
        for each in zip(*((s.begin_bytes, s.peak_bytes, s.end_bytes) for s in spans), strict=True)
    )
    columns = (
        _column("name", [f"step {number}" for number in numbers], title="step"),
        _column("peak_bytes", peaks),
        _column("begin_bytes", begins),
        _column("end_bytes", ends),
        _column("growth_bytes", ends - begins),
    )
    return Table("memory", "step", columns, rank=rank.rank, notes=tuple(notes))
