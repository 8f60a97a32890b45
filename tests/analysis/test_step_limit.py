"""The limit of a step: every kernel at its roof, and nothing waits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.pipeline import diagnose_run
from perfdoctor.rank import Rank
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

BF16 = "c10::BFloat16"
FAST = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
SGEMM = "ampere_sgemm_128x128_nn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PRODUCT_US = 2 * 4096**3 / (0.79 * 989.4e12) * 1e6  # 176 us: what an H100 attains
TF32_US = 2 * 4096**3 / (0.79 * 494.7e12) * 1e6


def h100() -> TraceBuilder:
    return TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)


def product(builder: TraceBuilder, at_us: float, dur_us: float, kernel: str = FAST, dtype: str = BF16) -> TraceBuilder:
    builder.op("aten::mm", at_us, 10, shapes=[[4096, 4096], [4096, 4096]], types=[dtype] * 2)
    return builder.kernel(kernel, at_us + 20, dur_us, launch_us=at_us + 1)


def limit_us(builder: TraceBuilder) -> float | None:
    step_ns = Rank(builder.trace()).limit.step_ns
    return None if step_ns is None else step_ns / 1e3


def test_slow_products_take_the_time_of_their_roof_and_gaps_vanish() -> None:
    builder = product(product(h100(), 0, 500), 1000, 800)
    limit = Rank(builder.trace()).limit

    assert limit.step_ns == pytest.approx(2 * PRODUCT_US * 1e3, rel=1e-3)
    assert limit.known_share == 1.0


def test_a_kernel_at_its_roof_keeps_its_time() -> None:
    assert limit_us(product(h100(), 0, 150)) == 150


def test_kernels_of_unknown_work_keep_their_time() -> None:
    builder = product(h100(), 0, 500).kernel("mine", 600, 500)
    limit = Rank(builder.trace()).limit

    assert limit.step_ns == pytest.approx((PRODUCT_US + 500) * 1e3, rel=1e-3)
    assert limit.known_share == 0.5
    assert "unknown work as recorded" in limit.basis


def test_without_known_work_only_the_gaps_vanish() -> None:
    limit = Rank(h100().kernel("mine", 0, 500).kernel("mine", 900, 100).trace()).limit

    assert (limit.step_ns, limit.known_share) == (600_000, 0.0)
    assert limit.basis == "kernels as recorded, their work unknown, nothing waits"


def test_helpers_of_a_product_take_no_time() -> None:
    builder = product(h100(), 0, 500).kernel("void cublasLt::splitKreduce_kernel<32, 16>", 600, 50, launch_us=3)

    assert limit_us(builder) == pytest.approx(PRODUCT_US, rel=1e-3)


def test_float32_products_take_the_advised_precision() -> None:
    limit = Rank(product(h100(), 0, 4000, SGEMM, "float").trace()).limit

    assert limit.step_ns == pytest.approx(TF32_US * 1e3, rel=1e-3)
    assert "tf32" in limit.basis


def test_exposed_communication_stays_and_hidden_communication_does_not() -> None:
    exposed = product(h100(), 0, 500).kernel(ALL_REDUCE, 600, 300, stream=20)
    hidden = product(h100(), 0, 500).kernel(ALL_REDUCE, 100, 300, stream=20)

    assert limit_us(exposed) == pytest.approx(PRODUCT_US + 300, rel=1e-3)
    assert limit_us(hidden) == pytest.approx(PRODUCT_US, rel=1e-3)


def test_copies_from_the_host_are_hidden_unless_they_take_longer_than_the_kernels() -> None:
    few = product(h100(), 0, 500).memcpy("HtoD", 600, 100, size_bytes=1_000_000)
    many = product(h100(), 0, 500).memcpy("HtoD", 600, 900, size_bytes=30_000_000_000)

    assert limit_us(few) == pytest.approx(PRODUCT_US, rel=1e-3)
    assert limit_us(many) == 900


def test_the_limit_of_several_steps_is_the_median() -> None:
    builder = h100()
    for i, dur_us in enumerate((300, 300, 900)):
        builder.step(2000 * i, 2000)
        builder.kernel("mine", 2000 * i + 100, dur_us, launch_us=2000 * i + 10)

    assert limit_us(builder) == 300


def test_a_program_on_the_cpu_has_no_limit() -> None:
    limit = Rank(TraceBuilder().op("aten::mm", 0, 100).trace()).limit

    assert (limit.step_ns, limit.known_share) == (None, None)


def test_the_report_carries_the_limit() -> None:
    limit = diagnose_run(Run((Rank(product(h100(), 0, 500).trace()),)), ()).limit

    assert limit.step_ns == pytest.approx(PRODUCT_US * 1e3, rel=1e-3)
    assert (limit.known_share, limit.after_fixes_ns) == (1.0, None)
    assert limit.basis


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 900), st.booleans(), st.integers(0, 1)), max_size=12))
def test_the_limit_is_never_above_the_window_and_grows_with_the_kernels(
    items: list[tuple[int, int, bool, int]],
) -> None:
    builder, at_us, limits = h100(), 0, []
    for wait_us, dur_us, is_product, stream in items:
        at_us += wait_us
        if is_product:
            product(builder, at_us, dur_us)
        else:
            builder.kernel("mine", at_us, dur_us, stream=7 + stream)
        at_us += dur_us + 30
        rank = Rank(builder.trace())
        assert rank.limit.step_ns is not None
        assert rank.limit.step_ns <= rank.window_ns
        limits.append(rank.limit.step_ns)
    assert all(before <= after for before, after in pairwise(limits))


def ranks_of_a_job(late_us: float) -> list[Rank]:
    """Four ranks that compute for 400 us in each step, rank 2 longer, and then reduce until 100 us after the last."""
    builders = [TraceBuilder(rank=rank, world_size=4) for rank in range(4)]
    for step in range(5):
        at_us, end_us = 1000.0 * step, 500 + late_us
        for rank, builder in enumerate(builders):
            busy_us = 400 + (late_us if rank == 2 else 0)
            builder.step(at_us, 1000).kernel("mine", at_us, busy_us, launch_us=at_us)
            builder.kernel(ALL_REDUCE, at_us + busy_us, end_us - busy_us, launch_us=at_us + 0.01, stream=20)
    return [Rank(builder.trace()) for builder in builders]


@pytest.mark.parametrize(("late_us", "by_itself_us"), [(300, 800), (0, 500)])
def test_waits_for_a_late_rank_are_no_part_of_the_limit(late_us: float, by_itself_us: float) -> None:
    ranks = ranks_of_a_job(late_us)
    limit = diagnose_run(Run(tuple(ranks)), ()).limit

    assert ranks[0].limit.step_ns == pytest.approx(by_itself_us * 1e3, rel=0.02)
    assert limit.step_ns == pytest.approx(500_000, rel=0.02)
