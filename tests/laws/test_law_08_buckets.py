"""Law 8: a bucket says what binds. Latency is for short kernels and for those that leave most multiprocessors empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once
from recordings import list_recordings, name_recording

from perfdoctor.analysis.kernels import decoding, roof_classes
from perfdoctor.gpu import classify_kernel
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.vocabulary import EnginePass, parse_engine_pass

COMPUTE, BANDWIDTH, LATENCY = range(3)
FLOOR_NS = 2_000  # the least that a kernel takes on data-centre GPUs, by which shorter floors are rounded up
H100 = {"device": "NVIDIA H100 80GB HBM3", "capability": (9, 0), "sm_count": 132}
GEMM = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nn_align8"
SKINNY = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def ranks_of(path: Path) -> tuple[Trace, ...]:
    """The traces of a recording, of which one file is enough where each rank has one."""
    if not path.is_dir():
        return (read_once(path),)
    files = sorted(each for each in path.rglob("*") if each.name.endswith((".json", ".json.gz")))
    return tuple(read_once(each) for each in files[:1])


def long_latency(rank: Rank) -> BoolArray:
    """The kernels of latency that are longer than ten floors and fill the multiprocessors, as far as is recorded.

    The kernels of a convolution count as one, which the account does as well.
    """
    gpu, sm_count = rank.trace.gpu, rank.hardware.sm_count
    fills = np.ones(len(gpu), bool)
    if gpu.blocks is not None and sm_count:
        fills = (gpu.blocks <= 0) | (2 * gpu.blocks >= sm_count)
    floor_ns = max(rank.bounds.shortest_kernel_ns, FLOOR_NS)
    return (rank.roof_classes == LATENCY) & fills & (gpu.dur_ns > 10 * floor_ns)


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_no_long_kernel_that_fills_the_gpu_is_latency(path: Path) -> None:
    for trace in ranks_of(path):
        rank = Rank(trace)
        assert not long_latency(rank).any()
        assert sum(rank.account.detail.values()) == rank.account.window_ns
        for roof in rank.account.roofs.values():
            assert roof is None or (0 <= roof.share <= 1 and 0 < roof.known_share <= 1)


# What recordings hold, by kernels whose raw events were read: file, a part of the name, and what binds them.
KNOWN_KERNELS = [
    ("recordings/gb10-vllm-flashinfer.json.gz", "GemmUniversal", BANDWIDTH),  # 204 us, weights of 4 tokens
    ("recordings/gb10-vllm-flashinfer.json.gz", "gemm_bf16_16x16", BANDWIDTH),  # lm_head, 9.9 ms
    ("recordings/gb10-vllm-flashinfer.json.gz", "tensor_kernel_scan", LATENCY),  # 264 us on 4 of 48 multiprocessors
    ("traces/b300-decode-graph.json.gz", "bmm_Bfloat16", BANDWIDTH),  # experts for 16 tokens, tiles of 8 columns
    ("traces/mi300x-decode-graph.json.gz", "kernel_moe_gemm", BANDWIDTH),  # 59 us for 16 tokens
    ("recordings/mi300x-sglang-prefilldecode.json.gz", "Cijk_", COMPUTE),  # 15,360 tokens
    ("recordings/t4-vgg16.json.gz", "scudnn", COMPUTE),
    ("recordings/mi-replay.json.gz", "miopenSp3AsmConv", COMPUTE),  # ms each, their work unknown
    ("traces/h100-timesformer-bf16.json.gz", "cunn_SoftMaxForward", BANDWIDTH),  # 5.7 ms at a third of its roof
    ("traces/h100-timesformer-bf16.json.gz", "sm90_xmma_gemm", COMPUTE),
]


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "name", "bucket"), KNOWN_KERNELS)
def test_what_binds_kernels_that_were_read(file: str, name: str, bucket: int) -> None:
    shared = Path(__file__).resolve().parents[3] / "shared"
    if not (shared / file).exists():
        pytest.skip("../shared is not mounted")
    rank = Rank(read_once(shared / file))
    gpu = rank.trace.gpu
    rows = rank.trace.match_rows(gpu, name) & (rank.roof_classes >= 0) & (gpu.dur_ns > 20_000)
    assert rows.any()
    spent_ns = np.bincount(rank.roof_classes[rows], weights=gpu.dur_ns[rows], minlength=3)
    assert spent_ns[bucket] > 0.8 * spent_ns.sum()


@given(
    dur_us=st.integers(1, 20_000),
    blocks=st.one_of(st.none(), st.integers(1, 1000)),
    rows=st.integers(1, 13),
    kernel=st.sampled_from([GEMM, ADD]),
    has_shapes=st.booleans(),
)
def test_generated_kernels(dur_us: int, blocks: int | None, rows: int, kernel: str, has_shapes: bool) -> None:
    size = 1 << rows
    shapes = {"shapes": [[size, 1024], [1024, 1024]], "types": ["c10::BFloat16"] * 2} if has_shapes else {}
    builder = TraceBuilder(**H100).op("aten::mm" if kernel == GEMM else "aten::add", 0, 5, **shapes)  # type: ignore[arg-type]
    grid = {} if blocks is None else {"grid": [blocks, 1, 1]}
    rank = Rank(builder.kernel(kernel, 10, dur_us, launch_us=1, **grid).kernel(ALL_REDUCE, 30_000, 50).trace())  # type: ignore[arg-type]

    found, share = int(rank.roof_classes[0]), float(rank.roof_shares.share[0])
    few = blocks is not None and 2 * blocks < 132
    if found == LATENCY:
        assert few or dur_us <= 10
        assert not share >= 0.4
    elif few or dur_us <= 5:
        assert share >= 0.4
    assert rank.roof_classes[1] == -1
    assert sum(rank.account.detail.values()) == rank.account.window_ns


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("execute_context_0(0)_generation_4(4)", EnginePass("decode", 4, 4)),
        ("execute_context_2(1024)_generation_4(4)", EnginePass("mixed", 6, 1028)),
        ("execute_context_1(888_788544)_generation_0(0)", EnginePass("prefill", 1, 888)),
        ("execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193sqsq16)", EnginePass("decode", 16, 16)),
        ("execute_15360_context_15(sq15360sk15360)_generation_0(sq0sk0)", EnginePass("prefill", 15, 15360)),
        ("execute_new_0_cached_4", EnginePass("decode", 4)),
        ("execute_new_1_cached_4", EnginePass("mixed", 5)),
        ("step[DECODE bs=16]", EnginePass("decode", 16, 16)),
        ("step[EXTEND bs=15 toks=15360]", EnginePass("prefill", 15, 15360)),
        ("step[EXTEND bs=15]", EnginePass("prefill", 15)),
        ("step[MIXED bs=3 toks=600]", EnginePass("mixed", 3, 600)),
        ("step[TARGET_VERIFY bs=4 toks=20]", EnginePass("decode", 4, 20)),
        ("step[IDLE bs=0]", EnginePass("other", 0)),
        ("[Executor] _forward_step 6: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", EnginePass("decode", 32, 32)),
        ("[Executor] _forward_step 6: 1 ctx reqs, 300 ctx tokens, 3 gen reqs", EnginePass("mixed", 4, 303)),
        ("[Executor] _forward_step: 2 ctx reqs, 3 gen reqs", EnginePass("mixed", 5)),
        ("[Executor] _forward_step: 0 ctx reqs, 3 gen reqs", EnginePass("decode", 3, 3)),
        ("ProfilerStep#3", None),
        ("execute_model", None),
    ],
)
def test_passes_by_their_names(name: str, found: EnginePass | None) -> None:
    assert parse_engine_pass(name) == found


@pytest.mark.parametrize(
    ("range_name", "bucket"),
    [
        ("execute_context_0(0)_generation_4(4)", BANDWIDTH),
        ("step[DECODE bs=64]", BANDWIDTH),
        ("execute_context_3(2048)_generation_4(4)", COMPUTE),
        ("step[DECODE bs=512]", COMPUTE),
        ("step[EXTEND bs=4]", COMPUTE),
        ("forward", COMPUTE),
    ],
)
def test_products_of_few_tokens_stream_weights(range_name: str, bucket: int) -> None:
    trace = TraceBuilder(**H100).range(range_name, 0, 100).kernel(GEMM, 200, 200, launch_us=10, grid=[256, 1, 1])  # type: ignore[arg-type]

    assert Rank(trace.trace()).roof_classes.tolist() == [bucket]


DECODE, PREFILL = "flashinfer::BatchDecodeWithPagedKVCacheKernel", "flashinfer::BatchPrefillWithPagedKVCacheKernel"


@pytest.mark.parametrize(
    ("attention", "bucket"), [([DECODE], BANDWIDTH), ([PREFILL, DECODE], COMPUTE), ([PREFILL], COMPUTE), ([], COMPUTE)]
)
def test_products_between_attention_that_decodes(attention: list[str], bucket: int) -> None:
    trace = TraceBuilder(**H100)  # type: ignore[arg-type]
    for number, name in enumerate([GEMM, *attention, GEMM, GEMM, *attention, GEMM]):
        trace.kernel(name, 300 * number, 200, grid=[256, 1, 1])
    rank = Rank(trace.trace())
    gemms = rank.trace.match_rows(rank.trace.gpu, "gemm")
    between = np.flatnonzero(gemms)[1:3]

    assert rank.roof_classes[between].tolist() == [bucket] * 2


@pytest.mark.parametrize(
    ("name", "tile", "streams_weights"),
    [
        (SKINNY, (16, 16), True),
        (GEMM, (128, 128), False),
        ("bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_et128x8_m128x8x16_c1x1x1_16dp256b", (128, 8), True),
        ("nvjet_sm103_tst_384x16_64x4_4x1_v_bz_TNT", (384, 16), True),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT", (128, 256), False),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x512_MI16x16x1_SN_LDSB1", (16, 16), True),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x112x64_MI16x16x1_SN_LDSB1", (256, 112), False),
        ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn", (128, 128), False),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage4_tensor16x8x16", (64, 64), False),
        ("ampere_sgemm_128x64_nn", (128, 64), False),
        ("void gemmk1_kernel<int, float, 256, 5, false>", None, True),
        ("triton_tem_fused_addmm_gelu_0", None, False),
    ],
)  # fmt: skip
def test_tiles_by_name(name: str, tile: tuple[int, int] | None, streams_weights: bool) -> None:
    kernel = classify_kernel(name)

    assert kernel.tile == tile
    assert kernel.streams_weights == streams_weights


def test_without_the_law_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of before, by which all kernels under 40 % of their roof are latency."""
    builder = TraceBuilder(**H100).op("aten::mm", 0, 5, shapes=[[4096, 4096]] * 2, types=["c10::BFloat16"] * 2)  # type: ignore[arg-type]
    trace = builder.kernel(GEMM, 10, 1760, launch_us=1, grid=[1024, 1, 1]).trace()
    assert not long_latency(Rank(trace)).any()

    monkeypatch.setattr(roof_classes, "SHORT_KERNEL_NS", 10**12)

    assert long_latency(Rank(trace)).any()


def test_without_decoding_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_DECODED_TOKENS", 0)

    with pytest.raises(AssertionError):
        test_products_of_few_tokens_stream_weights("step[DECODE bs=64]", BANDWIDTH)
