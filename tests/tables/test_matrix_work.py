"""The tables of gemms, convolutions and attention: shapes, FLOPs, peaks, verdicts, alignment."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_traces import read_once

from perfdoctor.gpu.gemm_alignment import layout_of_name, layout_of_strides
from perfdoctor.rank import Rank
from perfdoctor.tables.catalog import build_table
from perfdoctor.tables.matrix_work import _layout_of_op
from perfdoctor.testing import TraceBuilder

SLOW = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)"
FAST = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
PLAIN = "ampere_sgemm_128x64_nn"
TRACES = ("h100-timesformer-bf16", "a100-sam-bf16", "h100-qwen-bf16", "h100-nsfw-vit-bf16", "b200-eager")


def rows_of(trace: TraceBuilder, name: str = "gemms") -> list[dict[str, Any]]:
    return build_table(Rank(trace.trace()), name).rows


def product(
    trace: TraceBuilder, kernel: str, m: int, n: int, k: int, at: int, dtype: str = "c10::BFloat16", dur: int = 100
) -> None:
    trace.op("aten::mm", at, 50, shapes=[[m, k], [k, n]], types=[dtype, dtype])
    trace.kernel(kernel, at + 20, dur, launch_us=at + 5)


def test_a_product_has_its_sizes_rate_and_verdict() -> None:
    trace = TraceBuilder().step(0, 1000)
    product(trace, FAST, 1024, 512, 256, 0)
    product(trace, FAST, 1024, 512, 256, 200)
    product(trace, SLOW, 1024, 512, 255, 400)
    product(trace, PLAIN, 1024, 512, 256, 600, "float", dur=90)
    fast, slow, plain = rows_of(trace)
    flops = 2 * 2 * 1024 * 512 * 256
    assert (fast["name"], fast["m"], fast["n"], fast["k"], fast["batch"]) == ("1024x512x256", 1024, 512, 256, 1)
    assert (fast["flops"], fast["flops_per_s"]) == (flops, pytest.approx(flops / 200e-6))
    assert fast["peak_share"] == pytest.approx(flops / 200e-6 / 312e12)
    assert (fast["dtype"], fast["tensor_core"], fast["known_by"]) == ("bf16", "used", "its name")
    assert (fast["layout"], fast["alignment"]) == ("tn", "aligned")
    assert (slow["tensor_core"], slow["alignment"]) == ("slow path", "K=255 (of 8)")
    assert (plain["dtype"], plain["tensor_core"], plain["layout"]) == ("fp32", "not used", "nn")
    assert plain["peak_share"] == pytest.approx(plain["flops_per_s"] / 19.5e12)


def test_a_shape_in_two_types_or_by_two_kernels_is_two_rows() -> None:
    trace = TraceBuilder().step(0, 1000)
    product(trace, FAST, 64, 64, 64, 0)
    product(trace, FAST, 64, 64, 64, 200)
    product(trace, SLOW, 64, 64, 64, 400)
    product(trace, PLAIN, 64, 64, 64, 600, "float")
    assert sorted(row["window_count"] for row in rows_of(trace)) == [1, 1, 2]


def test_helpers_and_collectives_are_no_products() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.op("aten::mm", 0, 100, shapes=[[64, 64], [64, 64]], types=["float", "float"])
    trace.kernel(PLAIN, 20, 100, launch_us=5)
    trace.kernel("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", 130, 900, launch_us=8)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", 900, 50, launch_us=50)
    assert [row["kernel"] for row in rows_of(trace)] == [PLAIN]


def test_products_without_shapes_go_by_their_kernels() -> None:
    trace = TraceBuilder().step(0, 1000).op("aten::mm", 0, 50).kernel(FAST, 20, 100, launch_us=5)
    row = rows_of(trace)[0]
    assert (row["name"], row["m"], row["flops"], row["flops_per_s"], row["alignment"]) == (FAST, *(None,) * 4)
    assert (row["tensor_core"], row["dtype"]) == ("used", "bf16")
    notes = build_table(Rank(trace.trace()), "gemms").notes
    assert any("record_shapes=True" in note for note in notes)


@pytest.mark.parametrize(("name", "words"), [("convolutions", "convolves"), ("attention", "is fused attention")])
def test_what_a_program_does_not_do_has_no_rows(name: str, words: str) -> None:
    trace = TraceBuilder().step(0, 1000).kernel(FAST, 20, 100, launch_us=5)
    table = build_table(Rank(trace.trace()), name)
    assert not table.rows
    assert words in table.notes[-1]


def test_a_convolution_has_its_passes() -> None:
    trace = TraceBuilder().step(0, 1000)
    image, weight, out = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 56, 56]
    plain = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    types = ["float", "float", "", *[""] * 6]
    trace.op("aten::convolution", 0, 50, shapes=[image, weight, [], *[[]] * 6], types=types, concrete=plain)
    trace.kernel("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", 20, 100, launch_us=5)
    backward = ["", "", "", "[128]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    types = ["float", "float", "float", *[""] * 8]
    trace.op(
        "aten::convolution_backward", 200, 90, shapes=[out, image, weight, *[[]] * 8], types=types, concrete=backward
    )
    trace.kernel("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", 220, 90, launch_us=210)
    trace.kernel("sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", 320, 80, launch_us=215)
    rows = rows_of(trace, "convolutions")
    assert [(row["name"], row["pass"], row["channels_in"], row["channels_out"]) for row in rows] == [
        ("8x64x56x56, 128x64x3x3", each, 64, 128) for each in ("forward", "dgrad", "wgrad")
    ]
    assert all(row["flops"] == 2 * 8 * 128 * 56 * 56 * 64 * 9 for row in rows)
    assert all(row["dtype"] == "tf32" for row in rows)


def test_attention_has_heads_and_lengths() -> None:
    trace = TraceBuilder().step(0, 1000)
    shape = [2, 8, 512, 64]
    trace.op(
        "aten::_scaled_dot_product_flash_attention",
        0,
        50,
        shapes=[shape, shape, shape, [], [], [], []],
        types=["c10::BFloat16"] * 3 + ["", "", "", ""],
        concrete=["", "", "", "0.", "True", "False", ""],
    )
    trace.kernel(
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4>>(int)", 20, 100, launch_us=5
    )
    row = rows_of(trace, "attention")[0]
    assert (row["name"], row["pass"], row["causal"]) == ("2x8x512x64", "forward", True)
    assert (row["batch"], row["heads"], row["queries"], row["keys"], row["head_size"]) == (2, 8, 512, 512, 64)
    assert row["flops"] == 2 * 8 * 512 * 512 * 2 * (64 + 64) // 2


@pytest.mark.parametrize(
    ("kernel", "layout"),
    [
        ("ampere_sgemm_128x64_tn", "tn"),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x5_nt_align4", "nt"),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x64x64", "tn"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64", "nn"),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT64x64x64", "nt"),
        ("nvjet_tst_128x64_h_bz_coopA_TNT", None),
    ],
)
def test_layouts_by_name(kernel: str, layout: str | None) -> None:
    assert layout_of_name(kernel) == layout


def test_layouts_by_strides() -> None:
    assert layout_of_strides((256, 1), (1, 256)) == "tn"  # x @ weight.T
    assert layout_of_strides((256, 1), (64, 1)) == "nn"
    assert layout_of_strides((1, 256), (64, 1)) == "nt"  # x.T @ dy


@pytest.mark.corpus
@pytest.mark.parametrize("file", TRACES)
def test_gemm_flops_are_those_of_the_raw_shapes(corpus: Path, file: str) -> None:
    """2 M N K of each op that launched a gemm, straight from the JSON, against the table, within 0.1 %."""
    path = corpus / f"{file}.json.gz"
    counted: dict[str, int] = defaultdict(int)
    for row in build_table(replace(Rank(read_once(path)), step_slice=slice(0, 0)), "gemms").rows:
        if row["flops"] is not None:
            counted[row["name"]] += row["flops"]
    expected = _count_by_hand(path)
    assert counted
    assert counted == {name: pytest.approx(expected[name], rel=1e-3) for name in counted}


def _count_by_hand(path: Path) -> dict[str, int]:
    """FLOPs by shape of the products that launched kernels, by the correlation of the call in them."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    positions = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
    ran = {e["args"].get("correlation") for e in events if e.get("cat") == "kernel"}
    calls = [
        e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and e["args"].get("correlation") in ran
    ]
    total: dict[str, int] = defaultdict(int)
    for op in (e for e in events if e["name"] in positions and e.get("args", {}).get("Input Dims")):
        if not any(op["ts"] <= c["ts"] < op["ts"] + op["dur"] for c in calls if c["tid"] == op["tid"]):
            continue
        left, right = op["args"]["Input Dims"][positions[op["name"]] :][:2]
        batch, (m, k), n = (left[0] if len(left) == 3 else 1), left[-2:], right[-1]
        total[f"{batch} of {m}x{n}x{k}" if batch > 1 else f"{m}x{n}x{k}"] += 2 * batch * m * n * k
    return total


@pytest.mark.corpus
@pytest.mark.parametrize("file", TRACES)
def test_layouts_of_names_are_those_of_the_strides(corpus: Path, file: str) -> None:
    """Where both say it; a dimension of one, or a matrix that is both, lies either way."""
    rank = Rank(read_once(corpus / f"{file}.json.gz"))
    trace = rank.trace
    same = other = 0
    gpu = trace.gpu
    for item in (rank.kernels.of_category("gemm").in_steps().mask.nonzero()[0]).tolist():
        op = gpu.op[item]
        if op < 0:
            continue
        by_name = layout_of_name(trace.strings[gpu.name[item]])
        by_strides = _layout_of_op(trace.strings[trace.ops.name[op]], trace.text(trace.ops.strides[op]))
        if by_name is not None and by_strides is not None:
            same += by_name == by_strides
            other += by_name != by_strides
    assert other <= 0.1 * (same + other)
