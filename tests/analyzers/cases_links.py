"""Cases of the rules about small collectives and uneven work: PD404, PD408."""

from __future__ import annotations

from typing import Any

from rule_cases import ALL_REDUCE, TENSOR_GEMM

from perfdoctor.testing import SyntheticFleet, TraceBuilder, collective


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
