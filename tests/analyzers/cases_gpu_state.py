"""Cases of the rules about what NVML says: PD601 to PD604."""

from __future__ import annotations

from typing import Any

from rule_cases import TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder


def computing(steps: int = 2) -> TraceBuilder:
    """Steps of 1 ms in which products fill 0.8 ms."""
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3")
    for step in range(steps):
        trace.step(1000 * step, 1000).op("aten::mm", 1000 * step + 5, 20)
        trace.kernel(TENSOR_GEMM, 1000 * step + 100, 800, launch_us=1000 * step + 10)
    return trace


def copying(direction: str = "HtoD") -> TraceBuilder:
    """Steps of 1 ms: 0.4 ms of a copy that nothing overlaps, then 0.6 ms of products."""
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3")
    for at in (0, 1000):
        trace.step(at, 1000).memcpy(direction, at + 10, 400, 20_000_000, launch_us=at + 5, pinned=True)
        trace.kernel(TENSOR_GEMM, at + 410, 590, launch_us=at + 8)
    return trace


def load(**figures: Any) -> dict[str, Any]:
    """What NVML said in a window: 20 samples under load at the maximal clock, the link at its best."""
    whole = {"samples": 20, "busy": 20, "clocked": 20, "sm_mhz": 1980.0, "power_w": 400.0, "temperature_c": 60.0}
    return {**whole, "reasons": {}, "linked": 20, "pcie_generation": 5, "pcie_width": 16, **figures}


def sampled(*windows: dict[str, Any], **device: Any) -> dict[str, Any]:
    """Facts of a program with one GPU, by what NVML said in each window."""
    labels = ("timing", "base", "evidence")
    constant = {
        "device": 0,
        "max_sm_mhz": 1980,
        "power_limit_w": 700.0,
        "default_power_limit_w": 700.0,
        "memory_total_bytes": 80_000_000_000,
        "max_pcie_generation": 5,
        "max_pcie_width": 16,
    }
    under_load = dict(zip(labels, windows, strict=False))
    return {"nvml": {"devices": [{**constant, "under_load": under_load, **device}]}}


def reduced(reason: str, mhz: float = 990.0, samples: int = 20, **figures: Any) -> dict[str, Any]:
    """A window in which a reason reduced the clock in so many of 20 samples."""
    return load(sm_mhz=mhz, reasons={reason: {"samples": samples, "sm_mhz": mhz}}, **figures)


def two_gpus(window: dict[str, Any]) -> dict[str, Any]:
    facts = sampled(window)
    return {"nvml": {"devices": facts["nvml"]["devices"] * 2}}


_X8 = load(pcie_width=8)


def shared(count: int = 1, min_count: int | None = None, memory: float = 0.0, use: int | None = None) -> dict[str, Any]:
    size = memory * 80_000_000_000
    return sampled(
        load(),
        other_processes={"min": count if min_count is None else min_count, "max": count},
        other_memory_bytes={"min": 0, "max": round(size)},
        other_sm_percent=None if use is None else {"min": 0, "max": use},
    )


_CAPPED = reduced("sw_power_cap", 1386.0)
