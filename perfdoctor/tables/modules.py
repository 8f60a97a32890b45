"""The table of modules: the tree of nn.Modules with the time of what each launches, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perfdoctor.analysis.host.module_tree import ModuleTree
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.tables.shared_columns import Source, choose_source
from perfdoctor.tables.work_in_window import OUTSIDE, Work, costs_of_work, modules_of_work, sum_by, work_in_window
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array
from perfdoctor.trace.tables import intervals as iv

_NO_MODULES = "Python frames were recorded, but no nn.Module is called in them"
_NO_NUMBERS = (
    "the trace has no sequence numbers, which recent versions of PyTorch record: the work of the backward pass belongs "
    "to no module"
)
_NO_STACKS = (
    "the trace has no Python frames, which name the modules: record with with_stack=True, or with `perfdoctor run`: "
    "with_modules=True alone records no modules of eager programs"
)


@frozen_dataclass(eq=False)
class _Amounts:
    """What belongs to each module itself, and behind the modules to each of `OUTSIDE`; as recorded in the window."""

    forward_ns: Int64Array
    backward_ns: Int64Array
    idle_ns: Int64Array
    flops: FloatArray
    known_flops: Int64Array
    bytes: FloatArray
    known_bytes: Int64Array
    launches: Int64Array


def modules_table(rank: Rank, by: str) -> Table:
    """The modules of a program: what the GPU runs for each, of a program on the CPU what its ops take there.

    Work of a backward pass belongs to the module of its forward op, by the numbers of autograd. `by` is "module" for
    the tree, each module below that around it, the longest first; or "class" for all modules of a class together.
    """
    source = choose_source("modules", rank, "modules")
    inner = source.rank
    tree = inner.module_tree
    if not source.has_need:
        return source.empty(by, _NO_MODULES if "stacks" in rank.available_data else _NO_STACKS)
    work = work_in_window(inner)
    own = _own_amounts(inner, work)
    calls = np.append(_calls_in_window(inner, tree), np.zeros(len(OUTSIDE), np.int64))
    rows = _rows_of_classes(source) if by == "class" else _rows_of_tree(source, own.forward_ns + own.backward_ns)
    return _build(source, by, rows, own, calls)


def _own_amounts(rank: Rank, work: Work) -> _Amounts:
    count = len(rank.module_tree) + len(OUTSIDE)
    row = modules_of_work(rank, work.at_ns, work.thread, work.op, work.items)
    costs = costs_of_work(rank, work)
    return _Amounts(
        forward_ns=sum_by(row, np.where(work.in_backward, 0, work.time_ns), count),
        backward_ns=sum_by(row, np.where(work.in_backward, work.time_ns, 0), count),
        idle_ns=_idle_of(rank, count),
        flops=np.bincount(row, np.nan_to_num(costs.flops), count).astype(np.float64),
        known_flops=sum_by(row, ~np.isnan(costs.flops), count),
        bytes=np.bincount(row, np.nan_to_num(costs.bytes), count).astype(np.float64),
        known_bytes=sum_by(row, ~np.isnan(costs.bytes), count),
        launches=sum_by(row, np.ones(len(work), np.int64), count),
    )


def _idle_of(rank: Rank, count: int) -> Int64Array:
    """The idle time that the CPU caused in each module; what it did not cause is in no row."""
    instants = rank.idle_instants
    known = instants.at_ns != NONE
    row = modules_of_work(rank, instants.at_ns, instants.thread, instants.op)
    return sum_by(row[known], instants.weight_ns[known], count)


def _calls_in_window(rank: Rank, tree: ModuleTree) -> Int64Array:
    """How often each module is called in the window.

    The CPU runs ahead of the GPU: a call counts where the window has most of what the outermost call around it
    launches, and where that launches nothing if it begins while the CPU launches what runs in the window.
    """
    start_ns = rank.trace.frames.start_ns[tree.frames]
    if rank.device_kind == "cpu":
        return sum_by(tree.module, iv.contains(rank.window, start_ns), len(tree))
    at_ns, thread = launch_instants(rank.trace)
    call = tree.calls_of_work(rank.forward_ops, at_ns, thread, rank.trace.gpu.op)
    outermost = tree.outermost
    root = np.where(call >= 0, outermost[call], len(outermost))
    dur_ns, count = rank.trace.gpu.dur_ns, len(outermost) + 1
    all_ns = sum_by(root, dur_ns, count)[outermost]
    inside_ns = sum_by(root, np.where(rank.in_window, dur_ns, 0), count)[outermost]
    launched_ns = at_ns[rank.in_window & (at_ns != NONE)]
    first_ns, last_ns = (launched_ns.min(), launched_ns.max()) if len(launched_ns) else (0, -1)
    during = (start_ns >= first_ns) & (start_ns <= last_ns)
    return sum_by(tree.module, np.where(all_ns > 0, 2 * inside_ns >= all_ns, during), len(tree))


@frozen_dataclass(eq=False)
class _Rows:
    """The rows of the table, each with the places in `_Amounts` whose amounts are its own, and all that count for it.

    Attributes:
        names: The name of each row.
        own: For each row the places that are its own.
        all: For each row its own places, and those of the modules within.
        columns: What else says which they are.
    """

    names: list[str]
    own: list[list[int]]
    all: list[list[int]]
    columns: tuple[Column, ...]


def _rows_of_tree(source: Source, weight_ns: Int64Array) -> _Rows:
    """A row for each module, below that around it and above what is in it; siblings by their weight."""
    tree = source.rank.module_tree
    children: dict[int, list[int]] = {}
    for module, parent in enumerate(tree.parent.tolist()):
        children.setdefault(parent, []).append(module)
    inclusive = tree.add_to_parents(weight_ns[: len(tree)])
    within: list[list[int]] = [[module] for module in range(len(tree))]
    for module in reversed(range(len(tree))):
        for child in children.get(module, []):
            within[module] += within[child]
    order: list[int] = []
    stack = sorted(children.get(NONE, []), key=lambda module: (inclusive[module], -module))
    while stack:
        module = stack.pop()
        order.append(module)
        stack += sorted(children.get(module, []), key=lambda child: (inclusive[child], -child))
    outside = [len(tree) + number for number in range(len(OUTSIDE))]
    depth, paths, names = tree.depth.tolist(), tree.paths, tree.names
    places = [[module] for module in (*order, *outside)]
    parents = [paths[tree.parent[module]] if tree.parent[module] >= 0 else None for module in order]
    none = [None] * len(outside)
    return _Rows(
        [*(names[module] for module in order), *OUTSIDE],
        places,
        [*(within[module] for module in order), *places[len(order) :]],
        (
            source.column("depth", [*(depth[module] for module in order), *(0 for _ in outside)]),
            source.column("parent", [*parents, *none]),
            source.column("path", [*(paths[module] for module in order), *none]),
        ),
    )


def _rows_of_classes(source: Source) -> _Rows:
    """A row for all modules of a class; what is within two of them counts once."""
    tree = source.rank.module_tree
    classes = tree.classes
    of_class: dict[str, list[int]] = {}
    around: dict[str, list[int]] = {}
    above: list[frozenset[str]] = []
    for module, (name, parent) in enumerate(zip(classes, tree.parent.tolist(), strict=True)):
        of_class.setdefault(name, []).append(module)
        above.append((above[parent] if parent >= 0 else frozenset()) | {name})
        for each in above[-1]:
            around.setdefault(each, []).append(module)
    outside = [[len(tree) + number] for number in range(len(OUTSIDE))]
    names = list(of_class)
    modules = [len({tree.names[module] for module in of_class[name]}) for name in names]
    count = np.array([*modules, *(0 for _ in outside)])
    return _Rows(
        [*names, *OUTSIDE],
        [*(of_class[name] for name in names), *outside],
        [*(around[name] for name in names), *outside],
        (source.column("modules", count, known=count > 0),),
    )


def _build(source: Source, by: str, rows: _Rows, own: _Amounts, calls: Int64Array) -> Table:
    total, own_total = _adder_of(rows.all), _adder_of(rows.own)
    forward_ns, backward_ns, idle_ns = total(own.forward_ns), total(own.backward_ns), total(own.idle_ns)
    own_ns, count, launches = own_total(own.forward_ns + own.backward_ns), own_total(calls), total(own.launches)
    steps, has_idle = source.steps, np.full(len(rows.names), source.rank.device_kind == "gpu")
    flops = np.where(total(own.known_flops) > 0, total(own.flops), np.nan)
    moved = np.where(total(own.known_bytes) > 0, total(own.bytes), np.nan)
    columns = (
        *source.name_and_time(rows.names, by, forward_ns + backward_ns),
        source.time("own_ns", own_ns),
        source.time("forward_ns", forward_ns),
        source.time("backward_ns", backward_ns),
        source.time("idle_ns", idle_ns, has_idle),
        source.count(count),
        source.column("flops", flops),
        source.column("bytes", moved),
        *rows.columns,
        source.column("launches", np.round(launches / steps, 2), known=has_idle),
        source.column("window_count", count, known=count > 0),
        source.column("window_ns", forward_ns + backward_ns),
    )
    unjoined = backward_ns.any() and not source.rank.forward_ops.has_numbers
    notes = (*source.notes, _NO_NUMBERS) if unjoined else source.notes
    table = Table("modules", by, columns, rank=source.number, notes=notes)
    table = table.take([row for row, places in enumerate(rows.all) if launches[row] or count[row] or idle_ns[row]])
    return table if by == "module" else table.sort("step_ns")


def _adder_of(places: list[list[int]]) -> Callable[[Any], Any]:
    """A function that adds up some amounts for each row, which has at least one place."""
    every = np.concatenate(places)
    first = np.cumsum([0, *map(len, places[:-1])])
    return lambda amounts: np.add.reduceat(amounts[every], first)
