"""Hypothesis strategies of traces: arbitrary ones, and lawful ones, whose times keep away from thresholds of rules.

A trace is the JSON object of its file, so that a test can shift, scale and shuffle the events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from distributed_bursts import BURSTS as DISTRIBUTED_BURSTS
from host_bursts import add_host_made_tensor, add_recompilation
from hypothesis import strategies as st
from matrix_bursts import BURSTS as MATRIX_BURSTS
from memory_bursts import BURSTS as MEMORY_BURSTS

from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.trace import parse

Event: TypeAlias = dict[str, Any]
File: TypeAlias = dict[str, Any]
Span: TypeAlias = tuple[int, int]

SGEMM, TENSOR_GEMM = "ampere_sgemm_128x64_nn", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
CONVOLUTION = "cudnn_infer_ampere_scudnn_128x64_relu_medium_nn_v1"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXPERTS = "void deep_ep::internode::dispatch<false, 8, true>(int4*, float*, long*)"
KERNELS = (SGEMM, TENSOR_GEMM, CONVOLUTION, POINTWISE, ALL_REDUCE, EXPERTS)
LOADERS = (
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
)
CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaFree", "cudaGetDevice")
RANGES = ("gloo:all_reduce", "Optimizer.step#SGD.step", "forward", *LOADERS)
OPS = ("aten::item", "aten::mm", "aten::nonzero", "aten::copy_", "c10d::allreduce_")
# The rules that fire on traces of `lawful`. A new rule joins them once a burst here has its fault.
EXERCISED_RULES = frozenset(
    {
        "PD002", "PD003", "PD101", "PD102", "PD103", "PD104", "PD105", "PD106", "PD107", "PD108", "PD109", "PD201",
        "PD202", "PD203", "PD204", "PD205", "PD206", "PD301", "PD302", "PD303", "PD304", "PD305",
        "PD306", "PD401", "PD402", "PD404", "PD405", "PD406", "PD408",
    }
)  # fmt: skip
DEVICES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB", "Quadro GP100", None)


def rank_of(file: File, scale: int = 1, shift_us: float = 0) -> Rank:
    """The rank of a file with times multiplied by `scale` and then shifted; whole microseconds stay exact.

    The sizes of copies are multiplied as well, so that the rates of links stay the same.
    """
    events = [e | {"ts": e["ts"] * scale + shift_us, "dur": e["dur"] * scale} for e in file["traceEvents"]]
    events = [
        e | {"args": e["args"] | {"bytes": e["args"]["bytes"] * scale}} if "bytes" in e["args"] else e for e in events
    ]
    return Rank(parse(json.dumps(file | {"traceEvents": events}).encode(), "made.json"))


def _builder(device: str | None, rank: int | None = None) -> TraceBuilder:
    capability = {"NVIDIA H100 80GB HBM3": (9, 0), "Tesla V100-SXM2-16GB": (7, 0), "Quadro GP100": (6, 0)}.get(
        device or "", (8, 0)
    )
    return TraceBuilder(device=device, capability=capability if device else None, rank=rank)


# --- arbitrary traces ------------------------------------------------------------------------------------------------

_us = st.one_of(st.integers(0, 3_000_000), st.sampled_from((0, 1, 5_000, 5_001, 1_000_000))).map(lambda ns: ns / 1000)


@st.composite
def any_file(draw: st.DrawFn) -> File:
    """Kernels, copies, calls, ops, ranges and steps anywhere, to the nanosecond: overlapping, empty, without links."""
    trace = _builder(draw(st.sampled_from(DEVICES)))
    few = st.integers(0, draw(st.sampled_from((0, 3, 8))))
    for _ in range(draw(few)):
        launch = draw(st.one_of(st.none(), _us))
        trace.kernel(
            draw(st.sampled_from(KERNELS)), draw(_us), draw(_us), stream=draw(st.integers(7, 9)), launch_us=launch
        )
    for _ in range(draw(few)):
        kind = draw(st.sampled_from(("HtoD", "DtoH", "DtoD")))
        trace.memcpy(kind, draw(_us), draw(_us), launch_us=draw(st.one_of(st.none(), _us)))
    for _ in range(draw(few)):
        trace.call(draw(st.sampled_from(CALLS)), draw(_us), draw(_us), thread=draw(st.integers(1, 2)))
    for _ in range(draw(few)):
        trace.op(draw(st.sampled_from(OPS)), draw(_us), draw(_us), thread=draw(st.integers(1, 2)))
    for _ in range(draw(few)):
        trace.range(draw(st.sampled_from(RANGES)), draw(_us), draw(_us))
    for _ in range(draw(st.integers(0, 3))):
        trace.step(draw(_us), draw(_us))
    if not trace.to_dict()["traceEvents"]:
        trace.kernel(POINTWISE, 0, 1)
    return trace.to_dict()


# --- traces for laws -------------------------------------------------------------------------------------------------
#
# Some thresholds are times: 5 us of device latency, 10 us for the least cost that is reported, 20 us for a call to
# return, 1 ms for a pause. Doubling all times must not carry anything across a threshold. So times keep to a grid of
# 30 us, with items of 1 us and calls of 2 us: no two edges are 3 to 27 us apart. Everything happens in bursts of 480 us
# every 3000 us, so no two edges are 482 to 2517 us apart either. On a CPU, taking a batch over from a worker is 300 us:
# traces without a device have no loader.

_SLOT, _SLOTS, _BURST = 30, 16, 3000
_span = st.tuples(st.integers(0, _SLOTS - 1), st.integers(1, _SLOTS)).map(
    lambda s: (_SLOT * s[0], _SLOT * min(s[1], _SLOTS - s[0]))
)


@st.composite
def lawful_file(draw: st.DrawFn) -> File:
    """One rank: bursts of GPU work, launched early, late or unrecorded, with events of the CPU."""
    device = draw(st.sampled_from(DEVICES))
    trace, ranges = _builder(device), RANGES if device else RANGES[: -len(LOADERS)]
    has_steps = draw(st.booleans())
    bursts = draw(st.integers(1, 4))
    for burst in range(bursts):
        at = _BURST * burst
        if has_steps:
            trace.step(at, draw(st.sampled_from((_BURST, 300))))
        occupied: set[Span] = set()
        kind = draw(st.integers(0, 6))
        if kind == 0 and draw(st.booleans()):
            add_host_made_tensor(trace, at)
            continue
        if kind == 0:
            _add_eager_kernels(trace, at)
        elif kind < 4:
            draw(st.sampled_from((MEMORY_BURSTS, MATRIX_BURSTS, DISTRIBUTED_BURSTS)[kind - 1]))(trace, at)
            continue
        else:
            occupied = _add_gpu_items(draw, trace, at)
        _add_host_events(draw, trace, at, occupied, ranges)
    if has_steps and bursts > 2 and draw(st.booleans()):
        add_recompilation(trace.step(_BURST * bursts, _BURST), _BURST * bursts)
    if draw(st.booleans()):
        trace.frame("train.py(12): train_step", 0, 5 * _BURST)
    if not trace.to_dict()["traceEvents"]:
        trace.kernel(TENSOR_GEMM, 0, _SLOT)
    return trace.to_dict()


def _add_eager_kernels(trace: TraceBuilder, at: int) -> None:
    """Tiny kernels, each launched long after the previous one has ended."""
    for slot in range(_SLOTS):
        trace.kernel(POINTWISE, at + _SLOT * slot, 1, correlation=trace.call("cudaLaunchKernel", at + _SLOT * slot, 2))


def _add_gpu_items(draw: st.DrawFn, trace: TraceBuilder, at: int) -> set[Span]:
    """Add GPU items; returns when their launch calls run, because a thread makes one call at a time."""
    occupied: set[Span] = set()
    for start, length in draw(st.lists(_span, max_size=6)):
        stream = draw(st.sampled_from((7, 20)))
        launch = draw(st.sampled_from((None, 0, 0, start, start)))
        copy = draw(st.sampled_from((False, False, False, True)))
        correlation = 0
        if launch is not None:
            duration = draw(st.sampled_from((2, length))) if copy else 2
            occupied.add((launch, duration))
            correlation = trace.call("cudaMemcpyAsync" if copy else "cudaLaunchKernel", at + launch, duration)
        if copy:
            kind = draw(st.sampled_from(("HtoD", "DtoH", "DtoD")))
            trace.memcpy(kind, at + start, length, stream=stream, correlation=correlation)
        else:
            name = draw(st.sampled_from(KERNELS))
            tiny = name == POINTWISE and draw(st.booleans())
            trace.kernel(name, at + start, 1 if tiny else length, stream=stream, correlation=correlation)
    return occupied


def _add_host_events(draw: st.DrawFn, trace: TraceBuilder, at: int, occupied: set[Span], ranges: Sequence[str]) -> None:
    for start, length in draw(st.lists(_span, max_size=2, unique=True).filter(occupied.isdisjoint)):
        trace.call(draw(st.sampled_from(CALLS)), at + start, length)
    # Of two ops with equal times, the first in the file is the parent: shuffling would change that.
    for start, length in draw(st.lists(_span, max_size=3, unique=True)):
        trace.op(draw(st.sampled_from(OPS)), at + start, length)
    for start, length in draw(st.lists(_span, max_size=1)):
        trace.range(draw(st.sampled_from(ranges)), at + start, length)


@st.composite
def lawful_fleet(draw: st.DrawFn) -> list[File]:
    """Several ranks with clocks of their own that meet at one collective per step, some later than others."""
    ranks = draw(st.integers(2, 4))
    traces = [_builder(DEVICES[0], rank) for rank in range(ranks)]
    clocks = [1_000_000 * draw(st.integers(-5, 5)) for _ in traces]
    late_rank = draw(st.sampled_from((None, 0, 1)))
    shapes, slow_pair = draw(st.booleans()), draw(st.sampled_from((None, None, 0, 1)))
    for burst in range(draw(st.integers(3, 6))):
        late = [draw(st.integers(0, 1)) + (5 if rank == late_rank else 0) for rank in range(ranks)]
        end = _SLOT * (6 + max(late))
        for trace, clock, slots in zip(traces, clocks, late, strict=True):
            at, begin = clock + _BURST * burst, _SLOT * (4 + slots)
            trace.step(at, _BURST)
            trace.kernel(TENSOR_GEMM, at, begin, correlation=trace.call("cudaLaunchKernel", at, 2))
            trace.kernel(ALL_REDUCE, at + begin, end - begin, correlation=trace.call("cudaLaunchKernel", at + 2, 2))
            if shapes:
                trace.op("aten::mm", at, 2, shapes=[[64 * (4 + slots), 64], [64, 64]], types=["float", "float"])
        if slow_pair is not None and ranks == 4:
            _add_pair_collectives(traces, clocks, _BURST * burst + end, slow_pair)
    return [trace.to_dict() for trace in traces]


def _add_pair_collectives(traces: Sequence[TraceBuilder], clocks: Sequence[int], at: int, slow: int) -> None:
    """A large all-reduce of each pair, four slots long in the slow one and one in the other."""
    for rank, (trace, clock) in enumerate(zip(traces, clocks, strict=True)):
        pair = rank // 2
        comm = collective(in_elements=8 << 20, ranks=(2 * pair, 2 * pair + 1), group=f"pair {pair}")
        launch = trace.call("cudaLaunchKernel", clock + at - _SLOT, 2)
        length = _SLOT * (4 if pair == slow else 1)
        trace.kernel(ALL_REDUCE, clock + at, length, stream=20, correlation=launch, comm=comm)


def lawful() -> st.SearchStrategy[Sequence[File]]:
    """A lawful run of one rank or several."""
    return st.one_of(lawful_file().map(lambda file: [file]), lawful_file().map(lambda file: [file]), lawful_fleet())
