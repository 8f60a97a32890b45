"""Cases of the rules about small collectives and uneven work: PD404, PD408."""

from __future__ import annotations

from typing import Any

from rule_cases import ALL_REDUCE, TENSOR_GEMM

from perfdoctor.testing import SyntheticFleet, TraceBuilder, collective
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


def step_of_collectives(
    count: int,
    each_us: float,
    elements: int,
    large: tuple[float, int] | None = None,
    kernel: str = ALL_REDUCE,
    behind_work: bool = False,
    **metadata: Any,
) -> TraceBuilder:
    """A step that computes, and then runs collectives one after the other.

    Args:
        count: Number of collectives.
        each_us: Duration of each.
        elements: Elements that each rank puts in, of four bytes; 0 where sizes are not recorded.
        large: Duration in us and elements of another collective, which runs beside the computation.
        kernel: Name of their kernel.
        behind_work: Whether computation hides all of them.
        metadata: What else is recorded of them.
    """
    total = count * each_us
    trace = TraceBuilder(rank=0, world_size=8).step(0, 1000)
    trace.kernel(TENSOR_GEMM, 0, 1000 if behind_work else 1000 - total, launch_us=0)
    ranks = tuple(range(8))
    if large is not None:
        comm = collective(in_elements=large[1], ranks=ranks, **metadata)
        trace.kernel(kernel, 0.5, large[0], stream=20, launch_us=0.1, comm=comm)
    for row in range(count):
        comm = collective(in_elements=elements, ranks=ranks, **metadata) if elements else None
        trace.kernel(kernel, 1000 - total + row * each_us, each_us, stream=20, launch_us=0.2 + 0.1 * row, comm=comm)
    return trace


def between_layers() -> TraceBuilder:
    """Small all-reduces between the layers of a tensor-parallel model, and a large one that shows the link."""
    trace = step_of_collectives(20, 10, 10_000, large=(160, 16_000_000))
    return trace.op("Redistribute", 100, 5)


def sizes_not_recorded() -> TraceBuilder:
    return step_of_collectives(20, 10, 0)


def six_in_each_of_two_groups() -> TraceBuilder:
    """Six small collectives in each of two groups, so that neither has many."""
    trace = TraceBuilder(rank=0, world_size=8).step(0, 1000).kernel(TENSOR_GEMM, 0, 880, launch_us=0)
    for row in range(12):
        group = str(row % 2)
        comm = collective("allreduce", 1000, ranks=range(8), group=group, description=f"group {group}")
        trace.kernel(ALL_REDUCE, 880 + 10 * row, 10, stream=20, launch_us=0.2 + 0.1 * row, comm=comm)
    return trace


PD404 = [
    # 20 collectives of 40 KB take 200 us. A bucket with their 0.8 MB takes the latency of one, 10 us, and 2 us at the
    # bandwidth of the large one, 64 MB in 160 us.
    RuleCase(
        "PD404",
        "one-for-each-parameter",
        lambda: step_of_collectives(20, 10, 10_000, large=(160, 16_000_000)),
        (
            ExpectedFinding(
                "medium",
                200_000,
                (0, 188_000, 200_000),
                title="20 small collectives (all_reduce) a step move 0.8 MB",
                fix="flat = torch.cat",
                evidence={
                    "small collectives per step": 20,
                    "median size": 40_000,
                    "bus bandwidth reached": 7.0,
                    "bus bandwidth of large ones": 700.0,
                },
            ),
        ),
        via_file=True,
    ),
    # Each layer waits for its own, so buckets promise nothing.
    RuleCase(
        "PD404",
        "between-layers",
        between_layers,
        (ExpectedFinding("medium", 200_000, (0, None, 200_000), advice="cannot be put together"),),
    ),
    RuleCase(
        "PD404",
        "none-is-large",
        lambda: step_of_collectives(20, 10, 10_000),
        (ExpectedFinding("medium", 200_000, (0, None, 200_000), evidence={"bus bandwidth of large ones": None}),),
    ),
    RuleCase(
        "PD404",
        "shards-gathered",
        lambda: step_of_collectives(10, 5, 1000, kernel=ALL_REDUCE.replace("AllReduce_Sum_f32", "AllGather")),
        (ExpectedFinding("low", 50_000, (0, None, 50_000), title="10 small collectives (all_gather)"),),
    ),
    RuleCase("PD404", "eight", lambda: step_of_collectives(8, 2, 100), (ExpectedFinding("info", 16_000),)),
    RuleCase(
        "PD404",
        "half-precision",
        lambda: step_of_collectives(10, 10, 500_000, dtype="BFloat16"),
        (ExpectedFinding("medium", 100_000, title="move 10 MB", evidence={"median size": 1_000_000}),),
    ),
    RuleCase("PD404", "seven", lambda: step_of_collectives(7, 20, 10_000)),
    RuleCase("PD404", "large-ones", lambda: step_of_collectives(20, 10, 1_000_000)),
    RuleCase("PD404", "large-in-half-precision", lambda: step_of_collectives(10, 20, 2_000_000, dtype="BFloat16")),
    RuleCase("PD404", "behind-the-work", lambda: step_of_collectives(20, 10, 10_000, behind_work=True)),
    RuleCase("PD404", "nobody-knows-the-sizes", sizes_not_recorded),
    RuleCase("PD404", "few-in-each-group", six_in_each_of_two_groups),
]


PD408 = [
    RuleCase(  # 64, 64, 64 and 96 samples in each step: the largest is 4/3 of the mean
        "PD408",
        "half-more-samples",
        lambda: SyntheticFleet(4).uneven_batch(3, 1.5).builders(),
        (
            ExpectedFinding(
                "medium",
                2_709_137,
                (0, 2_709_137, 2_709_137),
                title="the busiest of a step has 33% more than the mean",
                evidence={
                    "FLOPs of the busiest rank over the mean": 33.3,
                    "rank that is busiest most often": 3,
                    "steps in which it is": "6 of 6",
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD408",
        "a-fifth-more",
        lambda: SyntheticFleet(4).uneven_batch(0, 1.2).builders(),
        (
            ExpectedFinding(
                "medium",
                1_801_160,
                (0, 1_354_633, 1_354_633),
                title="14% more",
                evidence={"rank that is busiest most often": 0},
            ),
        ),
    ),
    RuleCase(
        "PD408",
        "two-of-four",
        lambda: SyntheticFleet(4).uneven_batch(0, 1.3).uneven_batch(1, 1.3).builders(),
        (ExpectedFinding("medium", 2_105_978, (0, 1_358_085, 1_358_085), title="13% more"),),
    ),
    RuleCase(
        "PD408",
        "one-has-half",
        lambda: SyntheticFleet(4).uneven_batch(2, 0.5).builders(),
        (ExpectedFinding("medium", 2_709_462, (0, 1_131_740, 1_131_740), evidence={"rank that waits longest": 2}),),
    ),
    RuleCase(
        "PD408",
        "two-ranks",
        lambda: SyntheticFleet(2).uneven_batch(1, 1.4).builders(),
        (
            ExpectedFinding(
                "medium",
                2_402_998,
                (0, 1_795_934, 1_795_934),
                title="17% more",
                evidence={"rank that waits longest": 0},
            ),
        ),
    ),
    RuleCase("PD408", "balanced", lambda: SyntheticFleet(4).builders()),
    RuleCase("PD408", "the-last-batch", lambda: SyntheticFleet(4).uneven_batch(2, 1.02).builders()),
    RuleCase("PD408", "slower-not-more", lambda: SyntheticFleet(4).slow_backward(1, 1.5).builders()),
    RuleCase("PD408", "late-not-more", lambda: SyntheticFleet(4).late_loader(1, 3000).builders()),
    RuleCase("PD408", "alone", lambda: SyntheticFleet(4).uneven_batch(3, 1.5).builders()[3:]),
]
