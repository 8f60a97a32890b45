"""Kernel names to classes: the labelled names, families written out, and any text at all."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu import KernelClass, classify_kernel, classify_op, is_collective
from perfdoctor.gpu.classify_kernels import MAX_NAME_CHARS
from perfdoctor.gpu.kernel_rules import Category, Rule, RuleCategory, Verdict, compile_pattern, read_rule_families

XMMA = "sm80_xmma_gemm_{types}_tn_n_tilesize128x128x32_stage3_warpsize2x2x1_{maths}_execute_kernel__5x_cublas"

# Names of many libraries, those of engines that serve language models at the end.
with Path(__file__).with_name("kernel_names.csv").open(newline="", encoding="utf-8") as _file:
    TABLE = [(row["tensor_core"], row["kernel"], row["category"]) for row in csv.DictReader(_file)]


def test_each_side_of_the_table_has_its_names() -> None:
    counts = Counter(verdict for verdict, *_ in TABLE)
    assert min(counts[verdict] for verdict in ("yes", "no", "na")) >= len(TABLE) // 4
    assert counts.keys() == {*get_args(Verdict)}


@pytest.mark.parametrize(("verdict", "name", "category"), TABLE, ids=[f"{row[0]}-{row[1][:60]}" for row in TABLE])
def test_kernel_has_its_verdict_and_category(verdict: str, name: str, category: str) -> None:
    kernel = classify_kernel(name)

    assert (kernel.tensor_core, kernel.category) == (verdict, category), kernel


@pytest.mark.parametrize(
    ("name", "instruction", "operand", "accumulate", "arch", "alignment"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", "HMMA.1688", "bf16", "fp32", "sm75", 1),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4", "HMMA.1688", "tf32", "fp32", "sm80", 4),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "DMMA.884", "fp64", "fp64", "sm80", 1),
        ("cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16", "IMMA.16832", "int8", "int32", "sm80", 16),
        ("volta_h884gemm_64x128_ldg8_nn", "HMMA.884", "fp16", "fp16", "sm70", 8),
        ("volta_fp16_sgemm_fp16_128x64_nn", "FFMA", "fp16", "fp32", "sm70", None),
        ("ampere_dgemm_64x64_tn", "DFMA", "fp64", "fp64", "sm80", None),
        (XMMA.format(types="f16f16_f16f32_f32", maths="tensor16x8x16"), "HMMA.16816", "fp16", "fp32", "sm80", None),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_warpgroupsize1x1x1", "wgmma", "tf32", "fp32", "sm90", None),
        (XMMA.format(types="f32f32_f32f32_f32", maths="ffma_aligna4_alignc4"), "FFMA", "fp32", "fp32", "sm80", 4),
        ("nvjet_hsh_128x128_64x6_2x1_v_bz_TNN", None, "fp16", "fp32", None, None),
        ("nvjet_qqtst_128x256_128x6_1x2_h_bz_coopA_TNT", "wgmma", "fp8", "fp32", None, None),
        ("nvjet_sm103_tst_64x16_64x16_2x1_2cta_v_bz_TNT", "tcgen05", "bf16", "fp32", "sm103", None),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "3xTF32", "fp32", None, "sm80", None),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x64_MI16x16x16x1_SN_ISA90a_IU1", "MFMA", "fp16", None, "gfx90a", None),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "MFMA", "bf16", None, "gfx942", None),
    ],
)
def test_fields_are_parsed_from_the_name(
    name: str, instruction: str | None, operand: str, accumulate: str | None, arch: str | None, alignment: int | None
) -> None:
    kernel = classify_kernel(name)

    fields = (kernel.instruction, kernel.operand, kernel.accumulate, kernel.arch, kernel.alignment)
    assert fields == (instruction, operand, accumulate, arch, alignment)


@pytest.mark.parametrize(
    "name",
    ["void gemv2N_kernel<int, int, float>()", "void gemmSN_TN_kernel<float, 128, 16>()", "void gemmk1_kernel<float>()"],
)
def test_tiny_shapes_are_marked_as_no_fault(name: str) -> None:
    assert classify_kernel(name).gemv_like


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_nn", "volta_scudnn_128x64_relu_small_nn_v1"])
def test_plain_float32_kernels_are_not_excused(name: str) -> None:
    kernel = classify_kernel(name)

    assert kernel.tensor_core == "no"
    assert not kernel.gemv_like
    assert not kernel.depthwise


def test_depthwise_convolutions_are_marked() -> None:
    assert classify_kernel(
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float>()"
    ).depthwise
    assert classify_kernel("void cudnn::cnn::conv2d_c1_k1_nhwc_kernel<__half>()").depthwise


@given(st.text(max_size=300) | st.from_regex(r"(void |_ZN)?(sm80_xmma|cutlass_80|Cijk|triton|nvjet)_[a-z0-9_<>]{0,80}"))
def test_any_text_gets_a_legal_class(name: str) -> None:
    kernel = classify_kernel(name)

    assert kernel.category in get_args(Category)
    assert kernel.tensor_core in get_args(Verdict)
    assert kernel.tensor_core == "na" or kernel.rule != "-"
    assert is_collective(name) == (kernel.category == "communication")
    assert classify_op(name) in get_args(Category)


@pytest.mark.parametrize(
    "unit", ["a", "f32f32_", "xmma_", "Cijk_", "sm90_sm90_", "(", "_", "gemm_", "cij_a_b_", "fmha_cutlassF_f32_"]
)
def test_a_name_of_three_megabytes_is_classified(unit: str) -> None:
    kernel = classify_kernel(unit * (3_000_000 // len(unit)))

    assert kernel.tensor_core in get_args(Verdict)


def test_characters_behind_the_limit_do_not_count() -> None:
    padding = "x" * MAX_NAME_CHARS

    assert classify_kernel(padding + "ampere_sgemm_128x64_nn") == KernelClass("other", "na")
    assert classify_kernel("ampere_sgemm_128x64_nn" + padding).tensor_core == "no"


def _rules() -> list[Rule]:
    return [rule for family in read_rule_families() for rule in family.rules]


def test_every_rule_has_its_own_id_and_a_reason() -> None:
    ids = [rule.id for rule in _rules()]

    assert len(ids) == len(set(ids))
    assert all(rule.reason for rule in _rules())


def test_rules_look_for_lower_case_only_and_their_patterns_compile() -> None:
    categories = [word for words in get_args(RuleCategory) for word in (get_args(words) or (words,))]
    for rule in _rules():
        assert rule.category in categories, rule.id
        assert rule.tensor_core in get_args(Verdict), rule.id
        assert rule.any_of
        assert all(needle == needle.lower() for needle in (*rule.any_of, *rule.none_of)), rule.id
        if rule.pattern is not None:
            compile_pattern(rule.pattern)


@pytest.mark.parametrize(
    ("op", "category"),
    [
        ("aten::addmm", "gemm"),
        ("aten::mkldnn_linear", "gemm"),
        ("autograd::engine::evaluate_function: MmBackward0", "gemm"),
        ("aten::convolution_backward", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm", "norm"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::add_", "elementwise"),
        ("aten::sum", "reduction"),
        ("aten::copy_", "copy"),
        ("aten::index_add_", "indexing"),
        ("aten::_foreach_addcdiv_", "optimizer"),
        ("c10d::allreduce_", "communication"),
        ("gloo:all_reduce", "communication"),
        ("aten::normal_", "random"),
        ("aten::upsample_bilinear2d", "other"),
        ("aten::view", "other"),
        ("aten::is_nonzero", "other"),
        ("ProfilerStep#3", "other"),
        ("", "other"),
    ],
)
def test_op_has_its_category(op: str, category: str) -> None:
    assert classify_op(op) == category


@pytest.mark.corpus
def test_labelled_names_are_classified_right(shared: Path) -> None:
    with (shared / "kernels" / "labelled_kernels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    verdicts = [(classify_kernel(row["kernel"]).tensor_core, row["tensor_core"].split("|")) for row in rows]
    categories = [(classify_kernel(row["kernel"]).category, row["category"].split("|")) for row in rows]

    assert rows
    assert sum(answer in labels for answer, labels in verdicts) >= 0.985 * len(rows)
    assert sum(answer in labels for answer, labels in categories) >= 0.93 * len(rows)
    assert ("yes", ["no"]) not in verdicts
    assert ("no", ["yes"]) not in verdicts
