"""What only a model in training mode does in a forward pass: dropout that draws, batch norm by the batch's statistics.

A module's batch norm counts its batches before it is called, in training mode alone, which tells where the profiler
did not record the arguments of ops::

    aten::add_ (num_batches_tracked += 1)   aten::batch_norm [ aten::_batch_norm_impl_index [ aten::cudnn_batch_norm ]]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoctor.analyzers._cpu_evidence import ops_within
from perfdoctor.rules import (
    NONE,
    BoolArray,
    GpuQuery,
    OpQuery,
    Rank,
    RecordedInputs,
    Trace,
    UnusableInputsError,
    distinct_rows,
    frozen_dataclass,
    vocabulary,
)

# Arguments of batch norm: its running mean, None in a model that never keeps statistics, and `training`.
_RUNNING_MEAN, _TRAINING = 3, 5
# Arguments of native_dropout: its input, p, and `train`.
_TRAIN = 2
# From an op that draws to the call of dropout around it: dropout [ native_dropout [ bernoulli_ ] ].
_MAX_DEPTH = 3
# Share of the calls of batch norm that an addition comes right before; fewer are additions of the model, such as those
# of a residual block that begins with a norm.
_MIN_COUNTED = 0.9


@frozen_dataclass(eq=False)
class TrainingMode:
    """The ops of the window that show training mode, each call once, and kernels that show it.

    Attributes:
        dropouts: Calls of dropout that draw.
        norms: Calls of batch norm that use the statistics of the batch, in models that keep statistics.
        counters: The additions to `num_batches_tracked` right before them, where they were found.
        kernels: Kernels that only training mode launches, whoever launched them.
        evaluating_norms: Calls of batch norm that use the statistics of training, by their recorded arguments.
    """

    dropouts: OpQuery
    norms: OpQuery
    counters: OpQuery
    kernels: GpuQuery
    evaluating_norms: OpQuery

    @property
    def is_of_dropout_alone(self) -> bool:
        """Whether dropout draws in a model that is in evaluation mode otherwise: model.eval() does not end that."""
        return bool(len(self.dropouts) and len(self.evaluating_norms)) and not len(self.norms)

    @property
    def is_seen(self) -> bool:
        """Whether anything shows it."""
        return any(map(len, (self.dropouts, self.norms, self.kernels)))


def find_training_mode(rank: Rank) -> TrainingMode:
    """What shows in the window that the model is in training mode."""
    trace, ops = rank.trace, rank.ops.in_steps()
    is_norm = trace.match_rows(trace.ops, vocabulary.BATCH_NORM_OP)
    in_training, evaluating, counters = _find_norms(trace, is_norm)
    # Kernels tell where arguments and counters do not; of an op that says the contrary they are those of another norm.
    excluded = ops_within(trace, trace.match_rows(trace.ops, vocabulary.INSTANCE_NORM_OP)) | (is_norm & ~in_training)
    kernels = rank.kernels.in_steps().named(f"{vocabulary.BATCH_NORM_TRAINING_KERNEL}|{vocabulary.DROPOUT_KERNEL}")
    launched_by = trace.gpu.op
    kernels = kernels.where(~np.append(excluded, False)[launched_by])
    norms, evaluating_norms = (ops.where(_outermost(trace, marks)) for marks in (in_training, evaluating))
    return TrainingMode(ops.where(_find_dropouts(trace)), norms, ops.where(counters), kernels, evaluating_norms)


def _find_dropouts(trace: Trace) -> BoolArray:
    """For each op whether it is a call of dropout that draws: the outermost one."""
    ops = trace.ops
    calls = trace.match_rows(ops, vocabulary.DROPOUT_CALL)
    native = trace.match_rows(ops, vocabulary.DROPOUT_THAT_DRAWS)
    native &= ~_match_arguments(trace, native, lambda inputs: _value(inputs, _TRAIN) == "False")
    around = np.flatnonzero(native | trace.match_rows(ops, vocabulary.RANDOM_DRAW))
    drawing = np.zeros(len(ops), bool)
    for _ in range(_MAX_DEPTH):
        parents = ops.parent[around]
        around = parents[parents >= 0].astype(np.int64)
        drawing[around[calls[around]]] = True
    return _outermost(trace, drawing | native)


def _find_norms(trace: Trace, is_norm: BoolArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    """For each op whether it is a batch norm in training mode, one in evaluation mode, a count of one's batches."""
    nothing = np.zeros(len(trace.ops), bool)
    if not is_norm.any():
        return nothing, nothing, nothing
    counted, counters = _find_counted(trace, is_norm)
    recorded = is_norm & (trace.ops.concrete >= 0)
    if not recorded.any():
        kernels = trace.match_rows(trace.gpu, vocabulary.BATCH_NORM_TRAINING_KERNEL)
        launching = nothing.copy()
        launching[trace.gpu.op[kernels & (trace.gpu.op >= 0)]] = True
        instance = ops_within(trace, trace.match_rows(trace.ops, vocabulary.INSTANCE_NORM_OP))
        return (counted | (launching & is_norm)) & ~instance, nothing, counters
    updates = trace.match_rows(trace.ops, vocabulary.UPDATING_BATCH_NORM_OP)
    keeps = _match_arguments(trace, recorded, lambda inputs: inputs.has_elements(_RUNNING_MEAN))
    trains = _match_arguments(trace, recorded, lambda inputs: _value(inputs, _TRAINING) == "True")
    in_training: BoolArray = keeps & (trains | updates)
    return in_training, recorded & keeps & ~in_training, counters if in_training.any() else nothing


def _find_counted(trace: Trace, is_norm: BoolArray) -> tuple[BoolArray, BoolArray]:
    """The batch norms that an addition comes right before, and these additions, where nearly all have one."""
    ops = trace.ops
    order = np.lexsort((ops.start_ns, ops.parent, ops.thread))
    same = (ops.thread[order][1:] == ops.thread[order][:-1]) & (ops.parent[order][1:] == ops.parent[order][:-1])
    before = np.full(len(ops), NONE, np.int64)
    before[order[1:]] = np.where(same, order[:-1], NONE)
    norms = np.flatnonzero(_outermost(trace, is_norm))
    adds = np.append(trace.match_rows(ops, r"^aten::add_$"), False)[before[norms]]
    counted, counters = np.zeros(len(ops), bool), np.zeros(len(ops), bool)
    if adds.mean() >= _MIN_COUNTED and len(norms) > 1:
        counted[norms[adds]] = True
        counters[before[norms[adds]]] = True
    return counted, counters


def _match_arguments(trace: Trace, wanted: BoolArray, test: Callable[[RecordedInputs], bool]) -> BoolArray:
    """For each op whether it is wanted, and its recorded inputs pass a test; each combination is read once."""
    rows = np.flatnonzero(wanted)
    columns = [column[rows] for column in (trace.ops.dims, trace.ops.types, trace.ops.concrete)]
    which, first = distinct_rows(columns, len(trace.strings))
    passes = [_passes(trace, [int(column[row]) for column in columns], test) for row in first.tolist()]
    result = np.zeros(len(trace.ops), bool)
    result[rows] = np.array(passes, bool)[which] if len(rows) else False
    return result


def _passes(trace: Trace, codes: list[int], test: Callable[[RecordedInputs], bool]) -> bool:
    if min(codes) < 0:
        return False
    dims, types, concrete = (trace.strings[code] for code in codes)
    try:
        return test(RecordedInputs.parse(dims, types, None, concrete))
    except UnusableInputsError:
        return False


def _value(inputs: RecordedInputs, index: int) -> object:
    """The recorded value of an argument that is no tensor; None where there is none."""
    values = inputs.concrete or ()
    return values[index] if index < len(values) else None


def _outermost(trace: Trace, marks: BoolArray) -> BoolArray:
    """Those of some ops whose parent is none of them."""
    result: BoolArray = marks & ~np.append(marks, False)[trace.ops.parent]
    return result
