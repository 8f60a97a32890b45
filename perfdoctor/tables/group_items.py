"""GPU items of the window by name, shape, category, op, module or line, with the columns that say which they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import orjson

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.gpu import classify_op
from perfdoctor.gpu.roofline.recorded_inputs import name_of_type
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column
from perfdoctor.tables.line_columns import NO_LINE, LinesOfWork, line_columns, lines_of_work
from perfdoctor.tables.shared_columns import Groups, Need, make_column
from perfdoctor.tables.work_in_window import OUTSIDE, modules_of_work
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables.model import KERNEL, Trace

COPIES = "copy"
"""The category of copies and sets."""
# A list of tensors longer than this is given by its length.
_MAX_TENSORS = 4


class NamedGroups(NamedTuple):
    """Groups of GPU items.

    Attributes:
        groups: The groups.
        names: The name of each.
        columns: What else says which they are, as "shape".
    """

    groups: Groups
    names: list[str]
    columns: tuple[Column, ...] = ()

    @classmethod
    def by_code(cls, groups: Groups, names: Sequence[str], code: IntArray, *columns: Column) -> NamedGroups:
        """Groups whose items have one code each, which is the number of their name."""
        return cls(groups, [names[each] for each in groups.of_first(code)], columns)


def group_items(rank: Rank, items: Int64Array, by: str, of_what: str = "kernels") -> NamedGroups:
    """Some GPU items of a rank in groups.

    `items` are rows of `rank.trace.gpu`, and `by` is "name", "shape", "category", "op", "module" or "line". By "name"
    and "shape" a row has the item's own name ("kernels") or that of its op ("ops"), as `of_what` says.
    """
    if by in ("name", "shape"):
        return (_by_name if by == "name" else _by_shape)(rank, items, of_what)
    return _GROUPINGS[by](rank, items)


def needed_for(by: str) -> Need | None:
    """What has to be recorded to group by it."""
    return {"shape": "shapes", "line": "lines", "module": "modules"}.get(by)  # type: ignore[return-value]


def _names_of(rank: Rank, items: Int64Array, of_what: str) -> tuple[list[str] | tuple[str, ...], Int64Array]:
    """The names of what, and for each item the number of its name."""
    if of_what == "ops":
        return rank.gpu_labels.names, rank.gpu_labels.label[items]
    return rank.trace.strings, rank.trace.gpu.name[items].astype(np.int64)


def _by_name(rank: Rank, items: Int64Array, of_what: str) -> NamedGroups:
    names, code = _names_of(rank, items, of_what)
    return NamedGroups.by_code(Groups.of_gpu(rank.trace, items, code), names, code)


def _by_shape(rank: Rank, items: Int64Array, of_what: str) -> NamedGroups:
    trace = rank.trace
    names, code = _names_of(rank, items, of_what)
    dims, types = inputs_of_items(rank, items)
    groups = Groups.of_gpu(trace, items, code, dims, types)
    keys = shape_columns(trace, groups.of_first(dims), groups.of_first(types))
    return NamedGroups.by_code(groups, names, code, *keys)


def shape_columns(trace: Trace, dims: list[int], types: list[int]) -> tuple[Column, Column]:
    """The columns "shape" and "dtype" from the codes of recorded sizes and types."""
    shapes = [format_shape(trace.text(each)) for each in dims]
    dtypes = [format_types(trace.text(each)) for each in types]
    return make_column("shape", shapes), make_column("dtype", dtypes)


def inputs_of_items(rank: Rank, items: Int64Array) -> tuple[Int32Array, Int32Array]:
    """For each item the codes of the recorded shapes and types of its op's inputs, NONE where they are another's."""
    ops, op = rank.trace.ops, rank.trace.gpu.op[items]
    known = rank.gpu_labels.known[items]
    return (
        np.where(known, np.append(ops.dims, np.int32(NONE))[op], NONE).astype(np.int32),
        np.where(known, np.append(ops.types, np.int32(NONE))[op], NONE).astype(np.int32),
    )


def _by_category(rank: Rank, items: Int64Array) -> NamedGroups:
    names, code = category_of_items(rank, items)
    return NamedGroups.by_code(Groups.of_gpu(rank.trace, items, code), names, code)


def category_of_items(rank: Rank, items: Int64Array) -> tuple[list[str], Int64Array]:
    """Names of categories, and for each item the number of that of its kernel; copies and sets are `COPIES`."""
    trace, classes = rank.trace, rank.kernel_classes
    number_of: dict[str, int] = {COPIES: 0}
    code = np.zeros(len(trace.strings), np.int64)
    for name, kernel in classes.by_name.items():
        code[name] = number_of.setdefault(kernel.category, len(number_of))
    return list(number_of), np.where(trace.gpu.kind[items] == KERNEL, code[trace.gpu.name[items]], 0)


def _by_module(rank: Rank, items: Int64Array) -> NamedGroups:
    """By the module alone, wherever in the tree; work of a backward pass by that of its forward op."""
    trace = rank.trace
    at_ns, thread = launch_instants(trace)
    names, code = code_modules(rank, at_ns[items], thread[items], trace.gpu.op[items], items)
    return NamedGroups.by_code(Groups.of_gpu(trace, items, code), names, code)


def code_modules(
    rank: Rank, at_ns: Int64Array, thread: Int32Array, op: Int32Array, items: Int64Array | None = None
) -> tuple[list[str], Int64Array]:
    """Names of modules, and for each instant of a thread, with the op that runs there, the number of its module's name.

    In a backward pass it is the module of the forward op. Behind the modules stands what belongs to none.
    """
    names, of_module = number_texts([*rank.module_tree.names, *OUTSIDE])
    return names, of_module[modules_of_work(rank, at_ns, thread, op, items)]


def _by_line(rank: Rank, items: Int64Array) -> NamedGroups:
    """By the user's line; work of a backward pass by that of its forward op."""
    at_ns, thread = launch_instants(rank.trace)
    lines = lines_of_work(rank, at_ns[items], thread[items], rank.trace.gpu.op[items])
    groups = Groups.of_gpu(rank.trace, items, lines.code)
    return NamedGroups(groups, *name_lines(lines, groups.of_first(lines.code)))


def name_lines(lines: LinesOfWork, codes: list[int]) -> tuple[list[str], tuple[Column, ...]]:
    """The names of lines by their numbers, and their columns; NONE is a line that is not known."""
    names = [NO_LINE if each is None else str(each) for each in lines.at(codes)]
    return names, line_columns(lines, codes, by_line=True)


_GROUPINGS: Mapping[str, Callable[[Rank, Int64Array], NamedGroups]] = {
    "category": _by_category,
    "op": partial(_by_name, of_what="ops"),
    "module": _by_module,
    "line": _by_line,
}


def category_by_name(label: str) -> str | None:
    """The category of a label of ops, such as "addmm backward", by its name; None where that says nothing."""
    category = classify_op(label.removesuffix(" backward"))
    return None if category == "other" else category


def number_texts(texts: Sequence[str]) -> tuple[list[str], Int64Array]:
    """The distinct texts, and for each text the number of its own."""
    number_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(number_of), np.array([number_of[text] for text in texts], np.int64)


@lru_cache(maxsize=4096)
def format_shape(dims: str | None) -> str:
    """Recorded sizes as people write them: "[[64,784],[784,10],[]]" is "64x784, 784x10"; "" where there are none."""
    try:
        sizes = orjson.loads(dims or "")
    except orjson.JSONDecodeError:
        return ""
    tensors = [_format_tensor(each) for each in sizes] if isinstance(sizes, list) else []
    return ", ".join(filter(None, tensors))


def _format_tensor(sizes: object) -> str:
    if not isinstance(sizes, list) or not sizes:
        return ""
    if isinstance(sizes[0], list):
        if len(sizes) > _MAX_TENSORS:
            return f"list of {len(sizes)}"
        return "(" + ", ".join(filter(None, map(_format_tensor, sizes))) + ")"
    return "x".join(map(str, sizes))


@lru_cache(maxsize=4096)
def format_types(types: str | None) -> str:
    """The types of recorded tensors: '["c10::BFloat16","float","Scalar"]' is "bf16, fp32"; "" where there are none."""
    try:
        names = orjson.loads(types or "")
    except orjson.JSONDecodeError:
        return ""
    known = [name_of_type(each) for each in names] if isinstance(names, list) else []
    return ", ".join(dict.fromkeys(filter(None, known)))
