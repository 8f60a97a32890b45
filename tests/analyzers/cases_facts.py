"""Cases of the rules about captured facts: PD001."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder


def windows(base_us: list[float], timing_us: list[float], **more: Any) -> dict[str, Any]:
    """Facts of a capture whose steps took so long without and with the profiler."""
    return {
        "base_step_ns": [round(1000 * us) for us in base_us],
        "timing_step_ns": [round(1000 * us) for us in timing_us],
        **more,
    }


def one_step(**options: Any) -> TraceBuilder:
    return TraceBuilder(device=None, **options).step(0, 1000).op("aten::addmm", 0, 900)


def costs(
    base_cpu_us: list[float], timing_cpu_us: list[float], base_preempted: list[int], timing_preempted: list[int]
) -> dict[str, Any]:
    """CPU times and preemptions of the steps of both windows."""
    return {
        "base_cpu_ns": [round(1000 * us) for us in base_cpu_us],
        "timing_cpu_ns": [round(1000 * us) for us in timing_cpu_us],
        "base_preempted": base_preempted,
        "timing_preempted": timing_preempted,
    }
