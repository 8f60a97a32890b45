"""The tree of nn.Modules that a program calls, and in which of them some work was launched.

The profiler names a module by its class and a number: "nn.Module: Linear_0". A module that is called from two others
is in the tree twice::

    ResNet_0
      Conv2d_0
      Sequential_0
        Conv2d_1
"""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import frame_thread_of
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array, IntArray
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Trace

_NUMBER = re.compile(r"_\d+$")


@frozen_dataclass(eq=False)
class ModuleTree:
    """The modules of a trace, each at each place of the tree at which it is called; parents stand before children.

    Attributes:
        trace: The trace.
        names: What each is called: "Conv2d_1".
        parent: The number of the module around it; NONE for one at the top.
        frames: The calls, rows of `trace.frames`, by start.
        module: For each call the number of its module.
        outermost: For each call the place in `frames` of the outermost call around it.
    """

    trace: Trace
    names: tuple[str, ...]
    parent: Int64Array
    frames: Int64Array
    module: Int64Array
    outermost: Int64Array

    def __len__(self) -> int:
        return len(self.names)

    @property
    def depth(self) -> Int64Array:
        """How many modules are around each."""
        depth = np.zeros(len(self), np.int64)
        for module in range(len(self)):
            if self.parent[module] >= 0:
                depth[module] = depth[self.parent[module]] + 1
        return depth

    @property
    def paths(self) -> list[str]:
        """The names from the top of the tree down to each, as "ResNet_0/Sequential_0/Conv2d_1"."""
        paths: list[str] = []
        for name, parent in zip(self.names, self.parent.tolist(), strict=True):
            paths.append(name if parent < 0 else f"{paths[parent]}/{name}")
        return paths

    @property
    def classes(self) -> list[str]:
        """The class of each module: "Conv2d"."""
        return [_NUMBER.sub("", name) for name in self.names]

    def add_to_parents(self, own: IntArray) -> Int64Array:
        """For each module its own amount and that of all modules in it."""
        inclusive = own.astype(np.int64)
        for module in reversed(range(len(self))):
            if self.parent[module] >= 0:
                inclusive[self.parent[module]] += inclusive[module]
        return inclusive

    def calls_at(self, at_ns: Int64Array, thread: IntArray) -> Int64Array:
        """For each instant and thread the innermost call of a module around it, a place in `frames`; NONE for none."""
        return innermost_calls(self.trace, self.frames, at_ns, thread)

    def calls_of_work(self, joins: ForwardOps, at_ns: Int64Array, thread: IntArray, op: IntArray) -> Int64Array:
        """For each piece of work the call of a module that it belongs to, a place in `frames`; NONE for none.

        Work of a backward pass belongs to the call that made the node of the graph, unless a module that the node calls
        launched it: then an activation is computed again. `at_ns` is when each was launched on the CPU, `op` the
        innermost op that launched it: NONE where not known.
        """
        call = self.calls_at(at_ns, thread)
        ops, node = self.trace.ops, np.append(joins.node, NONE)[op]
        rows = np.flatnonzero(node >= 0)
        at_node = self.calls_at(ops.start_ns[node[rows]], ops.thread[node[rows]])
        forward = joins.forward[node[rows]]
        from_forward = self.calls_at(np.append(ops.start_ns, NONE)[forward], np.append(ops.thread, 0)[forward])
        again = (call[rows] >= 0) & (call[rows] != at_node)
        call[rows] = np.where(again, call[rows], from_forward)
        return call


def find_module_calls(trace: Trace) -> Int64Array:
    """The calls of modules, rows of `trace.frames`."""
    return np.flatnonzero(trace.match_rows(trace.frames, vocabulary.MODULE_FRAME))


def innermost_calls(trace: Trace, calls: Int64Array, at_ns: Int64Array, thread: IntArray) -> Int64Array:
    """For each instant and thread the innermost of some calls (rows of `trace.frames`) around it: its place among them.

    It is NONE where no call is around it, or the instant is NONE.
    """
    frames = trace.frames
    threads = distinct(thread.astype(np.int32))
    of_frames = np.array([frame_thread_of(trace, each) for each in threads.tolist()], np.int32)
    on_thread = of_frames[np.searchsorted(threads, thread)] if len(threads) else thread.astype(np.int32)
    start_ns, end_ns = frames.start_ns[calls], frames.end_ns[calls]
    found = nesting.innermost(start_ns, end_ns, frames.thread[calls], at_ns, on_thread)
    return np.where(at_ns != NONE, found, NONE).astype(np.int64)


def innermost_modules(trace: Trace, at_ns: Int64Array, thread: IntArray) -> Int64Array:
    """For each instant and thread the innermost module around it, the code of its name; NONE for none."""
    calls = find_module_calls(trace)
    inside = innermost_calls(trace, calls, at_ns, thread)
    return np.where(inside >= 0, np.append(trace.frames.name[calls], NONE)[inside], NONE).astype(np.int64)


def module_tree_of(trace: Trace, joins: ForwardOps) -> ModuleTree:
    """The tree of the modules of a trace; empty where none were recorded.

    A module that a backward pass calls without those around it, to compute an activation again, is the one that the
    forward pass calls by that name.
    """
    frames = trace.frames
    rows = find_module_calls(trace)
    name = frames.name[rows].astype(np.int64)
    around = nesting.parents(frames.start_ns[rows], frames.end_ns[rows], frames.thread[rows])
    caller = around.astype(np.int64)
    again = (caller < 0) & np.isin(name, name[caller >= 0]) & _in_backward(trace, joins, rows)
    number_of: dict[tuple[int, int], int] = {}
    module = np.full(len(rows) + 1, NONE, np.int64)  # the last entry is that of the caller NONE
    _descend(np.flatnonzero((caller < 0) & ~again), caller, name, module, number_of)
    first_of: dict[int, int] = {}
    for (_, each), number in number_of.items():
        first_of.setdefault(each, number)
    for row in np.flatnonzero(again).tolist():
        module[row] = first_of.get(int(name[row]), NONE)
    unknown = again & (module[:-1] < 0)
    _descend(np.flatnonzero(unknown), caller, name, module, number_of)
    _descend(_called_by(again & ~unknown, caller), caller, name, module, number_of)
    texts = (trace.strings[each].removeprefix(vocabulary.MODULE_FRAME_PREFIX) for _, each in number_of)
    return ModuleTree(
        trace=trace,
        names=tuple(texts),
        parent=np.array([parent for parent, _ in number_of], np.int64),
        frames=rows,
        module=module[:-1],
        outermost=nesting.outermost(around, np.arange(len(rows), dtype=np.int32)).astype(np.int64),
    )


def _descend(
    level: Int64Array, caller: Int64Array, name: Int64Array, module: Int64Array, number_of: dict[tuple[int, int], int]
) -> None:
    """Number the modules of some calls and, level by level, of those within: by the caller's module and the name."""
    while len(level):
        key = np.column_stack((module[caller[level]], name[level]))
        pairs, which = np.unique(key, axis=0, return_inverse=True)
        numbers = [number_of.setdefault((parent, each), len(number_of)) for parent, each in pairs.tolist()]
        module[level] = np.array(numbers, np.int64)[which.reshape(-1)]
        called = np.zeros(len(name), bool)
        called[level] = True
        level = _called_by(called, caller)


def _called_by(calls: BoolArray, caller: Int64Array) -> Int64Array:
    """The calls that some calls make."""
    result: Int64Array = np.flatnonzero(np.append(calls, False)[caller])
    return result


def _in_backward(trace: Trace, joins: ForwardOps, frames: Int64Array) -> BoolArray:
    """For each of some Python functions whether a node of a backward pass calls it."""
    ops, table = trace.ops, trace.frames
    around = nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, table.start_ns[frames], table.thread[frames])
    return np.append(joins.in_backward, False)[around]
