"""Where the work of a recording ran: on the GPU, on the CPU, or on a GPU whose work is not in the file.

The device is where the work ran, not what the file names. PyTorch writes the GPUs of the machine into every file, also
where the program never used one. A runtime call or a copy does not make a GPU program either: what counts is kernels,
launches of kernels, and the time that operators compute on the CPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import classify_kernel, classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Table, Trace
from perfdoctor.trace.tables.nesting import own_durations

DeviceKind: TypeAlias = Literal["gpu", "cpu", "gpu_not_recorded"]
"""What computes: a GPU, the CPU, or a GPU whose work was not recorded."""

# Launching a kernel takes an op up to some 20 us under the profiler where runtime calls are left out of its own time,
# and up to 100 us with them and with stacks: an op with more own time computes.
_MIN_OWN_NS, _MIN_OWN_WITH_CALLS_NS = 20_000, 100_000
# Ops that compute on the CPU for this share of the recording make it a program of the CPU ...
_MIN_CPU_SHARE = 0.5
# ... unless the kernels take more than this share of that time, or have all layers, or the CPU waits for the GPU for
# half as long as that.
_MAX_KERNEL_SHARE = 0.05
_MAX_WAIT_SHARE = 0.5
# An op of whose calls this share launches kernels belongs to the GPU: a thinned file lacks launches.
_MIN_LAUNCHING_SHARE = 0.1
# An op that computes on the CPU while the GPU works beside it may as well wait for it.
_MAX_BUSY_SHARE = 0.1
# Ops of the host side of a server convert tokens: they take less than this of the time.
_MAX_SERVER_SHARE = 0.1
# Fewer operators show no program.
_MIN_OPS = 10
# An op counts at most this many times the median of its name, or of all ops where there are fewer of it: the first
# call of a library takes seconds, once.
_MAX_OVER_MEDIAN, _MIN_ALIKE = 20, 3
# An op that blocks because the queue of launches is full takes as long as any other. On the CPU a few kinds of op have
# most of the time: over names, the shares of the time differ from the shares of the number by at least this much.
_MIN_CONCENTRATION = 0.4

# What an operator's name says. Views, allocations and wrappers compute nothing, however slow the machine is.
_PASSIVE = (
    r"(new_)?empty\w*|resize_\w*|set_|_?pin_memory|record_stream|as_strided_?|_?reshape\w*|_?unsafe_view|view\w*|t|t_"
    r"|transpose_?|permute|select|slice|narrow|split\w*|chunk|unbind|unsqueeze_?|squeeze_?|expand\w*|detach_?|alias"
    r"|(un)?flatten(_dense_tensors)?|lift_fresh|resolve_\w+|result_type|linear|matmul|conv[123]d|_?convolution"
    r"|batch_norm|_batch_norm_impl_index|layer_norm|dropout"
)
_COMPUTING_OP = rf"^(?!autograd|torch::|c10d::|aten::({_PASSIVE})$)\w+::"
_WAITING_OP = (
    r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|masked_select|_?unique\w*|equal|to|_to_copy|copy_|cpu|cuda"
    r"|bincount|repeat_interleave|index|index_put_?|_index_put_impl_)$"
)
"""Ops that may wait for a GPU: without recorded calls it is not known what their time is."""


@frozen_dataclass(eq=False)
class WhereItRan:
    """Where the work of a recording ran.

    Attributes:
        device_kind: What computed.
        cpu_ops: For each row of `trace.ops` whether it computes on the CPU, for so long that it matters.
        surely_cpu_ops: Which of them do so without doubt beside work of the GPU; none where it has none.
        cpu_ns: The own time of `cpu_ops` in the recording, or in its steps where it has some.
        kernel_launches: How many calls launched kernels or graphs of them.
    """

    device_kind: DeviceKind
    cpu_ops: BoolArray
    surely_cpu_ops: BoolArray
    cpu_ns: int
    kernel_launches: int


def find_where_it_ran(trace: Trace, steps: Intervals, loading: Intervals) -> WhereItRan:
    """Where the work of a trace ran, judged in its steps (n, 2), or over all its ops and calls without steps.

    The time inside a DataLoader (`loading`) is left out: a loop may load and decode on the CPU whatever it computes on.
    """
    calls, ops = trace.calls, trace.ops
    launching = trace.match_rows(calls, vocabulary.KERNEL_LAUNCH_CALL)
    window = iv.subtract(steps if len(steps) else _extent(trace), loading)
    own_ns, cpu_ops, surely_cpu_ops = _find_cpu_ops(trace, launching)
    cpu_ops &= iv.contains(window, ops.start_ns)
    cpu_ns = int(own_ns[cpu_ops].sum())
    return WhereItRan(
        device_kind=_judge(trace, window, launching, own_ns, cpu_ops),
        cpu_ops=cpu_ops,
        surely_cpu_ops=cpu_ops & surely_cpu_ops,
        cpu_ns=cpu_ns,
        kernel_launches=int(launching.sum()),
    )


def is_server_host(trace: Trace) -> bool:
    """Whether a process serves a model that runs in another one: frames of a server, and none that runs a model."""
    frames, ops = trace.frames, trace.ops
    if len(trace.gpu) or not trace.match_strings(frames, vocabulary.SERVER_FRAME).any():
        return False
    launches = trace.match_rows(trace.calls, vocabulary.LAUNCH_CALL).any()
    runs_model = trace.match_strings(frames, vocabulary.MODEL_RUNNER_FRAME).any()
    computes = ops.dur_ns[ops.parent < 0].sum() > _MAX_SERVER_SHARE * iv.total(_extent(trace, frames))
    return not (launches or runs_model or computes or _names_gpu_work(trace))


def _find_cpu_ops(trace: Trace, launching: BoolArray) -> tuple[Int64Array, BoolArray, BoolArray]:
    """The own time of each op, without ops and calls inside, whether it computes on the CPU, and whether surely so.

    Where kernels are launched, only threads that launch count: a thread beside them may prepare data.
    """
    ops, calls = trace.ops, trace.calls
    own_ns, computes = own_durations(ops.parent, ops.dur_ns), trace.match_rows(ops, _COMPUTING_OP)
    surely = np.zeros(len(ops), bool)
    if not len(calls):
        computes &= (own_ns >= _MIN_OWN_WITH_CALLS_NS) & ~trace.match_rows(ops, _WAITING_OP)
        return own_ns, computes, surely
    called = calls.op[calls.op >= 0]
    own_ns -= np.bincount(called, calls.dur_ns[calls.op >= 0], len(ops)).astype(np.int64)
    computes &= own_ns >= _MIN_OWN_NS
    computes[called] = False
    if launching.any():
        computes &= np.isin(ops.thread, distinct(calls.thread[launching]))
        of_name = np.bincount(ops.name, minlength=len(trace.strings))
        launchers = distinct(calls.op[launching & (calls.op >= 0)])
        launched = np.bincount(ops.name[launchers], minlength=len(trace.strings))
        surely = _run_while_gpu_idles(trace, own_ns, computes)
        computes &= (launched < _MIN_LAUNCHING_SHARE * of_name)[ops.name] | surely
    return own_ns, computes, surely


def _run_while_gpu_idles(trace: Trace, own_ns: Int64Array, computing: BoolArray) -> BoolArray:
    """Which of some ops surely compute on the CPU of a program that uses its GPU, whatever others of their name do.

    A part of a program may run on the CPU: its first layers, an evaluation, preprocessing. Such ops are as long as any
    that computes, nothing is called or launched in them, and the GPU has nothing to do; and they are several of a name:
    one is a first use.
    """
    ops, gpu = trace.ops, trace.gpu
    alone = computing & (own_ns >= _MIN_OWN_WITH_CALLS_NS)
    if not len(gpu) or not alone.any():
        return np.zeros(len(ops), bool)
    around = distinct(np.concatenate((trace.calls.op, gpu.op)))
    while len(around := around[around >= 0]):
        alone[around] = False
        around = distinct(ops.parent[around])
    rows = np.flatnonzero(alone)
    busy_ns = iv.overlap(ops.start_ns[rows], ops.end_ns[rows], iv.union(gpu.start_ns, gpu.end_ns))
    alone[rows] = busy_ns <= _MAX_BUSY_SHARE * ops.dur_ns[rows]
    result: BoolArray = alone & (np.bincount(ops.name[alone], minlength=len(trace.strings)) >= _MIN_ALIKE)[ops.name]
    return result


def _extent(trace: Trace, *more: Table) -> Intervals:
    """From the first to the last op or call, or row of more tables; nothing where there is none."""
    tables = [table for table in (trace.ops, trace.calls, *more) if len(table)]
    if not tables:
        return iv.EMPTY
    return iv.window(min(int(each.start_ns[0]) for each in tables), max(int(each.end_ns.max()) for each in tables))


def _judge(trace: Trace, window: Intervals, launching: BoolArray, own_ns: Int64Array, cpu_ops: BoolArray) -> DeviceKind:
    gpu, calls, window_ns = trace.gpu, trace.calls, iv.total(window)
    cpu_ns = int(own_ns[cpu_ops].sum())
    is_mostly_cpu = bool(window_ns) and cpu_ns >= _MIN_CPU_SHARE * window_ns
    if len(gpu):
        of_kernels = (gpu.kind == KERNEL) & iv.contains(window, gpu.start_ns)
        kernels_ns = int(gpu.dur_ns[of_kernels].sum())
        is_mostly_cpu = is_mostly_cpu and kernels_ns <= _MAX_KERNEL_SHARE * cpu_ns
        return "cpu" if is_mostly_cpu and not _is_model_on_gpu(trace, of_kernels, cpu_ops) else "gpu"
    waits = trace.match_rows(calls, vocabulary.WAITING_CALL) & iv.contains(window, calls.start_ns)
    wait_ns = int(calls.dur_ns[waits].sum())
    if launching.any():
        return "cpu" if is_mostly_cpu and wait_ns <= _MAX_WAIT_SHARE * cpu_ns else "gpu_not_recorded"
    if _names_gpu_work(trace):
        return "gpu_not_recorded"
    if is_server_host(trace):
        return "cpu"
    if trace.device.name is None:
        return "gpu_not_recorded" if trace.match_rows(calls, vocabulary.LAUNCH_CALL).any() and not cpu_ns else "cpu"
    if len(calls):
        # Whatever was launched would be in the file, as the other calls are.
        computes = is_mostly_cpu or int(trace.match_rows(trace.ops, _COMPUTING_OP).sum()) >= _MIN_OPS
        return "cpu" if computes and wait_ns < _MIN_CPU_SHARE * window_ns else "gpu_not_recorded"
    if _names_cpu_work(trace):
        return "cpu"
    return "cpu" if _computes_on_cpu(trace, window, own_ns, np.flatnonzero(cpu_ops)) else "gpu_not_recorded"


def _is_model_on_gpu(trace: Trace, kernels: BoolArray, cpu_ops: BoolArray) -> bool:
    """Whether matrices are multiplied by the kernels alone: then the GPU waits for the CPU, however long that takes."""
    kernel_names = {trace.strings[code] for code in occurring(trace.gpu.name[kernels]).tolist()}
    op_names = {trace.strings[code] for code in occurring(trace.ops.name[cpu_ops]).tolist()}
    return any(classify_kernel(name).category in MATRIX_CATEGORIES for name in kernel_names) and not any(
        classify_op(name) in MATRIX_CATEGORIES for name in op_names
    )


def _names_gpu_work(trace: Trace) -> bool:
    """Whether an op or range is one that only a GPU runs."""
    return bool(
        trace.match_strings(trace.ops, vocabulary.GPU_OP).any()
        or trace.match_strings(trace.ranges, vocabulary.GPU_COLLECTIVE_RANGE).any()
    )


def _names_cpu_work(trace: Trace) -> bool:
    """Whether an op is one that only a CPU runs."""
    return bool(trace.match_strings(trace.ops, vocabulary.CPU_OP).any())


def _computes_on_cpu(trace: Trace, window: Intervals, own_ns: Int64Array, rows: Int64Array) -> bool:
    """Whether own time alone shows that the CPU computes, in a file without any call.

    A GPU program has such own time, too, where the first calls of its libraries were recorded, or where its queue of
    launches is full: then any launching op waits. `rows` are those ops in the window that may compute on the CPU.
    """
    computing = np.flatnonzero(trace.match_rows(trace.ops, _COMPUTING_OP) & (own_ns > 0))
    computing = computing[iv.contains(window, trace.ops.start_ns[computing])]
    if not len(computing):
        return False
    usual_ns = np.minimum(own_ns[rows], _MAX_OVER_MEDIAN * _median_of_name(trace.ops.name, own_ns, computing)[rows])
    if usual_ns.sum() < _MIN_CPU_SHARE * iv.total(window):
        return False
    return _concentration(trace.ops.name[computing], own_ns[computing]) >= _MIN_CONCENTRATION


def _median_of_name(name: Int32Array, own_ns: Int64Array, rows: Int64Array) -> FloatArray:
    """For each op the median own time of those `rows` that have its name; of all `rows` where they are too few."""
    medians = np.full(int(name.max()) + 1, np.median(own_ns[rows]))
    for code in occurring(name[rows]).tolist():
        own = own_ns[rows[name[rows] == code]]
        if len(own) >= _MIN_ALIKE:
            medians[code] = np.median(own)
    return medians[name]


def _concentration(name: Int32Array, own_ns: Int64Array) -> float:
    """How far the names' shares of the time are from their shares of the number: 0 for none, towards 1."""
    _, kind = np.unique(name, return_inverse=True)
    of_time = np.bincount(kind, weights=own_ns) / max(int(own_ns.sum()), 1)
    of_count = np.bincount(kind) / max(len(kind), 1)
    return float(np.abs(of_time - of_count).sum() / 2)
