"""Cases of the rules about batch size and memory: PD307, PD509."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder

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


# --- PD509 ------------------------------------------------------------------------------------------------------------

ADAM = "Optimizer.step#AdamW.step"
FEW_ROWS = {
    "shapes": [[1024], [4, 1024], [1024, 1024], [], []],
    "types": ["float", "float", "float", "Scalar", "Scalar"],
}
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
