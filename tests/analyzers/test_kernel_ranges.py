"""How long kernels take after a fix: by what comparable kernels reach of their roofline."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import SGEMM

from perfdoctor.analyzers._kernel_ranges import apply_remedy, catch_up, find_roofs
from perfdoctor.analyzers._matrix_remedies import Remedy
from perfdoctor.gpu.roofline import efficiencies
from perfdoctor.gpu.roofline.efficiencies import Cell, Efficiency, name_generation
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

A100 = "NVIDIA A100-SXM4-80GB"
BF16 = Remedy("bf16 autocast", 16.0, 0.5, "bf16")
# 4096^3: 137.4 GFLOP take 7,048 us at 19.5 TFLOP/s and 440.5 us at 312.
FP32_ROOF_NS, BF16_ROOF_NS = 2 * 4096**3 / 19.5e3, 2 * 4096**3 / 312e3


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {
        Cell("gemm", "fp32", "large", "Ampere"): Efficiency(0.7, 0.8, 0.9),
        Cell("gemm", "bf16", "large"): Efficiency(0.4, 0.5, 0.8),
        Cell("gemm"): Efficiency(0.1, 0.2, 0.3),
    }
    monkeypatch.setattr(efficiencies, "_read_table", lambda: cells)


def rank_of(dur_us: float, *, shapes: bool = True, others_us: float = 0) -> Rank:
    """A step with one product of 4096^3 in float32 on CUDA cores; `others_us` of another without shapes."""
    trace = TraceBuilder(device=A100, capability=(8, 0)).step(0, 40_000)
    sizes = [[4096, 4096], [4096, 4096]] if shapes else None
    trace.op("aten::mm", 1, 10, 1, sizes, ["float", "float"] if shapes else None)
    trace.kernel(SGEMM, 20, dur_us, correlation=trace.call("cudaLaunchKernel", 2, 1))
    if others_us:
        trace.op("aten::mm", 12, 5)
        trace.kernel(SGEMM, 20 + dur_us, others_us, correlation=trace.call("cudaLaunchKernel", 13, 1))
    trace.call("cudaDeviceSynchronize", 40, 39_000)
    return Rank(trace.trace())


def test_a_kernel_as_good_as_its_like_takes_what_its_like_take() -> None:
    rank = rank_of(FP32_ROOF_NS / 0.8 / 1e3)
    after = apply_remedy(rank, rank.kernels, "gemm", BF16)
    found = [float(ns[0]) for ns in (after.slowest_ns, after.expected_ns, after.fastest_ns)]
    assert found == pytest.approx([BF16_ROOF_NS / share for share in (0.4, 0.5, 0.8)], rel=1e-3)
    assert (after.known_share, after.has_middle) == (1.0, True)


def test_a_kernel_that_reaches_half_of_its_like_is_expected_to_do_so_after_the_fix() -> None:
    rank = rank_of(FP32_ROOF_NS / 0.4 / 1e3)
    after = apply_remedy(rank, rank.kernels, "gemm", BF16)
    found = [float(ns[0]) for ns in (after.slowest_ns, after.expected_ns, after.fastest_ns)]
    assert found == pytest.approx([BF16_ROOF_NS / share for share in (0.2, 0.25, 0.8)], rel=1e-3)


def test_a_kernel_catches_up_with_its_like_and_none_gets_longer() -> None:
    slow, good = rank_of(FP32_ROOF_NS / 0.2 / 1e3), rank_of(FP32_ROOF_NS / 0.95 / 1e3)
    for rank, shares in ((slow, (0.7, 0.8, 0.9)), (good, (0.95, 0.95, 0.95))):
        after = catch_up(rank, rank.kernels, "gemm", np.ones(1))
        found = [float(ns[0]) for ns in (after.slowest_ns, after.expected_ns, after.fastest_ns)]
        assert found == pytest.approx([FP32_ROOF_NS / share for share in shares], rel=1e-3)


def test_of_unknown_work_only_a_bound_is_given() -> None:
    rank = rank_of(8000, shapes=False)
    after = apply_remedy(rank, rank.kernels, "gemm", BF16)
    saving = after.saving(8_000_000)
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, None, 7_500_000)
    assert after.edit(rank.kernels.rows).is_upper_bound


def test_work_that_is_mostly_known_speaks_for_the_rest() -> None:
    rank = rank_of(FP32_ROOF_NS / 0.8 / 1e3, others_us=1000)
    after = apply_remedy(rank, rank.kernels, "gemm", BF16)
    known, rest = BF16_ROOF_NS / 0.5 / (FP32_ROOF_NS / 0.8), after.expected_ns[1] / 1e6
    assert rest == pytest.approx(known, rel=1e-3)
    assert (after.slowest_ns[1], after.fastest_ns[1]) == (1e6, 1e6 / 16)
    assert not after.edit(rank.kernels.rows).is_upper_bound


def test_no_kernel_is_expected_under_the_shortest_time_of_any() -> None:
    trace = TraceBuilder(device=A100, capability=(8, 0)).step(0, 1000)
    trace.op("aten::mm", 1, 10, 1, [[64, 64], [64, 64]], ["float", "float"])
    trace.kernel(SGEMM, 20, 10, correlation=trace.call("cudaLaunchKernel", 2, 1))
    rank = Rank(trace.trace())
    assert find_roofs(rank, rank.kernels).roof_ns.tolist() == [2000]
    assert apply_remedy(rank, rank.kernels, "gemm", BF16).fastest_ns.min() >= 2000


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell("gemm", "fp32", "large", "Ampere"), 0.8),
        (Cell("gemm", "bf16", "large", "Ampere"), 0.5),
        (Cell("gemm", "bf16", "tiny", "Ampere"), 0.2),
        (Cell("convolution", "bf16", "tiny", "Ampere"), None),
    ],
)
def test_an_empty_cell_is_replaced_by_the_nearest_wider_one(cell: Cell, expected: float | None) -> None:
    found = efficiencies.find_efficiency(cell)
    assert (found and found.expected) == expected


@pytest.mark.parametrize(
    ("capability", "gfx_arch", "generation"),
    [
        ((7, 0), None, "Volta"),
        ((7, 5), None, "Turing"),
        ((8, 6), None, "Ampere"),
        ((8, 9), None, "Ada"),
        ((9, 0), None, "Hopper"),
        ((12, 0), None, "Blackwell"),
        ((6, 1), None, "any"),
        (None, "gfx942", "gfx942"),
        (None, None, "any"),
    ],
)
def test_a_generation_has_the_name_of_the_table(
    capability: tuple[int, int] | None, gfx_arch: str | None, generation: str
) -> None:
    assert name_generation(capability, gfx_arch) == generation
