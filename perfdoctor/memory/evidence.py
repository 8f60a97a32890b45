"""What is known of the instant of each memory event: the part of the training loop, the op, who asked for the memory.

A trace says it by what is around the event on its thread, a snapshot by the stack of the event.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.model import Frames, Ops, Ranges, Trace

FORWARD, BACKWARD, OPTIMIZER = range(3)
PHASES = ("forward", "backward", "optimizer")
"""Parts of the loop; what is in no backward pass and no optimizer's step counts as forward."""

_CALLS_MODULE = r"^torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl$"
_BUILDS_MODEL = (
    r"^torch/nn/(init|parameter)\.py\(|^torch/nn/modules/\w+\.py\(\d+\): (__init__|_apply|to|cuda|reset_parameters)$"
    r"|\): (load_state_dict|from_pretrained)$"
)
_STEPS = rf"{vocabulary.OPTIMIZER_FRAME}|^torch/optim/optimizer\.py\(\d+\): (wrapper|profile_hook_step)$"
_RUNS_BACKWARD = r"^torch/autograd/graph\.py\(\d+\): _engine_run_backward$"
# Names of C++ functions in the stacks of a snapshot.
_IN_ENGINE = r"\): torch::autograd::Engine::"
_RELEASES_GRAPH = r"\): torch::autograd::(SavedVariable::reset_data|deleteNode|.*::release_variables)"
_ACCUMULATES = r"\): (void )?torch::autograd::AccumulateGrad::"
_COMMUNICATES = r"\): (.* )?c10d::"
_COPIES_IN = r"\): .*THPVariable_(cuda|to)\("
_OP = re.compile(r"\): at::_ops::(\w+)::(?:call|redispatch)\(")
_ALLOCATES = re.compile(r"(aten::)?_?(new_)?(empty|resize|full|zeros|ones)(_\w+)?$")


@frozen_dataclass(eq=False)
class Phases:
    """The part of the loop in which each of some memory events happened.

    Attributes:
        phase: Index into `PHASES`.
        is_sure: Whether the phase is that of the event itself; else it is that of the event before it.
    """

    phase: Int8Array
    is_sure: BoolArray


@frozen_dataclass(eq=False)
class Evidence:
    """Where some allocations were made, a row each.

    Attributes:
        op: The innermost op that does more than to allocate, a row of `Trace.ops`; NONE where it is not known, as in a
            snapshot.
        op_name: The name of that op, as an index into `op_names`; NONE where it is not known.
        op_names: The names.
        in_module: Whether a module's forward pass, or an op that made a node of the backward pass, is around it.
        builds_model: Whether the model is being built, or moved to a device.
        copies_in: Whether data is loaded, or copied to the device outside of the model.
        communicates: Whether a collective, or what prepares one, is around it.
        accumulates: Whether a gradient is being kept.
    """

    op: Int32Array
    op_name: Int32Array
    op_names: tuple[str, ...]
    in_module: BoolArray
    builds_model: BoolArray
    copies_in: BoolArray
    communicates: BoolArray
    accumulates: BoolArray


class _Surroundings:
    """What is around some events of a trace on their threads."""

    def __init__(self, trace: Trace, rows: Int64Array) -> None:
        self.trace = trace
        self.at_ns, self.thread = trace.memory.time_ns[rows], trace.memory.thread[rows]

    @cached_property
    def op(self) -> Int32Array:
        """The innermost op around each."""
        ops = self.trace.ops
        return nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, self.at_ns, self.thread)

    def is_in(self, table: Ops | Frames | Ranges, which: str | BoolArray) -> BoolArray:
        """Whether one of some rows of a table, or one whose name a pattern matches, is around each."""
        matches = self.trace.match_rows(table, which) if isinstance(which, str) else which
        if not matches.any():
            return np.zeros(len(self.at_ns), bool)
        columns = table.start_ns[matches], table.end_ns[matches], table.thread[matches]
        return nesting.innermost(*columns, self.at_ns, self.thread) >= 0


class _Stacks:
    """The frames in the stacks of some events of a snapshot."""

    def __init__(self, trace: Trace, rows: Int64Array) -> None:
        self._strings, self._count = trace.strings, len(trace.stacks)
        self._stack = trace.memory.stack[rows]
        self._code = np.array([code for each in trace.stacks for code in each], np.int64)
        self._of_stack = np.repeat(np.arange(self._count), [len(each) for each in trace.stacks])

    def has_frame(self, pattern: str) -> BoolArray:
        """Whether the pattern is found in a frame of each."""
        search = re.compile(pattern).search
        matches = np.array([search(text) is not None for text in self._strings], bool)
        found = np.zeros(self._count + 1, bool)  # the last is that of no stack
        found[self._of_stack[matches[self._code]]] = True
        result: BoolArray = found[self._stack]
        return result


def phases_of(trace: Trace, joins: ForwardOps, rows: Int64Array) -> Phases:
    """The phases of memory events of one device, in their order.

    A free outside of backward passes and optimizers has the phase of the event before it: what one part of the loop
    made is often freed in the next one, when a function returns.
    """
    if trace.stacks:
        stacks = _Stacks(trace, rows)
        backward = stacks.has_frame(_IN_ENGINE)
        stepping = stacks.has_frame(_STEPS) & ~stacks.has_frame(_CALLS_MODULE)
    else:
        around = _Surroundings(trace, rows)
        backward = np.append(joins.in_backward, False)[around.op]
        backward |= around.is_in(trace.ranges, vocabulary.BACKWARD_RANGE) | around.is_in(trace.frames, _RUNS_BACKWARD)
        stepping = optimizer_steps_of(trace).around(around.at_ns, around.thread) >= 0
        if not len(trace.ranges):
            stepping |= around.is_in(trace.frames, _STEPS)
    own = np.where(backward, BACKWARD, np.where(stepping, OPTIMIZER, FORWARD)).astype(np.int8)
    is_sure = (trace.memory.bytes[rows] > 0) | backward | stepping
    last = np.maximum.accumulate(np.where(is_sure, np.arange(len(rows)), 0))
    return Phases(own[last], is_sure)


def releases_graph(trace: Trace, rows: Int64Array) -> BoolArray:
    """Whether a node of a backward pass gives memory back in each event; only a snapshot of all frames says so."""
    return _Stacks(trace, rows).has_frame(_RELEASES_GRAPH)


def evidence_of(trace: Trace, joins: ForwardOps, rows: Int64Array) -> Evidence:
    """Where some allocations were made, by the memory events that made them."""
    return _by_stacks(trace, rows) if trace.stacks else _by_surroundings(trace, joins, rows)


def _by_surroundings(trace: Trace, joins: ForwardOps, rows: Int64Array) -> Evidence:
    around = _Surroundings(trace, rows)
    makes_node = np.zeros(len(trace.ops) + 1, bool)
    makes_node[joins.forward] = True
    in_module = around.is_in(trace.ops, makes_node[:-1]) | around.is_in(trace.frames, vocabulary.MODULE_FRAME)
    loads = around.is_in(trace.ranges, vocabulary.LOADER_NEXT) | around.is_in(
        trace.frames, vocabulary.LOADER_NEXT_FRAME
    )
    collective = f"{vocabulary.COLLECTIVE_CALL}|{vocabulary.COLLECTIVE_RANGE}"
    communicates = around.is_in(trace.ranges, collective) | around.is_in(trace.ops, collective)
    op, names = _asking_ops(trace, around.op)
    return Evidence(
        op=op,
        op_name=names,
        op_names=trace.strings,
        in_module=in_module,
        builds_model=around.is_in(trace.frames, _BUILDS_MODEL) & ~in_module,
        copies_in=loads | around.is_in(trace.ops, _copying_ops(trace)),
        communicates=communicates,
        accumulates=around.is_in(trace.ops, vocabulary.ACCUMULATE_GRAD),
    )


def _asking_ops(trace: Trace, inner: Int32Array) -> tuple[Int32Array, Int32Array]:
    """The innermost ops that do more than to allocate, and the codes of their names."""
    ops, op = trace.ops, inner.copy()
    allocates = np.append(match_op_names(trace, lambda name: _ALLOCATES.match(name) is not None), False)
    while True:
        rows = np.flatnonzero(allocates[np.append(ops.name, NONE)[op]] & (np.append(ops.parent, NONE)[op] >= 0))
        if not len(rows):
            return op, np.append(ops.name, np.int32(NONE))[op]
        op[rows] = ops.parent[op[rows]]


def _copying_ops(trace: Trace) -> BoolArray:
    """The outermost ops in which a tensor is moved from the host to the device."""
    gpu, ops = trace.gpu, trace.ops
    result = np.zeros(len(ops), bool)
    copied = gpu.op[copy_kinds_of(trace).matches(vocabulary.HTOD)]
    top = nesting.outermost(ops.parent, copied[copied >= 0])
    result[top] = match_op_names(trace, lambda name: name in ("aten::to", "aten::_to_copy", "aten::cuda"))[
        ops.name[top]
    ]
    return result


def _by_stacks(trace: Trace, rows: Int64Array) -> Evidence:
    stacks = _Stacks(trace, rows)
    in_module = stacks.has_frame(_CALLS_MODULE)
    builds = stacks.has_frame(_BUILDS_MODEL) & ~in_module
    names, op_of = _ops_in_stacks(trace)
    return Evidence(
        op=np.full(len(rows), NONE, np.int32),
        op_name=op_of[trace.memory.stack[rows]],
        op_names=names,
        in_module=in_module,
        builds_model=builds,
        copies_in=(stacks.has_frame(_COPIES_IN) & ~in_module & ~builds)
        | stacks.has_frame(vocabulary.LOADER_NEXT_FRAME),
        communicates=stacks.has_frame(_COMMUNICATES),
        accumulates=stacks.has_frame(_ACCUMULATES),
    )


def _ops_in_stacks(trace: Trace) -> tuple[tuple[str, ...], Int32Array]:
    """The names of ops, and for each stack the number of that of its innermost op that does more than to allocate."""
    found = {code: match[1] for code, text in enumerate(trace.strings) if (match := _OP.search(text))}
    number_of: dict[str, int] = {}
    op_of = np.full(len(trace.stacks) + 1, NONE, np.int32)
    for row, stack in enumerate(trace.stacks):
        ops = [found[code] for code in stack if code in found]
        op = next((op for op in ops if not _ALLOCATES.match(op)), ops[-1] if ops else None)
        if op is not None:
            op_of[row] = number_of.setdefault(f"aten::{op}", len(number_of))
    return tuple(number_of), op_of
