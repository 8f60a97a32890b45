"""Cases of the rules about an idle GPU: PD101, PD102, PD103, PD104, PD107."""

from __future__ import annotations

from typing import Any

from rule_cases import LOADER, POINTWISE, TENSOR_GEMM, WORKERS, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import well_fed_steps
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

A100 = "NVIDIA A100-SXM4-80GB"
MI300X = "AMD Instinct MI300X"


def loads(name: str, wait_us: float, steps: int = 1, device: str | None = A100) -> TraceBuilder:
    """Steps of 1000 us that begin with a wait in the loader and then keep the GPU busy from 20 us later on."""
    trace = TraceBuilder(device=device)
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).range(name, at, wait_us)
        trace.kernel(TENSOR_GEMM, at + wait_us + 20, 980 - wait_us, launch_us=at + wait_us + 10)
    return trace


def cpu_only(wait_us: float, step_us: float, name: str = LOADER) -> TraceBuilder:
    trace = TraceBuilder(device=None).step(0, step_us).range(name, 0, wait_us)
    return trace.op("aten::addmm", wait_us, step_us - wait_us)


def legacy_loader() -> TraceBuilder:
    trace = TraceBuilder().step(0, 1000).kernel(TENSOR_GEMM, 320, 680, launch_us=310)
    return trace.event(ph="X", cat="Operator", name=LOADER, pid=1000, tid=1000, ts=0, dur=300)


def loader_in_a_frame() -> TraceBuilder:
    trace = loads(LOADER, 300)
    outer = trace.frame("train.py(7): main", 0, 1000)
    trace.frame("/usr/lib/python3/site-packages/torch/utils/data/dataloader.py(700): __next__", 0, 301, parent=outer)
    return trace


def loading_while_the_gpu_works() -> TraceBuilder:
    return step_of((0, 1000)).range(LOADER, 5, 700)


def unseen_gpu() -> TraceBuilder:
    """Device properties, launches and a long wait, but no GPU event: how long the GPU idled is not known."""
    trace = TraceBuilder().step(0, 1000).range(LOADER, 0, 900)
    trace.call("cudaLaunchKernel", 950)
    return trace


def load_before_the_first_step() -> TraceBuilder:
    trace = TraceBuilder().range(LOADER, 0, 500).step(500, 1000)
    return trace.kernel(TENSOR_GEMM, 510, 990, launch_us=501)


PD101 = [
    RuleCase(
        "PD101",
        "no-workers",
        lambda: loads(LOADER, 300),
        (
            ExpectedFinding(
                "high",
                300_000,
                (0, 300_000, 300_000),
                title="The GPU waits 0.3 ms of each 1 ms step for the DataLoader, which has no workers; "
                "with 2 workers at best 0.7 ms",
                fix="num_workers=2, persistent_workers=True, pin_memory=True",
                confidence=0.6,
                evidence={"step without the wait": 700_000, "batches": 1, "num_workers": 0, "CPU cores": None},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD101",
        "a-twentieth-of-each-of-two-steps",
        lambda: loads(LOADER, 50, steps=2),
        (ExpectedFinding("medium", 50_000, (0, 50_000, 50_000), confidence=0.9, evidence={"batches": 2}),),
    ),
    RuleCase(  # two workers that are never idle deliver a batch each 1000 us: one takes 2000 us
        "PD101",
        "too-few-workers",
        lambda: loads(WORKERS, 400),
        (
            ExpectedFinding(
                "high",
                400_000,
                (0, 400_000, 400_000),
                location="train.py:41",
                title="train.py:41, whose DataLoader has 2 workers that do not keep up; with 5 workers at best 0.6 ms",
                advice="in 5 worker processes",
                fix="num_workers=5, persistent_workers=True)",
            ),
        ),
        facts={
            "cpu": {"affinity": 8},
            "loaders": [
                {"num_workers": 9, "wait_ns": 1},
                {
                    "num_workers": 2,
                    "wait_ns": 400_000,
                    "pin_memory": True,
                    "location": {"file": "train.py", "line": 41, "function": "main"},
                },
            ],
        },
    ),
    RuleCase(  # as above, but the cores are all in use already: 2 workers on 2 cores deliver no faster
        "PD101",
        "too-few-cores",
        lambda: loads(WORKERS, 400),
        (ExpectedFinding("high", 400_000, (0, 0, 400_000), advice="there are 2 cores", fix="num_workers=2"),),
        facts={"cpu": {"affinity": 2}, "loaders": [{"num_workers": 2, "wait_ns": 400_000}]},
    ),
    RuleCase(
        "PD101",
        "workers-of-unknown-number",
        lambda: loads(WORKERS, 400),
        (ExpectedFinding("high", 400_000, (0, None, 400_000), fix="num_workers=...", evidence={"num_workers": None}),),
    ),
    # Training needs both cores for 6 ms and loading one for 4: spread evenly 8, and 0.3 to take the batch over.
    RuleCase(
        "PD101",
        "program-on-the-cpu",
        lambda: cpu_only(4000, 10_000),
        (ExpectedFinding("high", 4_000_000, (0, 1_700_000, 3_700_000), title="The training loop waits"),),
    ),
    RuleCase(
        "PD101",
        "one-worker-on-the-cpu",
        lambda: cpu_only(4000, 10_000, WORKERS),
        (ExpectedFinding("high", 4_000_000, title="has one worker that does not keep up"),),
        facts={"cpu": {"affinity": 8}, "loaders": [{"num_workers": 1, "wait_ns": 4_000_000}]},
    ),
    RuleCase(  # nearly all of the wait is sleeping: not the cores but memory bounds the workers
        "PD101",
        "loading-that-waits-itself",
        lambda: cpu_only(34_000, 35_000),
        (
            ExpectedFinding(
                "high", 34_000_000, advice="computes for 2% of it: 51 workers would hide it", fix="num_workers=16"
            ),
        ),
        facts={
            "cpu": {"affinity": 2},
            "loaders": [{"num_workers": 0, "wait_ns": 34_000_000, "wait_cpu_ns": 800_000}],
        },
    ),
    RuleCase("PD101", "range-among-the-operators", legacy_loader, (ExpectedFinding("high", 300_000),)),
    RuleCase(
        "PD101",
        "line-from-a-python-frame",
        loader_in_a_frame,
        (ExpectedFinding("high", 300_000, location="train.py:7"),),
    ),
    RuleCase("PD101", "healthy", well_fed_steps),
    RuleCase("PD101", "workers-that-keep-up", lambda: loads(WORKERS, 20)),
    RuleCase("PD101", "loading-while-the-gpu-works", loading_while_the_gpu_works),
    RuleCase("PD101", "gpu-not-recorded", unseen_gpu),
    RuleCase("PD101", "wait-before-the-first-step", load_before_the_first_step),
    RuleCase("PD101", "range-of-another-name", lambda: loads("load_batch", 300)),
    RuleCase("PD101", "taking-a-batch-over-takes-as-long", lambda: cpu_only(80, 700)),
    RuleCase("PD101", "workers-that-are-ahead-on-the-cpu", lambda: cpu_only(280, 700, WORKERS)),
    RuleCase(
        "PD101", "gpu-events-only", lambda: TraceBuilder().kernel(TENSOR_GEMM, 0, 10).kernel(TENSOR_GEMM, 500, 10)
    ),
    RuleCase(
        "PD101",
        "program-on-the-cpu-that-loads-fast",
        lambda: TraceBuilder(device=None).step(0, 1000).range(LOADER, 0, 20).op("aten::addmm", 20, 980),
    ),
]


def waits(
    *ops: str, call: str = "cudaStreamSynchronize", blocked_us: float = 395, copy: str = "", steps: int = 1
) -> TraceBuilder:
    """The CPU waits until 505 us for a kernel that ends at 500; the next one is launched at 600 and starts at 610."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).kernel(TENSOR_GEMM, at + 10, 490, launch_us=at + 5)
        for depth, op in enumerate(ops):
            trace.op(op, at + 100 + depth, 410 - 2 * depth)
        correlation = trace.call(call, at + 505 - blocked_us, blocked_us)
        if copy:
            trace.memcpy(copy, at + 500, 4, correlation=correlation)
        trace.kernel(TENSOR_GEMM, at + 610, 390, launch_us=at + 600)
    return trace


def item_in_a_frame() -> TraceBuilder:
    trace = waits("aten::item", "aten::_local_scalar_dense")
    outer = trace.frame("train.py(3): main", 0, 1000)
    inner = trace.frame("train.py(12): train_step", 50, 900, parent=outer)
    trace.frame("/opt/site-packages/torch/_tensor.py(9): wrapped", 99, 415, parent=inner)
    return trace


def two_ops_wait() -> TraceBuilder:
    trace = step_of((0, 200))
    trace.op("aten::item", 50, 155)
    trace.call("cudaStreamSynchronize", 55, 148)
    trace.kernel(TENSOR_GEMM, 300, 300, launch_us=290)
    trace.op("aten::nonzero", 400, 210)
    trace.call("cudaStreamSynchronize", 405, 200)
    return trace.kernel(TENSOR_GEMM, 640, 360, launch_us=630)


def hip_wait() -> TraceBuilder:
    trace = TraceBuilder(device=MI300X, capability=(9, 4)).step(0, 1000)
    trace.kernel(TENSOR_GEMM, 10, 490, correlation=trace.call("hipLaunchKernel", 5))
    trace.call("hipDeviceSynchronize", 110, 395)
    return trace.kernel(TENSOR_GEMM, 610, 390, correlation=trace.call("hipLaunchKernel", 600))


def item_on_a_cpu_tensor() -> TraceBuilder:
    trace = step_of((0, 500)).op("aten::item", 100, 410).op("aten::_local_scalar_dense", 101, 408)
    return trace.kernel(TENSOR_GEMM, 610, 390, launch_us=600)


def sync_that_waits_for_nothing() -> TraceBuilder:
    trace = step_of((0, 900))
    trace.call("cudaDeviceSynchronize", 950, 2)
    return trace.step(1000, 1000).kernel(TENSOR_GEMM, 1020, 980, launch_us=1010)


def sync_of_one_stream_while_another_works() -> TraceBuilder:
    trace = step_of((0, 500)).kernel(POINTWISE, 5, 990, stream=9, launch_us=4)
    trace.call("cudaStreamSynchronize", 110, 395)
    return trace.kernel(TENSOR_GEMM, 610, 390, launch_us=600)


def slow_copies_on_the_device() -> TraceBuilder:
    """A copy within the device returns at once; that its submission took 80 us made the GPU wait, but was no wait."""
    trace = step_of((0, 100))
    for row in range(5):
        at = 120 + 150 * row
        trace.memcpy("DtoD", at + 75, 4, correlation=trace.call("cudaMemcpyAsync", at, 80))
    return trace.kernel(TENSOR_GEMM, 900, 100, launch_us=890)


def asynchronous_copy() -> TraceBuilder:
    trace = step_of((0, 500))
    trace.memcpy("HtoD", 500, 80, correlation=trace.call("cudaMemcpyAsync", 480, 6), pinned=True)
    return trace.kernel(TENSOR_GEMM, 640, 360, launch_us=630)


def launched_before_the_wait() -> TraceBuilder:
    trace = step_of((0, 500), (540, 1000))
    trace.call("cudaStreamSynchronize", 110, 395)
    return trace


PD102 = [
    RuleCase(
        "PD102",
        "item",
        item_in_a_frame,
        (
            ExpectedFinding(
                "high",
                110_000,
                (0, None, 110_000),
                location="train.py:12",
                title=".item() at train.py:12 waits for the GPU once a step",
                fix="loss.detach()",
                evidence={"waits per step": 1, "CPU blocked per step": 395_000, "calls": "cudaStreamSynchronize"},
            ),
        ),
        via_file=True,
    ),
    RuleCase(  # it waited for 45 us, so 45 us of lead are lost: the other 65 us of the gap would be there without it
        "PD102",
        "short-wait",
        lambda: waits("aten::nonzero", blocked_us=45),
        (ExpectedFinding("medium", 45_000, (0, None, 45_000), advice="multiply by the mask"),),
    ),
    RuleCase(
        "PD102",
        "copy-to-pageable-memory",
        lambda: waits("aten::to", "aten::_to_copy", "aten::copy_", call="cudaMemcpyAsync", copy="DtoH"),
        (
            ExpectedFinding(
                "high", 106_000, title=".cpu(), .numpy()", advice="Leave it on the GPU", fix="non_blocking=True"
            ),
        ),
    ),
    RuleCase(
        "PD102",
        "two-ops",
        two_ops_wait,
        (ExpectedFinding("high", 100_000, title=".item()"), ExpectedFinding("medium", 40_000, title="nonzero()")),
    ),
    RuleCase(
        "PD102",
        "no-op-around-it",
        hip_wait,
        (
            ExpectedFinding(
                "high", 110_000, title="torch.cuda.synchronize() waits", evidence={"calls": "hipDeviceSynchronize"}
            ),
        ),
    ),
    RuleCase("PD102", "two-steps", lambda: waits("aten::is_nonzero", steps=2), (ExpectedFinding("high", 110_000),)),
    RuleCase(
        "PD102", "unknown-op", lambda: waits("mylib::peek"), (ExpectedFinding("high", 110_000, advice="every N steps"),)
    ),
    RuleCase("PD102", "healthy", well_fed_steps),
    RuleCase("PD102", "item-on-a-cpu-tensor", item_on_a_cpu_tensor),
    RuleCase("PD102", "sync-that-waits-for-nothing", sync_that_waits_for_nothing),
    RuleCase("PD102", "another-stream-still-works", sync_of_one_stream_while_another_works),
    RuleCase("PD102", "slow-copies-on-the-device", slow_copies_on_the_device),
    RuleCase("PD102", "asynchronous-copy", asynchronous_copy),
    RuleCase("PD102", "next-kernel-launched-before-the-wait", launched_before_the_wait),
]


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


def gpu_only(*spans: tuple[float, float]) -> TraceBuilder:
    trace = TraceBuilder()
    for start, end in spans:
        trace.kernel(TENSOR_GEMM, start, end - start)
    return trace


def long_gap_with(call: str = "", loader: bool = False) -> TraceBuilder:
    """A gap of 2000 us in a step of 4000 us, with a runtime call or a wait in the loader all through it."""
    trace = pauses(2000)
    if call:
        trace.call(call, 900, 2094)
    return trace.range(LOADER, 900, 2100) if loader else trace


def graphs(*starts_us: float) -> TraceBuilder:
    """A step of 1000 us in which one graph launch starts kernels of 200 us."""
    trace = TraceBuilder().step(0, 1000)
    correlation = trace.call("cudaGraphLaunch", 0, 30)
    for start in starts_us:
        trace.kernel(TENSOR_GEMM, start, 200, correlation=correlation)
    return trace


PD103 = [
    RuleCase(
        "PD103",
        "checkpoint",
        checkpoint,
        (
            ExpectedFinding(
                "high",
                2_000_000,
                (0, None, 2_000_000),
                location="train.py:30",
                title="one pause of 1 ms and more",
                confidence=0.7,
                evidence={"gaps": 1, "longest gap": 2_000_000, "longest gap begins at": 1_000_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD103",
        "queued-long-before",
        lambda: step_of((0, 400), (700, 1000)),
        (
            ExpectedFinding(
                "high",
                300_000,
                (0, None, 300_000),
                title="30% of the step",
                advice="launched long before",
                evidence={"before an item already launched": 100.0},
            ),
        ),
    ),
    RuleCase(
        "PD103",
        "no-cpu-events",
        lambda: gpu_only((0, 400), (600, 1000)),
        (
            ExpectedFinding(
                "high",
                200_000,
                title="20% of the trace",
                advice="ProfilerActivity.CPU",
                fix="perfdoctor run",
                confidence=0.4,
                evidence={"before an item already launched": None},
            ),
        ),
    ),
    RuleCase(
        "PD103",
        "several-pauses",
        lambda: pauses(1000, 1500, 999, steps=False),
        (ExpectedFinding("high", 2_500_000, title="2 pauses", evidence={"longest gap": 1_500_000}),),
    ),
    RuleCase("PD103", "a-sixteenth", lambda: step_of((0, 400), (460, 1000)), (ExpectedFinding("medium", 60_000),)),
    RuleCase(
        "PD103",
        "pause-and-unexplained",
        lambda: pauses(2000).kernel(TENSOR_GEMM, 5000, 1000, launch_us=3000),
        (
            ExpectedFinding("high", 2_000_000, title="pause"),
            ExpectedFinding("high", 1_000_000, title="nothing in the trace explains"),
        ),
    ),
    RuleCase(
        "PD103",
        "graph-of-which-kernels-are-missing",
        lambda: graphs(10, 215, 800),
        (
            ExpectedFinding(
                "info",
                0,
                (None, None, None),
                title="For 38% of the step the file cannot tell whether the GPU works: CUDA graphs lack kernels",
                advice="record again",
                evidence={"time not recorded per step": 385_000, "longest gap": 385_000},
            ),
        ),
    ),
    RuleCase("PD103", "whole-graph", lambda: graphs(10, 215, 420, 620, 820)),
    RuleCase("PD103", "healthy", well_fed_steps),
    RuleCase("PD103", "short-late-gaps", lambda: pauses(999, 900, 800)),
    RuleCase("PD103", "loader", lambda: long_gap_with(loader=True)),
    RuleCase("PD103", "sync", lambda: long_gap_with("cudaStreamSynchronize")),
    RuleCase("PD103", "allocator", lambda: long_gap_with("cudaMalloc")),
    RuleCase("PD103", "under-a-twentieth", lambda: step_of((0, 400), (440, 1000))),
]


def eager(
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
    trace = eager()
    trace.frame("train.py(3): main", 0, 1000)
    return trace


def eager_ops(python_us: float, steps: int = 2) -> TraceBuilder:
    """The same where ops take what Python leaves of each 50 us."""
    trace = eager(steps=steps)
    for row in range(20 * steps):
        trace.op("aten::add", 50 * row - 8 + python_us, 50 - python_us)
    return trace


def eager_of_two_lengths() -> TraceBuilder:
    """Two steps, the second of which launches one kernel less."""
    trace = TraceBuilder().step(0, 1000).step(1000, 1000)
    for row in range(39):
        trace.kernel(POINTWISE, 50 * row, 10, launch_us=max(50 * row - 8, 0))
    return trace


def compiled() -> TraceBuilder:
    return eager(steps=2).range("Torch-Compiled Region: 0/0", 0, 900)


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


def few_late() -> TraceBuilder:
    """Three long late gaps before bursts of forty kernels: something halts the CPU now and then, not each launch."""
    trace = TraceBuilder().step(0, 1200)
    for burst in range(4):
        at = 300 * burst
        for row in range(10):
            trace.kernel(POINTWISE, at + 10 + 15 * row, 15, launch_us=at + 0.1 * row)
    return trace


PD104 = [
    RuleCase(
        "PD104",
        "eager",
        eager,
        (
            ExpectedFinding(
                "high",
                760_000,
                (0, None, 760_000),
                title="20 kernels a step, of 10.0 us in the median",
                fix="torch.compile",
                confidence=0.8,
                evidence={
                    "kernels that the GPU had to wait for": 95.0,
                    "median wait for one": 40_000,
                    "launches per step": 20,
                    "queue depth in the median": 0,
                    "CPU for a launch: runtime": 5_000,
                    "CPU for a launch: Python": None,
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase("PD104", "with-python-stacks", eager_with_stacks, (ExpectedFinding("high", 760_000, confidence=0.6),)),
    RuleCase("PD104", "without-steps", without_steps, (ExpectedFinding("high", 760_000, title="20 kernels a trace"),)),
    RuleCase(
        "PD104",
        "mostly-python",
        lambda: eager_ops(40),
        (ExpectedFinding("high", 780_000, advice="Most of the CPU time is Python"),),
    ),
    RuleCase(
        "PD104", "mostly-ops", lambda: eager_ops(5), (ExpectedFinding("high", 780_000, advice="with CUDA graphs"),)
    ),
    RuleCase(
        "PD104",
        "uneven-steps",
        eager_of_two_lengths,
        (ExpectedFinding("high", 760_000, advice="launch differently", fix="dynamic"),),
    ),
    RuleCase(
        "PD104",
        "compiled",
        compiled,
        (ExpectedFinding("high", 780_000, advice="compiled already", fix="reduce-overhead"),),
    ),
    RuleCase(
        "PD104", "two-steps", lambda: eager(steps=2), (ExpectedFinding("high", 780_000, title="20 kernels a step"),)
    ),
    RuleCase(
        "PD104", "hip", lambda: eager(launch="hipLaunchKernel", device=MI300X), (ExpectedFinding("high", 760_000),)
    ),
    RuleCase(  # 5 us of CPU for each 0.04 us of GPU
        "PD104",
        "dwarfs",
        lambda: eager(gap_us=49.96),
        (ExpectedFinding("high", 949_240, advice="a batch about 125 times as large"),),
    ),
    RuleCase("PD104", "just-enough", lambda: eager(gap_us=8), (ExpectedFinding("high", 152_000),)),
    RuleCase("PD104", "healthy", well_fed_steps),
    RuleCase("PD104", "graph-decode", graph_decode),
    RuleCase("PD104", "too-few-dwarfs-to-tell", lambda: eager(count=19, gap_us=49.96)),
    RuleCase("PD104", "too-few-kernels-to-tell", lambda: eager(count=19)),
    RuleCase("PD104", "pauses-are-no-launches", lambda: pauses(*[1000] * 30)),
    RuleCase("PD104", "well-below", lambda: eager(gap_us=7)),
    RuleCase("PD104", "few-kernels-waited-for", few_late),
    RuleCase("PD104", "graphs-in-each-step", lambda: graph_decode().step(1000, 1000)),
    RuleCase("PD104", "loading", lambda: long_gap_with(loader=True)),
    RuleCase("PD104", "the-queue-never-runs-dry", lambda: eager(gap_us=0)),
    RuleCase("PD104", "syncs", lambda: waits("aten::item", steps=20)),
]


def allocates(*calls: tuple[str, float, float], busy: bool = False) -> TraceBuilder:
    """Calls to the driver between a kernel that ends at 400 us and one that is launched at 605 and starts at 610."""
    trace = step_of((0, 400)).kernel(TENSOR_GEMM, 610, 390, launch_us=605)
    for name, start, end in calls:
        trace.call(name, start, end - start)
    return trace.kernel(POINTWISE, 400, 210, stream=9, launch_us=0.5) if busy else trace


def allocation_of_an_op() -> TraceBuilder:
    trace = allocates(("cudaMalloc", 410, 600)).op("aten::empty", 405, 198).op("aten::conv2d", 404, 200)
    trace.frame("model.py(88): forward", 400, 300)
    return trace


def allocation_in_one_of_two_steps() -> TraceBuilder:
    return allocates(("cudaMalloc", 410, 600)).step(1000, 1000).kernel(TENSOR_GEMM, 1000, 1000, launch_us=1000)


def warm_up() -> TraceBuilder:
    trace = TraceBuilder().kernel(TENSOR_GEMM, 0, 100, launch_us=0)
    trace.call("cudaMalloc", 110, 800)
    return trace.step(1000, 1000).kernel(TENSOR_GEMM, 1000, 1000, launch_us=1000)


PD107 = [
    RuleCase(
        "PD107",
        "malloc-of-a-convolution",
        allocation_of_an_op,
        (
            ExpectedFinding(
                "high",
                190_000,
                (0, None, 190_000),
                location="model.py:88",
                fix="expandable_segments",
                evidence={"longest call": 190_000, "longest call is": "cudaMalloc", "made by": "aten::conv2d"},
            ),
        ),
        via_file=True,
    ),
    RuleCase("PD107", "one-of-two-steps", allocation_in_one_of_two_steps, (ExpectedFinding("medium", 95_000),)),
    RuleCase(
        "PD107",
        "free",
        lambda: allocates(("cudaFree", 300, 500), ("cudaFree", 520, 560)),
        (ExpectedFinding("high", 140_000, title="2 calls"),),
    ),
    RuleCase("PD107", "hip", lambda: allocates(("hipMalloc", 420, 520)), (ExpectedFinding("high", 100_000),)),
    RuleCase(
        "PD107",
        "virtual-memory",
        lambda: allocates(("cuMemCreate", 420, 450), ("cuMemMap", 450, 460)),
        (ExpectedFinding("medium", 40_000),),
    ),
    RuleCase("PD107", "healthy", well_fed_steps),
    RuleCase("PD107", "gpu-busy-meanwhile", lambda: allocates(("cudaMalloc", 410, 600), busy=True)),
    RuleCase("PD107", "short", lambda: allocates(("cudaMalloc", 410, 439))),
    RuleCase("PD107", "warm-up", warm_up),
    RuleCase("PD107", "in-the-loaders-wait", lambda: allocates(("cudaMalloc", 410, 600)).range(LOADER, 400, 205)),
]
