"""Cases of the rules about captured facts: PD001."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


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


PD001 = [
    RuleCase(
        "PD001",
        "a-quarter-slower",
        one_step,
        (
            ExpectedFinding(
                "info",
                0,
                title="to 1.25 times their usual length",
                advice="Figures are of the step without the profiler, 0.8 ms",
                evidence={"step without the profiler": 800_000, "recorded step, median": 1_000_000},
            ),
        ),
        windows([800, 800, 800], [1000, 1000, 1000]),
    ),
    RuleCase(
        "PD001",
        "medians-are-compared",
        one_step,
        (ExpectedFinding("info", 0, evidence={"steps timed without the profiler": 4}),),
        windows([690, 700, 700, 9000], [400, 1000, 1000]),
    ),
    RuleCase(
        "PD001",
        "more-than-half-profiler",
        one_step,
        (ExpectedFinding("info", 0, title="to 2.50 times"),),
        windows([400] * 3, [1000] * 3),
    ),
    RuleCase(
        "PD001",
        "each-rank-by-itself-in-one-finding",
        lambda: [one_step(rank=rank, world_size=2) for rank in (0, 1)],
        (ExpectedFinding("info", 0, evidence={"ranks": "0, 1"}),),
        windows([840] * 3, [1000] * 3),
    ),
    RuleCase(
        "PD001",
        "by-cpu-time",
        one_step,
        (ExpectedFinding("info", 0, title="to 1.25 times"),),
        windows([800] * 3, [1000] * 3, **costs([800] * 3, [1000] * 3, [0] * 3, [0] * 3)),
    ),
    RuleCase(
        "PD001",
        "twice-the-work-and-slower-still",
        one_step,
        (ExpectedFinding("info", 0, title="to 1.25 times", evidence={"step without the profiler": 800_000}),),
        windows([400] * 3, [1000] * 3, base_backwards=[1] * 3, timing_backwards=[2] * 3),
    ),
    RuleCase(
        "PD001",
        "half-the-batches",
        one_step,
        (ExpectedFinding("info", 0, title="to 2.00 times"),),
        windows([1000] * 3, [1000] * 3, base_batches=[2] * 3, timing_batches=[1] * 3),
    ),
    RuleCase(  # as often with the profiler as without
        "PD001",
        "preempted-alike",
        one_step,
        (ExpectedFinding("info", 0, title="to 1.25 times"),),
        windows([800] * 3, [1000] * 3, **costs([800] * 3, [1000] * 3, [4] * 3, [5] * 3)),
    ),
    RuleCase(
        "PD001",
        "twice-the-work",
        one_step,
        facts=windows([450] * 3, [1000] * 3, base_backwards=[1] * 3, timing_backwards=[2] * 3),
    ),
    RuleCase(
        "PD001",
        "twice-the-batches",
        one_step,
        facts=windows([450] * 3, [1000] * 3, base_batches=[2] * 3, timing_batches=[4] * 3),
    ),
    RuleCase(
        "PD001",
        "preempted-while-recording",
        one_step,
        facts=windows([500] * 4, [1000] * 3, **costs([500] * 4, [510] * 3, [0] * 4, [1] * 3)),
    ),
    RuleCase("PD001", "fourteen-percent", one_step, facts=windows([880] * 3, [1000] * 3)),
    RuleCase("PD001", "no-base-window", one_step, facts=windows([], [1000] * 3)),
    RuleCase("PD001", "too-few-steps", one_step, facts=windows([500, 500], [1000] * 3)),
    RuleCase("PD001", "no-facts", one_step),
    RuleCase("PD001", "facts-of-another-form", one_step, facts={"base_step_ns": None, "timing_step_ns": ["1", 2, -3]}),
]
