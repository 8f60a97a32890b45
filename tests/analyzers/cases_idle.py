"""Cases of the rules about an idle GPU: PD103, PD104, PD107."""

from __future__ import annotations

from typing import Any

from cases_syncs import sync_wait
from memory_programs import FOREACH
from rule_cases import LOADER, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

A100 = "NVIDIA A100-SXM4-80GB"
MI300X = "AMD Instinct MI300X"


def pauses(*lengths_us: float, steps: bool = True) -> TraceBuilder:
    """Kernels of 1000 us with a pause before each but the first; every launch comes 5 us before its kernel."""
    trace, at = TraceBuilder(), 0.0
    for row, pause in enumerate((0, *lengths_us)):
        trace.kernel(TENSOR_GEMM, at + pause, 1000, launch_us=at + pause - 5 if row else at)
        at += pause + 1000
    return trace.step(0, at) if steps else trace


def checkpoint() -> TraceBuilder:
    trace = pauses(2000)
    outer = trace.frame("train.py(3): main", 0, 4000)
    trace.frame("train.py(30): save_checkpoint", 1100, 1800, parent=outer)
    return trace


def pause_in(*frames: str, loader: bool = False) -> TraceBuilder:
    """A pause of 2000 us in frames, each in the one before."""
    trace = pauses(2000)
    parent = trace.frame("train.py(3): main", 0, 4000)
    for depth, name in enumerate(frames):
        parent = trace.frame(name, 1010 + 10 * depth, 1960 - 20 * depth, parent=parent)
    return trace.range(LOADER, 1002, 2) if loader else trace


def short_pauses_in(frame: str) -> TraceBuilder:
    """Two pauses of 900 us in a function."""
    trace = pauses(900, 900)
    for at in (1000, 2900):
        trace.frame(frame, at, 890)
    return trace


def pause_of_calls(*calls: tuple[str, float, float], op: str = "") -> TraceBuilder:
    """A pause of 2000 us with calls in it, all of them in one op."""
    trace = pauses(2000)
    for name, start, dur in calls:
        trace.call(name, start, dur)
    return trace.op(op, 1005, 1980) if op else trace


def pauses_by_step(*steps_us: tuple[float, ...]) -> TraceBuilder:
    """Steps with these pauses, each before a kernel of 1000 us; the first kernel of a step needs no wait."""
    trace, at = TraceBuilder(), 0.0
    for row, lengths in enumerate(steps_us):
        begin = at
        for number, pause in enumerate((0, *lengths)):
            late = number > 0
            trace.kernel(TENSOR_GEMM, at + pause, 1000, launch_us=at + pause - 5 if late else begin - 5 * (row > 0))
            at += pause + 1000
        trace.step(begin, at - begin)
    return trace


def calls_in_every_step(*calls: tuple[str, float, float]) -> TraceBuilder:
    """Four steps, each with a pause of 2000 us with the same calls in it: they come back."""
    trace = pauses_by_step(*[(2000,)] * 4)
    for begin in range(0, 16_000, 4_000):
        for name, start, dur in calls:
            trace.call(name, begin + start, dur)
    return trace


def compiling_in_a_later_step() -> TraceBuilder:
    trace = pauses_by_step((), (), (), (3000,))
    return trace.range("OutputGraph.call_user_compiler (dynamo_timed)", 4005, 2900)


def short_step(pause_us: float, launch_us: float = 5) -> TraceBuilder:
    """A step of 40 kernels, each launched when it starts, with one pause in the middle."""
    trace, at = TraceBuilder(), 0.0
    for row in range(40):
        at += pause_us if row == 20 else 0
        trace.kernel(TENSOR_GEMM, at, launch_us, launch_us=at - (1 if row else 0))
        at += launch_us
    return trace.step(0, at)


def forward_pass(trace: TraceBuilder, ops: int = 12) -> TraceBuilder:
    """Enough ops to show that nothing is trained."""
    for row in range(ops):
        trace.op("aten::linear", 10 + 20 * row, 10)
    return trace


def pause_in_engine(call: str = "") -> TraceBuilder:
    """A pause of 2000 us in the loop of a serving engine, in a call or in its scheduler."""
    trace = pauses(2000)
    loop = trace.frame("sglang/srt/managers/scheduler.py(1594): event_loop_normal", 0, 4000)
    if call:
        trace.call(call, 1010, 1900)
    else:
        trace.frame("sglang/srt/managers/scheduler.py(8): get_next_batch_to_run", 1010, 1900, parent=loop)
    return trace


def one_pass_of_an_engine(pause: float) -> TraceBuilder:
    """A pass of SGLang with a graph of 3000 us behind a pause, in the loop that prepares passes ahead."""
    trace = TraceBuilder().memcpy("HtoD", 20, 2, 64, launch_us=10, pinned=True)
    graph = trace.call("cudaGraphLaunch", 30, pause)
    trace.kernel(TENSOR_GEMM, 30 + pause, 3000, correlation=graph)
    trace.range("step[DECODE bs=16]", 0, pause + 40)
    trace.frame("sglang/srt/managers/scheduler.py(1594): event_loop_overlap", 0, pause + 3100)
    return trace


def buffers_of_ddp(forward_ops: int = 0, marked: bool = False) -> TraceBuilder:
    """A pause for the buffers; PD405 speaks of it where the forward pass of DDP is marked."""
    trace = forward_pass(pauses(2000), forward_ops)
    if marked:
        trace.range("DistributedDataParallel.forward", 1000, 2100)
    return trace.op("aten::flatten_dense_tensors", 1010, 400).op("aten::unflatten_dense_tensors", 1500, 1400)


def pauses_of_two_kinds() -> TraceBuilder:
    """Two pauses for DDP's buffers and two of other ops, which have only the loop around them in common."""
    trace = pauses(2000, 2000, 2000, 1000).range("loop", 0, 12000)
    for at in (1000, 4000):
        trace.op("aten::unflatten_dense_tensors", at + 5, 1900)
    return trace.op("aten::_foreach_add_", 7005, 1900).op("aten::_foreach_mul_", 10005, 900)


def optimizer_step(kernels: int) -> TraceBuilder:
    """A step of SGD that takes 1900 us of CPU before each of its foreach kernels, which make one pass or three."""
    trace = TraceBuilder().kernel(TENSOR_GEMM, 0, 1000, launch_us=0)
    ops = ("aten::_foreach_mul_", "aten::_foreach_add_", "aten::_foreach_div_")
    for row in range(kernels):
        start = 1000.0 + 2000 * row
        trace.op(ops[row % 3], start + 10, 1900).kernel(FOREACH, start + 1900, 100, launch_us=start + 1895)
    end = 1000 + 2000 * kernels
    return trace.range("Optimizer.step#SGD.step", 1000, end - 1000).step(0, end)


def pause_before_the_steps() -> TraceBuilder:
    """A checkpoint is loaded before the first step that is marked; the steps never wait."""
    trace = pauses(2000, steps=False)
    trace.frame("train.py(30): load_checkpoint", 1010, 1960)
    for row in range(2):
        at = 4000 + 1000 * row
        trace.kernel(TENSOR_GEMM, at, 1000, launch_us=at - 10).step(at, 1000)
    return trace


def gpu_only(*spans: tuple[float, float]) -> TraceBuilder:
    trace = TraceBuilder()
    for start, end in spans:
        trace.kernel(TENSOR_GEMM, start, end - start)
    return trace


def long_gap(call: str = "", loader: bool = False) -> TraceBuilder:
    """A gap of 2000 us in a step of 4000 us, with a runtime call or a wait in the loader all through it."""
    trace = pauses(2000)
    if call:
        trace.call(call, 900, 2094)
    return trace.range(LOADER, 900, 2100) if loader else trace


def graph_launch(*starts_us: float) -> TraceBuilder:
    """A step of 1000 us in which one graph launch starts kernels of 200 us."""
    trace = TraceBuilder().step(0, 1000)
    correlation = trace.call("cudaGraphLaunch", 0, 30)
    for start in starts_us:
        trace.kernel(TENSOR_GEMM, start, 200, correlation=correlation)
    return trace


PD103 = [
    *(
        RuleCase(
            "PD103", f"{name}-while-the-gpu-works", lambda build=build: build().kernel(TENSOR_GEMM, 0, 4000, stream=9)
        )
        for name, build in (
            ("preprocessing", lambda: pause_in("data.py(9): preprocess")),
            ("garbage-collection", lambda: pause_in("<built-in function collect>")),
            ("sleep", lambda: pause_in("<built-in function sleep>")),
            ("first-launch", lambda: pause_of_calls(("cudaLaunchKernel", 1010, 1900))),
            ("graph-capture", lambda: pause_of_calls(("cudaStreamBeginCapture", 1010, 5), op="CompiledFunction")),
            ("buffers", buffers_of_ddp),
            ("op", lambda: pause_of_calls(op="aten::split_with_sizes")),
            ("graph-launch", lambda: pause_of_calls(("cudaGraphLaunch", 1010, 1900))),
            ("checkpoint", checkpoint),
            ("optimizer", lambda: pauses(2000).range("Optimizer.step#SGD.step", 1005, 1980)),
            ("model-code", lambda: pause_in("nn.Module: Encoder_0", "torch/nn/modules/transformer.py(8): forward")),
            ("scheduler-of-an-engine", pause_in_engine),
            ("nothing-recorded", lambda: pauses(2000)),
        )
    )
]


def eager_kernels(
    count: int = 20,
    gap_us: float = 40,
    launch: str = "cudaLaunchKernel",
    device: str | None = A100,
    steps: int = 1,
    **options: Any,
) -> TraceBuilder:
    """Kernels every 50 us, each launched 8 us before it starts, when the one before has long ended."""
    trace = TraceBuilder(device=device)
    for number in range(steps):
        for row in range(count):
            at = 50 * (row + count * number)
            launched = at if row == 0 else at - min(8, gap_us / 2)
            trace.kernel(POINTWISE, at, 50 - gap_us, correlation=trace.call(launch, launched), **options)
        trace.step(50 * count * number, 50 * count)
    return trace


def eager_with_stacks() -> TraceBuilder:
    trace = eager_kernels()
    trace.frame("train.py(3): main", 0, 1000)
    return trace


def eager_ops(python_us: float, steps: int = 2) -> TraceBuilder:
    """The same where ops take what Python leaves of each 50 us."""
    trace = eager_kernels(steps=steps)
    for row in range(20 * steps):
        trace.op("aten::add", 50 * row - 8 + python_us, 50 - python_us)
    return trace


def eager_of_two_lengths(*missing: int, steps: int = 3, us: float = 10) -> TraceBuilder:
    """Steps of 20 kernels of some length, of which some are missing: number 20 is the first one of the second step."""
    trace = TraceBuilder()
    for number in range(steps):
        trace.step(1000 * number, 1000)
    for row in range(20 * steps):
        if row not in missing:
            name = TENSOR_GEMM if row % 20 in (3, 11) else POINTWISE
            trace.kernel(name, 50 * row + 10, us, launch_us=50 * row + 2)
    return trace


def compiled() -> TraceBuilder:
    trace = eager_kernels(steps=2)
    for row in range(40):
        trace.op("Torch-Compiled Region: 0/0", 50 * row - 10, 45)
    return trace


def syncs_between_launches(*at_us: float) -> TraceBuilder:
    """Two steps with syncs that find the GPU done: they cost nothing, so PD102 does not report them."""
    trace = eager_kernels(steps=2)
    for number in range(2):
        for at in at_us:
            trace.call("cudaStreamSynchronize", 1000 * number + at, 2)
    return trace


def costly_wait_between_launches(op: str, copy: str) -> TraceBuilder:
    """Two steps of short kernels; in the middle of each the CPU waits 300 us for a product, and a copy behind it."""
    trace = TraceBuilder(device=A100)
    for number in range(2):
        at = 2000 * number
        trace.step(at, 2000)
        for row in range(20):
            trace.kernel(POINTWISE, at + 40 * row + 8, 10, launch_us=at + 40 * row)
        trace.kernel(TENSOR_GEMM, at + 810, 300, launch_us=at + 800)
        trace.op(op, at + 810, 310)
        trace.memcpy(copy, at + 1111, 2, launch_us=at + 812)
        trace.call("cudaStreamSynchronize", at + 820, 295)
        for row in range(15):
            trace.kernel(POINTWISE, at + 1208 + 50 * row, 10, launch_us=at + 1200 + 50 * row)
    return trace


def cut_elsewhere() -> TraceBuilder:
    """Five steps of 200 kernels, the ends of which cut one launch more or less."""
    trace = TraceBuilder(device=A100)
    for row in range(1000):
        trace.kernel(POINTWISE, 50 * row, 10, launch_us=max(50 * row - 8, 0))
    for number in range(5):
        trace.step(10_000 * number + 20 * (number % 2), 10_000 - 20)
    return trace


def refill_after_a_sync() -> TraceBuilder:
    """After a wait of 700 us each of 20 short kernels waits for its launch: that is the lead which the sync cost."""
    trace = TraceBuilder(device=A100).step(0, 2000).kernel(TENSOR_GEMM, 10, 990, launch_us=5)
    trace.call("cudaStreamSynchronize", 305, 700)
    for row in range(20):
        trace.kernel(POINTWISE, 1030 + 30 * row, 10, launch_us=1022 + 30 * row)
    return trace


def refill_after_a_pause() -> TraceBuilder:
    """The same after 1800 us in which the CPU launched nothing."""
    trace = TraceBuilder(device=A100).step(0, 3000).kernel(TENSOR_GEMM, 10, 990, launch_us=5)
    for row in range(20):
        trace.kernel(POINTWISE, 1830 + 30 * row, 10, launch_us=1822 + 30 * row)
    return trace


def without_steps() -> TraceBuilder:
    trace = TraceBuilder()
    for row in range(20):
        trace.kernel(POINTWISE, 50 * row, 10, launch_us=max(50 * row - 8, 0))
    return trace


def graph_decode() -> TraceBuilder:
    """One launch, forty kernels, with gaps between them that no launch could close."""
    trace = TraceBuilder().step(0, 1000)
    correlation = trace.call("cudaGraphLaunch", 0, 30)
    for row in range(40):
        trace.kernel(POINTWISE, 10 + 24 * row, 14, correlation=correlation)
    return trace


def few_late_launches() -> TraceBuilder:
    """Three long late gaps before bursts of forty kernels: something halts the CPU now and then, not each launch."""
    trace = TraceBuilder().step(0, 1200)
    for burst in range(4):
        at = 300 * burst
        for row in range(10):
            trace.kernel(POINTWISE, at + 10 + 15 * row, 15, launch_us=at + 0.1 * row)
    return trace


PD104 = [
    *(
        RuleCase(
            "PD104",
            f"{name}-while-the-gpu-works",
            lambda op=op, copy=copy: costly_wait_between_launches(op, copy).kernel(TENSOR_GEMM, 0, 4000, stream=9),
        )
        for name, op, copy in (("a-sync", "aten::item", "DtoH"), ("a-copy", "aten::to", "HtoD"))
    )
]


def allocations(*calls: tuple[str, float, float], busy: bool = False) -> TraceBuilder:
    """Calls to the driver between a kernel that ends at 400 us and one that is launched at 605 and starts at 610."""
    trace = step_of((0, 400)).kernel(TENSOR_GEMM, 610, 390, launch_us=605)
    for name, start, end in calls:
        trace.call(name, start, end - start)
    return trace.kernel(POINTWISE, 400, 210, stream=9, launch_us=0.5) if busy else trace


def allocation_of_an_op() -> TraceBuilder:
    trace = allocations(("cudaMalloc", 410, 600)).op("aten::empty", 405, 198).op("aten::conv2d", 404, 200)
    trace.frame("model.py(88): forward", 400, 300)
    return trace


def tensors_of_the_driver(count: int, frees: int, cached: int = 0) -> TraceBuilder:
    """As many tensors that the driver allocates while the GPU idles, and others that it does not."""
    trace = step_of((0, 100)).kernel(TENSOR_GEMM, 910, 90, launch_us=905)
    for row in range(count):
        at = 110 + 750 * row / count
        trace.op("aten::empty", at, 750 / count - 2)
        trace.call("hipMalloc", at + 1, 750 / count - 5)
    for row in range(frees):
        trace.call("hipFree", 870 + row, 0.5)
    for row in range(cached):
        trace.op("aten::empty", 0.5 + row, 0.4)
    return trace


def warm_up() -> TraceBuilder:
    trace = TraceBuilder().kernel(TENSOR_GEMM, 0, 100, launch_us=0)
    trace.call("cudaMalloc", 110, 800)
    return trace.step(1000, 1000).kernel(TENSOR_GEMM, 1000, 1000, launch_us=1000)


PD107 = [
    *(
        RuleCase(
            "PD107",
            name,
            lambda arguments=arguments: tensors_of_the_driver(*arguments),
            (ExpectedFinding("medium", cost_ns, title="freed: ", fix="expandable_segments"),),
        )
        for name, arguments, cost_ns in (
            ("most-tensors-from-the-cache", (20, 20, 21), 660_000),
            ("few-tensors", (15, 15), 682_500),
            ("two-thirds-freed", (19, 14), 662_006),
            ("all-freed-at-once", (19, 19, 40), 664_506),
        )
    )
]
