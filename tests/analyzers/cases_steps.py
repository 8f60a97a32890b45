"""Cases of the rules about steps as such: PD003."""

from __future__ import annotations

from rule_cases import LOADER, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


def steps_of(*lengths_us: float, device: str | None = "NVIDIA A100-SXM4-80GB", busy: bool = True) -> TraceBuilder:
    """Steps of such lengths; the GPU works through all of each (`busy`) or for the first 900 us."""
    trace, at = TraceBuilder(device=device), 0.0
    for length in lengths_us:
        trace.step(at, length)
        if device is None:
            trace.op("aten::addmm", at, length if busy else 900)
        else:
            trace.kernel(TENSOR_GEMM, at + 5, (length if busy else 900) - 5, launch_us=at)
        at += length
    return trace


def evaluation() -> TraceBuilder:
    """The fifth of six steps has a range of the user's after its usual work."""
    trace = steps_of(1000, 1000, 1000, 1000, 4000, 1000, device=None, busy=False)
    return trace.range("evaluate", 4950, 3000).range("inner", 4960, 2990).op("aten::mm", 5000, 100)


def slow_loader() -> TraceBuilder:
    return (
        steps_of(*[1000] * 7, 2000, busy=False).range(LOADER, 7950, 1000).kernel(TENSOR_GEMM, 8955, 45, launch_us=8952)
    )


PD003 = [
    RuleCase(  # 3000 us more than usual in one of six steps
        "PD003",
        "an-evaluation",
        evaluation,
        (
            ExpectedFinding(
                "high",
                500_000,
                (0, None, 500_000),
                title="1 of 5 steps takes 4.0 times the median: work on the CPU",
                evidence={
                    "usual step": 1_000_000,
                    "more unexplained time in a slow step": 2_900_000,
                    "most more time in": "evaluate",
                    "that is, in a slow step": 3_000_000,
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD003",
        "larger-inputs",
        lambda: steps_of(1000, 1000, 3000, 1000, 1000),
        (ExpectedFinding("medium", 400_000, title="more GPU work", advice="Group batches by length"),),
    ),
    RuleCase(
        "PD003",
        "the-loader",
        slow_loader,
        (ExpectedFinding("medium", 125_000, title="waits for the loader", advice="persistent_workers"),),
    ),
    RuleCase(
        "PD003",
        "two-of-eight",
        lambda: steps_of(1000, 1000, 2000, 1000, 1000, 2000, 1000, 1000),
        (ExpectedFinding("medium", 250_000, title="2 of 7 steps take up to 2.0 times"),),
    ),
    RuleCase(
        "PD003",
        "on-a-cpu",
        lambda: steps_of(1000, 1000, 1000, 2000, 1000, device=None),
        (ExpectedFinding("medium", 200_000, title="more work in the ops"),),
    ),
    RuleCase("PD003", "steady", lambda: steps_of(1000, 1010, 990, 1000, 1300, 1000)),
    RuleCase("PD003", "only-the-first", lambda: steps_of(3000, 1000, 1000, 1000, 1000, 1000)),
    RuleCase("PD003", "too-few", lambda: steps_of(1000, 1000, 3000, 1000)),
    RuleCase("PD003", "two-kinds-of-steps", lambda: steps_of(1000, 1000, 3000, 1000, 3000, 1000, 3000)),
    RuleCase("PD003", "a-slow-one-among-very-many", lambda: steps_of(*[1000] * 30, 1600)),
]
