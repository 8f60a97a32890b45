"""Tiles of products by the names of real kernels, and how well they fill a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analyzers._pd209_causes import cut_into_tiles, tile_of_name

SIZES = st.integers(1, 20_000)
TILES = st.sampled_from([16, 32, 64, 112, 128, 192, 256])


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", (128, 256)),
        ("ampere_sgemm_128x64_tn", (128, 64)),
        ("volta_sgemm_32x128_nn", (32, 128)),
        ("volta_scudnn_128x64_relu_medium_nn_v1", (128, 64)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", (128, 128)),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>", (128, 64)),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>", (16, 16)),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_MI16x16x16x1_SN_1LDSB0", (256, 112)),
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", (192, 208)),
        ("nvjet_sm103_tst_64x16_64x16_2x1_2cta_v_bz_splitK_TNT", (64, 16)),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8_ws1x2", (128, 256)),
        ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>", None),
        ("attn_fwd", None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", None),
    ],
)
def test_the_tile_stands_in_the_name(kernel: str, tile: tuple[int, int] | None) -> None:
    assert tile_of_name(kernel) == tile


def test_the_grid_of_a_recorded_product_has_as_many_blocks() -> None:
    # hipExtModuleLaunchKernel: 4352 x 37 threads of 256 a block, for [4097, 4097] x [4097, 4097] on 304 units.
    cut = cut_into_tiles(4097, 4097, (256, 112), 304)
    assert cut.tiles == 4352 // 256 * 37
    assert cut.waves == 3


def test_a_nearly_empty_last_wave_halves_what_is_full() -> None:
    cut = cut_into_tiles(1792, 1280, (128, 128), 132)
    assert (cut.tiles, cut.waves, cut.tile_fill) == (140, 2, 1.0)
    assert cut.wave_fill == pytest.approx(140 / 264)


def test_a_tile_that_hangs_over_the_edge_is_partly_wasted() -> None:
    assert cut_into_tiles(129, 128, (128, 128), 100).tile_fill == pytest.approx(129 / 256)
    # The first number of a tile lies along N.
    assert cut_into_tiles(64, 256, (256, 64), 100).tile_fill == 1
    assert cut_into_tiles(256, 64, (256, 64), 100).tile_fill == pytest.approx(0.25)


@given(SIZES, SIZES, TILES, TILES, st.integers(1, 400), st.integers(1, 64), st.integers(1, 8))
def test_fills_are_shares_and_tiles_cover_the_result(
    m: int, n: int, along_n: int, along_m: int, processors: int, batch: int, splits: int
) -> None:
    cut = cut_into_tiles(m, n, (along_n, along_m), processors, batch, splits)
    assert 0 < cut.wave_fill <= 1
    assert 0 < cut.tile_fill <= 1
    assert cut.tiles * along_n * along_m >= m * n * batch * splits
    assert (cut.waves - 1) * processors < cut.tiles <= cut.waves * processors
