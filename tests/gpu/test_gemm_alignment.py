"""Which dimension of a product is to blame for narrow memory accesses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu.gemm_alignment import (
    access_width_fraction,
    contiguous_dimensions,
    misaligned_dimensions,
    pad_dimension,
)
from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.roofline.op_cost import OpCost


def gemm(m: int, n: int, k: int, dtype: str = "bf16") -> OpCost:
    return OpCost("gemm", 2 * m * n * k, 1, dtype, m, n, k, 1)


@pytest.mark.parametrize(
    ("kernel", "dimensions"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", "NK"),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2", "NK"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nt", "MN"),
        ("ampere_sgemm_128x64_tt", "MNK"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "NK"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x64x32_MI16x16x1", "NK"),
        ("Cijk_Alik_Bjlk_BBS_BH_MT128x64x32_MI16x16x1", "MNK"),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT128x64x32_MI16x16x1", "MN"),
        ("triton_tem_fused_mm_0", "NK"),
        ("", "NK"),
    ],
)
def test_the_letters_of_a_name_tell_what_lies_contiguous(kernel: str, dimensions: str) -> None:
    assert contiguous_dimensions(kernel) == set(dimensions)


@pytest.mark.parametrize(
    ("cost", "kernel", "blamed"),
    [
        (gemm(141, 30522, 512), "gemm_bf16_256x128_64x3_tn_align2", (("N", 30522),)),
        (gemm(3137, 3137, 64), "gemm_bf16_128x128_nn_align1", (("N", 3137),)),
        (gemm(3137, 64, 3137), "gemm_bf16_128x128_nn_align1", (("K", 3137),)),
        (gemm(3137, 64, 512), "gemm_bf16_128x128_nt_align1", (("M", 3137),)),
        (gemm(512, 1030, 9375, "fp32"), "s1688gemm_64x64_32x4_tn_align1", (("N", 1030), ("K", 9375))),
        (gemm(512, 1028, 512, "fp32"), "s1688gemm_64x64_32x4_nn_align4", ()),
        (gemm(512, 1028, 512), "s16816gemm_64x64_32x4_nn_align4", (("N", 1028),)),
        (gemm(512, 1032, 512, "fp8"), "gemm_tn", (("N", 1032),)),
        (gemm(511, 511, 511, "unheard-of"), "gemm_nn", ()),
        (OpCost("memory", 0, 8, "bf16"), "gemm_nn", ()),
    ],
)
def test_the_contiguous_dimension_that_is_no_multiple_is_blamed(
    cost: OpCost, kernel: str, blamed: tuple[tuple[str, int], ...]
) -> None:
    assert misaligned_dimensions(cost, kernel) == blamed


@given(st.integers(1, 1 << 40), st.sampled_from(["fp32", "tf32", "bf16", "fp8", "int8", "unheard-of"]))
def test_padding_adds_the_least_that_makes_whole_accesses(size: int, dtype: str) -> None:
    multiple = max(8, elements_per_access(dtype) or 0)
    assert pad_dimension(size, dtype) % multiple == 0
    assert 0 <= pad_dimension(size, dtype) - size < multiple


def test_the_sizes_of_the_guides() -> None:
    assert pad_dimension(30522, "bf16") == 30528
    assert pad_dimension(3137, "bf16") == 3144
    assert pad_dimension(30528, "bf16") == 30528
    assert pad_dimension(30528 + 8, "fp8") == 30544


@pytest.mark.parametrize(
    ("alignment", "dtype", "share"),
    [(1, "bf16", 1 / 8), (2, "bf16", 1 / 4), (8, "bf16", 1.0), (1, "tf32", 1 / 4), (16, "bf16", 1.0), (1, "?", None)],
)
def test_the_share_of_a_whole_access(alignment: int, dtype: str, share: float | None) -> None:
    assert access_width_fraction(alignment, dtype) == share
