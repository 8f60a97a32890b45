"""Queries: which events they keep, what combines, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfdoctor.analysis.queries import CallQuery, GpuQuery
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

NORM, GEMM = "norm_kernel", "ampere_sgemm_128x64_nn"


@pytest.fixture
def rank() -> Rank:
    """Two steps; a norm whose mean launches a kernel, a product, and three copies."""
    trace = TraceBuilder().step(0, 100).step(100, 100)
    trace.range("block", 0, 25).op("mine::norm", 0, 20).op("aten::mean", 2, 10)
    trace.kernel("mean_kernel", 10, 10, launch_us=5).kernel(NORM, 20, 10, launch_us=14)
    trace.op("mine::normal", 30, 10).kernel(GEMM, 40, 20, launch_us=32, stream=8)
    trace.op("aten::mm", 110, 10).kernel(GEMM, 120, 20, launch_us=112)
    trace.memcpy("HtoD", 60, 5, launch_us=50).memcpy("HtoD", 70, 5, launch_us=66, pinned=True)
    return Rank(trace.memcpy("DtoH", 300, 5, launch_us=290).trace())


def starts_us(query: GpuQuery | CallQuery) -> list[int]:
    return [start // 1000 for start in query.table.start_ns[query.mask].tolist()]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (lambda r: r.kernels, [10, 20, 40, 120]),
        (lambda r: r.kernels.launched_by("mine::norm"), [10, 20]),  # the op inside it counts, a longer name does not
        (lambda r: r.kernels.launched_by("aten::mean"), [10]),
        (lambda r: r.kernels.launched_by("aten::softmax"), []),
        (lambda r: r.kernels.launched_in("^block$"), [10, 20]),
        (lambda r: r.kernels.launched_in("^other$"), []),
        (lambda r: r.kernels.named("_kernel$"), [10, 20]),
        (lambda r: r.kernels.of_category("gemm"), [40, 120]),
        (lambda r: r.kernels.on_stream(8), [40]),
        (lambda r: r.kernels.during(np.array([[15, 45]]) * 1000), [20, 40]),
        (lambda r: r.kernels.where(r.trace.gpu.dur_ns == 20_000), [40, 120]),
        (lambda r: r.copies, [60, 70, 300]),
        (lambda r: r.copies.in_steps(), [60, 70]),
        (lambda r: r.copies.copying("HtoD"), [60, 70]),
        (lambda r: r.copies.copying("DtoD"), []),
        (lambda r: r.copies.pageable(), [60, 300]),
        (lambda r: r.kernels.launched_by("aten::mm") | r.copies.copying("DtoH"), [120, 300]),
        (lambda r: r.kernels.named(GEMM) & r.kernels.on_stream(8), [40]),
        (lambda r: r.kernels.named(GEMM) - r.kernels.on_stream(8), [120]),
        (lambda r: r.ops.named("^aten::").kernels, [10, 120]),
        (lambda r: r.ops.called("mine::norm").kernels, [10, 20]),
        (lambda r: r.ops.called("aten::softmax").kernels, []),
        (lambda r: r.kernels.on_stream(8).calls, [32]),
        (lambda r: r.kernels.named("nothing").calls, []),
    ],
)
def test_a_query_keeps_what_it_names(rank: Rank, query: Callable[[Rank], GpuQuery], expected: list[int]) -> None:
    found = query(rank)
    assert starts_us(found) == expected
    assert len(found) == len(expected) == len(found.rows)


def test_outermost_ops_are_those_that_the_program_called(rank: Rank) -> None:
    names = [rank.trace.text(code) for code in rank.trace.ops.name[rank.ops.outermost().mask].tolist()]
    assert names == ["mine::norm", "mine::normal", "aten::mm"]


def test_time_is_a_union_within_the_steps(rank: Rank) -> None:
    assert rank.kernels.launched_by("mine::norm").time.tolist() == [[10_000, 30_000]]
    assert rank.copies.time_ns == 10_000


@pytest.mark.parametrize(
    "combine",
    [
        lambda r: r.kernels & r.ops,
        lambda r: r.calls | r.kernels,
        lambda r: r.ops - r.calls,
        lambda r: r.kernels.where(r.ops.mask),
        lambda r: r.kernels.where(r.trace.gpu.stream),
    ],
)
def test_what_belongs_to_another_table_is_refused(rank: Rank, combine: Callable[[Rank], object]) -> None:
    with pytest.raises(TypeError, match=r"a \w+Query (combines with queries of the same table|takes a mask of)"):
        combine(rank)


def test_a_direction_that_does_not_exist_is_refused(rank: Rank) -> None:
    with pytest.raises(ValueError, match="a direction is one of unknown, HtoD, "):
        rank.copies.copying("htod")
