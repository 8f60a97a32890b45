"""Cases of the rule about copies that nothing overlaps: PD109."""

from __future__ import annotations

from rule_cases import ALL_REDUCE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

A100 = "NVIDIA A100-SXM4-40GB"
LAYERS = 8
TRITON = "triton_poi_fused_add_0"


def layers(
    copy_us: float = 1000,
    kernel_us: float = 200,
    stream: int = 7,
    op: str = "aten::to",
    frame: str = "",
    device: str | None = A100,
    steps: int = 2,
    name: str = "",
    back: bool = False,
) -> TraceBuilder:
    """Steps that copy 24 MB before each of 8 layers, of which each waits for its weights; `back`: and back again."""
    trace = TraceBuilder(device=device)
    at = 0.0
    for _ in range(steps):
        layer_us = copy_us * (2 if back else 1) + kernel_us
        trace.step(at, LAYERS * layer_us)
        if frame:
            trace.frame(frame, at, LAYERS * layer_us)
        for _ in range(LAYERS):
            trace.op(op, at, 20)
            trace.memcpy(name or "HtoD", at, copy_us, 24_000_000, stream, launch_us=at, pinned=True)
            trace.kernel(TENSOR_GEMM, at + copy_us, kernel_us, launch_us=at + 10)
            if back:
                trace.memcpy("DtoH", at + copy_us + kernel_us, copy_us, 24_000_000, launch_us=at + 15, pinned=True)
            at += layer_us
    return trace


def by_diffusers() -> TraceBuilder:
    trace = layers(frame="/lib/diffusers/hooks/group_offloading.py(77): onload_", steps=1)
    trace.frame("/lib/diffusers/pipelines/flux/pipeline_flux.py(650): __call__", 0, LAYERS * 1200)
    return trace


def made_on_the_host() -> TraceBuilder:
    """Steps in which each of 10 masks is made on the host and copied, from memory of which AMD does not say more."""
    trace = TraceBuilder(device="AMD Instinct MI300X")
    for at in range(0, 2000, 100):
        if at % 1000 == 0:
            trace.step(at, 1000)
        trace.op("aten::ones", at, 2).op("aten::to", at + 3, 20)
        trace.memcpy("Memcpy HtoD (Host -> Device)", at + 10, 40, 4_000_000, launch_us=at + 5)
        trace.kernel(TENSOR_GEMM, at + 50, 50, launch_us=at + 15)
    return trace


def batch(
    kind: str = "HtoD", stream: int = 7, pinned: bool = True, hidden: bool = False, copy_us: float = 2000
) -> TraceBuilder:
    """Steps of 10 ms that copy a batch of 50 MB first, then compute."""
    trace = TraceBuilder(device=A100)
    for at in (0, 10_000):
        trace.step(at, 10_000).op("aten::to", at, 20)
        trace.memcpy(kind, at, copy_us, 50_000_000, stream, launch_us=at, pinned=pinned)
        start = 0 if hidden else copy_us
        trace.kernel(TENSOR_GEMM, at + start, 10_000 - start, launch_us=at + 1)
    return trace


def within(
    op: str, copy_us: float = 50, size: int = 10_000_000, around: str = "", kernel: str = SGEMM, count: int = 20
) -> TraceBuilder:
    """A step of 10 ms with copies from device to device, between the halves of the matrix maths."""
    trace = TraceBuilder(device=A100).step(0, 10_000)
    if around:
        trace.op(around, 0, 1000)
    trace.op(op, 1, 990)
    for number in range(count):
        trace.memcpy("DtoD", 100 + number * copy_us, copy_us, size, launch_us=10 + number)
    end = 100 + count * copy_us
    return trace.kernel(kernel, 0, 100, launch_us=0).kernel(kernel, end, 10_000 - end, launch_us=900)


def overlapping() -> TraceBuilder:
    """Two streams copy 15 MB each within the device, from 0 to 100 us and from 50 to 150 us: 30 MB in 150 us."""
    trace = TraceBuilder(device=A100).step(0, 1000)
    trace.memcpy("DtoD", 0, 100, 15_000_000, 20, launch_us=0).memcpy("DtoD", 50, 100, 15_000_000, 21, launch_us=1)
    return trace.kernel(TENSOR_GEMM, 150, 850, launch_us=2)


def without_kernels() -> TraceBuilder:
    """No kernel at all: weights of 270 MB come again and again."""
    trace = TraceBuilder(device=A100)
    for number in range(9):
        trace.memcpy("HtoD", number * 10_000, 9_747, 270_000_000, launch_us=number * 10_000, pinned=True)
    return trace


def beside_collectives() -> TraceBuilder:
    trace = TraceBuilder(device=A100).step(0, 1000).memcpy("HtoD", 0, 500, launch_us=0, pinned=True)
    return trace.kernel(ALL_REDUCE, 0, 500, 20, launch_us=1).kernel(TENSOR_GEMM, 500, 500, launch_us=2)


def two_devices() -> TraceBuilder:
    """A step that sends activations from one GPU to another, which then computes."""
    trace = TraceBuilder(device=A100).step(0, 1000).kernel(TENSOR_GEMM, 0, 400, launch_us=0)
    trace.memcpy("PtoP", 400, 200, 4_000_000, launch_us=1)
    return trace.kernel(TENSOR_GEMM, 600, 400, launch_us=2, device=1)


PD109 = [
    RuleCase(  # of 9.6 ms 8 go to copies, and the kernels take only 1.6 ms to hide them
        "PD109",
        "weights-in-host-memory",
        layers,
        (
            ExpectedFinding(
                "medium",
                8_000_000,
                (0, None, 8_000_000),
                title="from the host take 83% of the step, and nothing computes meanwhile: 8 a step, 192 MB of weights",
                advice="The kernels can hide only 20% of this time",
                fix="torch.cuda.stream(side)",
                evidence={
                    "achieved": 24.0,
                    "large copies on this link or memory": 25.6,
                    "host memory": "pinned",
                    "on the stream of the kernels": 100.0,
                    "the same sizes each time": "yes",
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD109",
        "another-stream-that-the-kernels-wait-for",
        lambda: layers(300, 700, stream=20),
        (ExpectedFinding("medium", 2_400_000, (0, None, 2_400_000), advice="Issue the copies earlier"),),
    ),
    RuleCase(
        "PD109",
        "offloaded-by-diffusers",
        by_diffusers,
        (ExpectedFinding("medium", 8_000_000, title="of weights", fix="enable_group_offload(onload_device"),),
    ),
    RuleCase(
        "PD109",
        "moved-out-and-in",
        lambda: layers(back=True),
        (
            ExpectedFinding("medium", 8_000_000, title="from the host take 45% of the step", advice="in fewer bits"),
            ExpectedFinding("medium", 8_000_000, title="of state that is moved to host memory and back"),
        ),
    ),
    RuleCase(
        "PD109",
        "cache-of-keys-and-values",
        lambda: layers(op="vllm::kv_cache_swap_blocks"),
        (ExpectedFinding("medium", 8_000_000, title="of a cache of keys and values", advice="or store it in 8 bits"),),
    ),
    RuleCase(
        "PD109",
        "one-batch",
        batch,
        (
            ExpectedFinding(
                "medium",
                2_000_000,
                (0, None, 2_000_000),
                title="1 a step, 50 MB of input",
                advice="the next batch while this one computes",
                evidence={"achieved": 25.0},
            ),
        ),
    ),
    RuleCase(
        "PD109",
        "results",
        lambda: batch("DtoH"),
        (ExpectedFinding("medium", 2_000_000, title="to the host", advice="Copy only what is needed"),),
    ),
    RuleCase(
        "PD109",
        "no-kernel-at-all",
        without_kernels,
        (
            ExpectedFinding(
                "medium",
                87_723_000,
                (0, None, 87_723_000),
                title="Copies from the host take 98% of the trace",
                advice="runs no kernel that could hide the copies",
                confidence=0.5,
                evidence={"achieved": 27.7, "the same sizes each time": "yes"},
            ),
        ),
    ),
    RuleCase(  # half of the memory's 1,555 GB/s, of which large copies reach 88 %: each byte moves twice
        "PD109",
        "clones-of-compiled-code",
        lambda: within("aten::clone", around="CompiledFunction"),
        (
            ExpectedFinding(
                "medium",
                1_000_000,
                (0, None, 1_000_000),
                title="from device to device take 10% of the step, and nothing computes meanwhile: 20 a step, 200 MB",
                fix='backend="inductor"',
                evidence={"achieved": 200.0, "large copies on this link or memory": 684.2},
            ),
        ),
    ),
    RuleCase(
        "PD109",
        "clones-beside-generated-kernels",
        lambda: within("aten::clone", around="CompiledFunction", kernel=TRITON),
        (ExpectedFinding("medium", 1_000_000, advice="Change no input in place"),),
    ),
    RuleCase(
        "PD109",
        "many-small",
        lambda: within("aten::copy_", 5, 4096, count=200),
        (ExpectedFinding("medium", 1_000_000, title="of many small tensors", fix="torch._foreach_copy_"),),
    ),
    RuleCase(
        "PD109",
        "few-large",
        lambda: within("aten::copy_", 500, 100_000_000, count=2),
        (ExpectedFinding("medium", 1_000_000, advice="out="),),
    ),
    RuleCase(
        "PD109",
        "packed-for-ddp",
        lambda: within("aten::copy_", around="torch::distributed::reducer::copy_to_bucket"),
        (
            ExpectedFinding(
                "medium", 1_000_000, title="packed for collectives", advice="Write the tensors into the buffer"
            ),
        ),
    ),
    RuleCase(
        "PD109",
        "copies-that-overlap-each-other",
        overlapping,
        (ExpectedFinding("medium", 150_000, evidence={"achieved": 200.0, "on the stream of the kernels": 0.0}),),
    ),
    RuleCase(
        "PD109",
        "from-gpu-to-gpu",
        two_devices,
        (ExpectedFinding("medium", 200_000, title="between GPUs", advice="Keep what computes together on one GPU"),),
    ),
    RuleCase("PD109", "hidden-behind-kernels", lambda: batch(stream=20, hidden=True)),
    RuleCase("PD109", "pageable", lambda: batch(pinned=False)),
    RuleCase("PD109", "short-against-the-step", lambda: batch(copy_us=490)),
    RuleCase("PD109", "clones-of-eager-code", lambda: within("aten::clone")),
    RuleCase("PD109", "concatenation", lambda: within("aten::cat")),
    RuleCase("PD109", "beside-a-collective", beside_collectives),
    RuleCase(
        "PD109",
        "memsets",
        lambda: TraceBuilder().step(0, 1000).memset(0, 500, launch_us=0).kernel(SGEMM, 500, 500, launch_us=1),
    ),
    RuleCase("PD109", "behind-each-layer", lambda: layers(30, 900)),
    RuleCase("PD109", "made-on-the-host", made_on_the_host),
    RuleCase("PD109", "outside-of-the-steps", lambda: without_kernels().step(100_000, 10).kernel(SGEMM, 100_001, 9)),
    RuleCase("PD109", "no-copies", lambda: TraceBuilder().step(0, 1000).kernel(SGEMM, 0, 1000, launch_us=0)),
    RuleCase("PD109", "pageable-one-by-one", lambda: layers(name="Memcpy HtoD (Pageable -> Device)")),
    RuleCase("PD109", "values-that-are-read", lambda: batch("DtoH", pinned=False)),
    RuleCase("PD109", "made-contiguous", lambda: within("aten::contiguous", around="aten::matmul")),
    RuleCase("PD109", "stacked", lambda: within("aten::stack", 500, 100_000_000, count=2)),
]
