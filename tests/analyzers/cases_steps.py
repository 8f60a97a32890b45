"""Cases of the rules about steps as such: PD003."""

from __future__ import annotations

from rule_cases import LOADER, TENSOR_GEMM, Case, Says

from perfdoctor.testing import TraceBuilder


def lasting(*lengths_us: float, device: str | None = "NVIDIA A100-SXM4-80GB", busy: bool = True) -> TraceBuilder:
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


def evaluates() -> TraceBuilder:
    """The fifth of six steps has a range of the user's after its usual work."""
    trace = lasting(1000, 1000, 1000, 1000, 4000, 1000, device=None, busy=False)
    return trace.range("evaluate", 4950, 3000).range("inner", 4960, 2990).op("aten::mm", 5000, 100)


def waits_for_the_loader() -> TraceBuilder:
    return (
        lasting(*[1000] * 7, 2000, busy=False).range(LOADER, 7950, 1000).kernel(TENSOR_GEMM, 8955, 45, launch_us=8952)
    )


PD003 = [
    Case(  # 3000 us more than usual in one of six steps
        "PD003",
        "an-evaluation",
        evaluates,
        (
            Says(
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
    Case(
        "PD003",
        "larger-inputs",
        lambda: lasting(1000, 1000, 3000, 1000, 1000),
        (Says("high", 400_000, title="more GPU work", advice="Group batches by length"),),
    ),
    Case(
        "PD003",
        "the-loader",
        waits_for_the_loader,
        (Says("high", 125_000, title="waits for the loader", advice="persistent_workers"),),
    ),
    Case(
        "PD003",
        "two-of-eight",
        lambda: lasting(1000, 1000, 2000, 1000, 1000, 2000, 1000, 1000),
        (Says("high", 250_000, title="2 of 7 steps take up to 2.0 times"),),
    ),
    Case(
        "PD003",
        "on-a-cpu",
        lambda: lasting(1000, 1000, 1000, 2000, 1000, device=None),
        (Says("high", 200_000, title="more work in the ops"),),
    ),
    Case("PD003", "steady", lambda: lasting(1000, 1010, 990, 1000, 1300, 1000)),
    Case("PD003", "only-the-first", lambda: lasting(3000, 1000, 1000, 1000, 1000, 1000)),
    Case("PD003", "too-few", lambda: lasting(1000, 1000, 3000, 1000)),
    Case("PD003", "two-kinds-of-steps", lambda: lasting(1000, 1000, 3000, 1000, 3000, 1000, 3000)),
    Case("PD003", "a-slow-one-among-very-many", lambda: lasting(*[1000] * 30, 1600)),
]
