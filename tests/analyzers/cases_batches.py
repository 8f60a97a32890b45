"""Cases of the rules about batch size and memory: PD307, PD509."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

GB = 1_000_000_000
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"
OUTER_ENGINE = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
LINE = {"file": "train.py", "line": 12, "function": "forward"}


def gpu_memory(peak_gb: float, total_gb: float = 80, stays_gb: float = 1) -> dict[str, Any]:
    """Facts of a program that has reserved so much memory of its GPU at most."""
    window = {
        "step": 15,
        "allocated_bytes": round(stays_gb * GB),
        "allocated_peak_bytes": round(peak_gb * GB),
        "reserved_bytes": round(peak_gb * GB),
        "reserved_peak_bytes": round(peak_gb * GB),
        "rss_bytes": 3 * GB,
        "rss_peak_bytes": 3 * GB,
    }
    return {
        "memory": {
            "device_bytes": round(total_gb * GB),
            "host_bytes": 256 * GB,
            "available_bytes": 200 * GB,
            "windows": {"base": window},
        }
    }


def ram(peak_gb: float, available_gb: float) -> dict[str, Any]:
    """Facts of a program on the CPU that holds so much at most, and could still get so much."""
    window = {"step": 15, "rss_bytes": round(peak_gb * GB), "rss_peak_bytes": round(peak_gb * GB)}
    return {
        "memory": {
            "device_bytes": None,
            "host_bytes": 256 * GB,
            "available_bytes": round(available_gb * GB),
            "windows": {"base": window},
        }
    }


def checkpointing(calls: int = 4) -> dict[str, Any]:
    return {
        "checkpointing": {
            "calls": calls * 20,
            "calls_per_step": calls,
            "use_reentrant": False,
            "preserve_rng_state": True,
            "location": LINE if calls else None,
        }
    }


# --- PD307 ------------------------------------------------------------------------------------------------------------

# Inputs of 229376 x 4096 and 4096 x 4096 in bfloat16, and a bias: 1.9 GB.
SHAPES = [[4096], [229376, 4096], [4096, 4096], [], []]
TYPES = ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]


def older_kind(again_us: float = 200, *, shapes: bool = True) -> TraceBuilder:
    """A step of 1 ms: 300 us forward, then a node that computes a product again and runs its backward pass."""
    inputs = {"shapes": SHAPES, "types": TYPES} if shapes else {}
    trace = TraceBuilder().step(0, 1000).op("CheckpointFunction", 0, 60)
    trace.op("aten::addmm", 10, 20, **inputs).kernel(GEMM, 20, 280, launch_us=15)
    trace.op(OUTER_ENGINE, 100, 880).op("CheckpointFunctionBackward", 101, 878)
    trace.op("aten::addmm", 120, 20, **inputs).kernel(GEMM, 300, again_us, launch_us=125)
    trace.op(ENGINE, 150, 200).op("aten::mm", 160, 20).kernel(GEMM, 300 + again_us, 450 - again_us, launch_us=165)
    trace.call("cudaStreamSynchronize", 400, 560)
    return trace


def newer_kind(*, create_graph: bool = False) -> TraceBuilder:
    """A step on the CPU whose backward node first runs two ops of the forward pass again, by autograd's numbers."""
    trace = TraceBuilder(device=None).step(0, 1000)
    trace.op("aten::addmm", 0, 200, sequence=1).op("aten::gelu", 200, 100, sequence=2)
    trace.op(ENGINE, 400, 550, sequence=2)
    trace.op("aten::addmm", 410, 190, sequence=3).op("aten::gelu", 600, 100, sequence=4)
    numbers: dict[str, Any] = {"sequence": 5} if create_graph else {}
    for number in range(6):
        trace.op("aten::mm", 710 + 30 * number, 25, **numbers)
    return trace


PD307 = [
    RuleCase(
        "PD307",
        "memory-is-free",
        older_kind,
        (
            ExpectedFinding(
                "medium",
                200_000,
                (0, 200_000, 200_000),
                location="train.py:12",
                title="Activation checkpointing computes 20% of the step again, and 63 GB of GPU memory are left",
                advice="Do not checkpoint",
                fix="x = block(x)",
                evidence={"keeping it takes at most": 1_912_610_816, "calls of checkpoint per step": 4},
            ),
        ),
        {**gpu_memory(10), **checkpointing()},
    ),
    RuleCase(
        "PD307",
        "a-half-of-it-fits",
        older_kind,
        (
            ExpectedFinding(
                "medium",
                200_000,
                location="train.py:12",
                advice="the memory that is left holds what about 2 of 4 blocks compute",
                fix="x = block(x) if number < 2 else checkpoint(block, x, use_reentrant=False)",
            ),
        ),
        {**gpu_memory(10, total_gb=11.06), **checkpointing()},
    ),
    RuleCase(
        "PD307",
        "memory-was-not-recorded",
        older_kind,
        (ExpectedFinding("info", 200_000, (None, None, None), advice="run the program under `perfdoctor run`"),),
    ),
    RuleCase(
        "PD307",
        "newer-kind-on-a-cpu",
        newer_kind,
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, 300_000, 300_000),
                location="train.py:12",
                title="computes 30% of the step again, and 180 GB of RAM are left",
            ),
        ),
        {**ram(2, 200), **checkpointing()},
    ),
    RuleCase(
        "PD307",
        "no-shapes-and-plenty",
        lambda: older_kind(shapes=False),
        (ExpectedFinding("medium", 200_000, location="train.py:12", evidence={"keeping it takes at most": None}),),
        {**gpu_memory(10), **checkpointing()},
    ),
    RuleCase("PD307", "memory-is-full", older_kind, (), {**gpu_memory(79.95), **checkpointing()}),
    RuleCase(
        "PD307", "no-shapes-and-half-full", lambda: older_kind(shapes=False), (), {**gpu_memory(45), **checkpointing()}
    ),
    RuleCase("PD307", "too-little-again", lambda: older_kind(10), (), {**gpu_memory(10), **checkpointing()}),
    RuleCase("PD307", "nobody-checkpoints", newer_kind, (), {**ram(2, 200), **checkpointing(0)}),
    RuleCase(
        "PD307", "gradients-of-gradients", lambda: newer_kind(create_graph=True), (), {**ram(2, 200), **checkpointing()}
    ),
]

# --- PD509 ------------------------------------------------------------------------------------------------------------

ADAM = "Optimizer.step#AdamW.step"
BY_KERNELS = "kernels by their bounds, replayed"
FEW_ROWS = {
    "shapes": [[1024], [4, 1024], [1024, 1024], [], []],
    "types": ["float", "float", "float", "Scalar", "Scalar"],
}
ONE_ROW = {"shapes": [[1024], [1, 1024], [1024, 1024], [], []], "types": FEW_ROWS["types"]}
MANY_ROWS = {"shapes": [[1024], [512, 1024], [1024, 1024], [], []], "types": FEW_ROWS["types"]}


def loader(samples: int = 4, backwards: int = 1) -> dict[str, Any]:
    return {
        "loaders": [
            {"batch_size": samples, "batches": 40, "created": {"file": "train.py", "line": 7, "function": "main"}}
        ],
        "base_step_ns": [1_000_000] * 4,
        "base_samples": [samples * backwards] * 4,
        "base_backwards": [backwards] * 4,
    }


def cpu_step(passes_us: float, optimizer_us: float, rows: dict[str, Any] = FEW_ROWS) -> TraceBuilder:
    """Two steps on the CPU of a product forward, one backward, and an optimizer."""
    trace = TraceBuilder(device=None)
    whole = 2 * passes_us + optimizer_us
    for number in range(2):
        start = number * whole
        trace.step(start, whole).op("aten::addmm", start, passes_us, sequence=1, **rows)
        trace.op(ENGINE, start + passes_us, passes_us, sequence=1)
        trace.op("aten::addmm", start + passes_us, passes_us, **rows)
        trace.range(ADAM, start + 2 * passes_us, optimizer_us)
        trace.op("aten::_fused_adamw_", start + 2 * passes_us, optimizer_us)
    return trace


def gpu_step(kernel_us: float, blocks: int = 16, count: int = 8, step_us: float = 1000) -> TraceBuilder:
    """Steps on a GPU whose CPU launches a kernel every 100 us, forward and backward, and one of the optimizer."""
    trace = TraceBuilder()
    for number in range(2):
        start = number * step_us
        trace.step(start, step_us)
        for each in range(count):
            at = start + 10 + 100 * each
            name = "aten::mm" if each % 2 else ENGINE
            trace.op(name, at, 60, sequence=each).kernel(GEMM, at + 10, kernel_us, launch_us=at + 2, blocks=blocks)
        trace.range(ADAM, start + 850, 100).op("aten::_fused_adamw_", start + 851, 50)
        trace.kernel("FusedAdamMathFunctor", start + 865, 20, launch_us=start + 855)
    return trace


def inference(samples: int = 1, pause_us: float = 50, device: str | None = None) -> TraceBuilder:
    """Four steps of 400 us that call a model with so many samples, and so long a pause behind each."""
    trace = TraceBuilder(device=device)
    trace.frame("serve.py(9): evaluate", 0, 4 * (400 + pause_us))
    for number in range(4):
        start = number * (400 + pause_us)
        trace.step(start, 400).range("perfdoctor::module_call @serve.py:11 embed", start, 390)
        trace.op("aten::conv2d", start + 1, 380, shapes=[[samples, 3, 64, 64], [32, 3, 3, 3]], types=["float"] * 2)
        if device is not None:
            trace.kernel(GEMM, start + 20, 300, launch_us=start + 5)
    return trace


ONE_SAMPLE = ExpectedFinding(
    "low",
    0,
    location="serve.py:11",
    title="one sample at a time",
    advice="Give it many samples at once",
    fix="torch.stack",
)

SINGLE_SAMPLES = [
    RuleCase("PD104", "one-sample-after-the-other", inference, (ONE_SAMPLE,)),
    RuleCase("PD104", "one-sample-on-a-gpu", lambda: inference(device="NVIDIA A100-SXM4-80GB"), (ONE_SAMPLE,)),
    RuleCase("PD104", "one-sample-with-short-pauses", lambda: inference(pause_us=180), (ONE_SAMPLE,)),
    RuleCase("PD104", "requests-with-pauses", lambda: inference(pause_us=900)),
    RuleCase("PD104", "a-batch-of-eight", lambda: inference(8)),
    RuleCase("PD104", "a-training-with-one-sample", lambda: cpu_step(200, 600, ONE_ROW)),
]

PD509 = [
    RuleCase(
        "PD509",
        "weights-and-optimizer",
        lambda: cpu_step(200, 600),
        (
            ExpectedFinding(
                "info",
                0,
                location="train.py:7",
                title="A batch twice as large would take",
                advice="let the learning rate grow with it",
                fix="DataLoader(..., batch_size=8)",
                evidence={"samples per step": 4, "known by": "ops by their shapes"},
            ),
        ),
        {**ram(2, 200), **loader()},
    ),
    RuleCase(
        "PD509",
        "micro-batches",
        lambda: cpu_step(200, 600),
        (ExpectedFinding("info", 0, location="train.py:7", advice="make the same gradients"),),
        {**ram(2, 200), **loader(backwards=4)},
    ),
    RuleCase(
        "PD509",
        "large-global-batch",
        lambda: cpu_step(200, 600),
        (ExpectedFinding("info", 0, location="train.py:7", advice="16,384 samples a step on all ranks"),),
        {**ram(2, 200), **loader(128), "world_size": 64},
    ),
    RuleCase(
        "PD509",
        "empty-gpu",
        lambda: gpu_step(8),
        (
            ExpectedFinding(
                "info", 0, location="train.py:7", evidence={"known by": "kernels by their bounds, replayed"}
            ),
        ),
        {**gpu_memory(6), **loader()},
    ),
    RuleCase(  # the first dimension of the first layer
        "PD509",
        "no-loader",
        lambda: cpu_step(200, 600),
        (ExpectedFinding("info", 0, advice="180 GB of RAM are left", evidence={"samples per step": 4}),),
        ram(2, 200),
    ),
    RuleCase(
        "PD509", "products-of-many-rows", lambda: cpu_step(480, 40, MANY_ROWS), (), {**ram(2, 200), **loader(512)}
    ),
    RuleCase("PD509", "busy-gpu", lambda: gpu_step(99, 4096, step_us=960), (), {**gpu_memory(6), **loader()}),
    RuleCase("PD509", "memory-is-full", lambda: gpu_step(8), (), {**gpu_memory(60), **loader()}),
    RuleCase("PD509", "memory-was-not-recorded", lambda: gpu_step(8), (), loader()),
    RuleCase(  # each gets a half of 180 GB, and holds 100
        "PD509",
        "ranks-share-the-memory",
        lambda: cpu_step(200, 600),
        (),
        {**ram(100, 200), **loader(), "world_size": 2},
    ),
]
