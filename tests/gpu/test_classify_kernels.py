"""Kernel names to classes: the labelled names, families written out, and any text at all."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu import KernelClass, classify_kernel, classify_op, is_collective
from perfdoctor.gpu.classify_kernels import MAX_NAME_CHARS
from perfdoctor.gpu.kernel_rules import Category, Rule, RuleCategory, Verdict, compile_pattern, read_rule_families

XMMA = "sm80_xmma_gemm_{types}_tn_n_tilesize128x128x32_stage3_warpsize2x2x1_{maths}_execute_kernel__5x_cublas"
CUTLASS = "void cutlass::Kernel2<{0}>({0}::Params)"

YES = [
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "gemm"),
    ("volta_h884gemm_64x128_ldg8_nn", "gemm"),
    ("void cudnn::detail::volta_fp16_s884cudnn_fp16_128x128_ldg8_dgrad_f2f_exp_small_nhwc2nchw_tn_v1", "convolution"),
    ("turing_h1688gemm_128x128_ldg8_stages_32x1_nn", "gemm"),
    ("turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_medium_nhwc_tn_v1", "convolution"),
    ("trt_ampere_h16816gemm_128x64_ldg8_nn_v1", "gemm"),
    ("ampere_bf16_s16816gemm_bf16_256x64_ldg8_f2f_stages_64x4_nt", "gemm"),
    (CUTLASS.format("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1"), "gemm"),
    (CUTLASS.format("cutlass_80_tensorop_s1688gemm_64x256_16x4_tt_align4"), "gemm"),
    (CUTLASS.format("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"), "gemm"),
    (CUTLASS.format("cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16"), "gemm"),
    (CUTLASS.format("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x2_nt_align8"), "gemm"),
    (XMMA.format(types="f16f16_f16f32_f32", maths="tensor16x8x16"), "gemm"),
    (XMMA.format(types="i8i8_i8i32_f32", maths="tensor16x8x32"), "gemm"),
    (
        "sm80_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_g1_tensor16x8x16",
        "convolution",
    ),
    ("sm90_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x128x16_stage3_warpsize2x4x1_tensor16x8x16_kernel", "gemm"),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_kernel", "gemm"),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT", "gemm"),
    ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "gemm"),
    (
        "cutlass3x_sm90_tensorop_h64x128x16gemm_f16_f16_f16_void_f16_128x128x64_1x1x1_0_nnn_align8_warpspecialized",
        "gemm",
    ),
    ("cutlass3x_sm120_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_void_bf16_128x128x256", "gemm"),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm70(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>)", "attention"),
    ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<float>)", "attention"),
    ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, cutlass::half_t>>()", "attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>()", "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "attention"),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ8Kv128", "attention"),
    ("Cijk_Alik_Bljk_F8BS_BH_Bias_MT256x256x128_MI16x16x1_SN_ISA942", "gemm"),
    ("igemm_fwd_gtcx_nhwc_fp32_bx0_ex0_bt128x128x16", "convolution"),
    ("fmha_fwd_hd128_bf16_causal_group", "attention"),
    ("void marlin::Marlin<__nv_bfloat16, 256, 4, 16, 4>(int4 const*)", "gemm"),
    ("RNN_blockPersist_fp_LSTM_HMMA", "gemm"),
]
NO = [
    (XMMA.format(types="f32f32_f32f32_f32", maths="ffma_aligna4_alignc4"), "gemm"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x16_stage3_wa", "gemm"),
    ("sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x8_stage3_warpsize2x2x1_dfma_execute_kernel", "gemm"),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize32x32x8_g1_ffma_kernel", "convolution"),
    ("volta_sgemm_128x64_nt", "gemm"),
    ("volta_fp16_sgemm_fp16_64x64_nn", "gemm"),
    ("turing_fp16_sgemm_fp16_128x32_nn", "gemm"),
    ("maxwell_sgemm_128x64_nn", "gemm"),
    ("pascal_hgemm_64x64_nt", "gemm"),
    ("ampere_dgemm_64x64_tn", "gemm"),
    ("volta_gcgemm_64x64_nt", "gemm"),
    ("volta_scudnn_winograd_128x128_ldg1_ldg4_mobile_relu_tile148t_nt_v0", "convolution"),
    ("maxwell_scudnn_128x32_relu_small_nn_v1", "convolution"),
    (CUTLASS.format("cutlass_80_simt_sgemm_256x128_8x4_nt_align1"), "gemm"),
    ("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x32x16_1x1x1_3_tnn_align1_bias_f32_relu", "gemm"),
    ("void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::warp::MmaSimt<cutlass::half_t>>>()", "gemm"),
    ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>()", "gemm"),
    ("void internal::gemvx::kernel<int, int, float, float, float, float, false, true>()", "gemm"),
    ("void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024>()", "gemm"),
    ("void gemmk1_kernel<int, float, 256, 5, false, false>()", "gemm"),
    ("void gemmSN_NN_kernel<float, 128, 2, 4, 8, 2, 4, false>()", "gemm"),
    ("void kgemm_4bit_inference_naive<__half, 128, 16>()", "gemm"),
    ("void implicit_convolve_sgemm<__half, float, 512, 6, 8, 3, 3, 5, 1>()", "convolution"),
    ("void cudnn::detail::dgrad2d_alg1_1<float, 0, 6, 7, 5, 4, 5, false, true>()", "convolution"),
    ("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, __half>()", "convolution"),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_backward_kernel<3, 1, float>()", "convolution"),
    ("void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4>>()", "convolution"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel<float>)", "attention"),
    ("fmha_cutlassB_f16_aligned_64x64_k64_sm50(PyTorchMemEffAttention::AttentionKernel)", "attention"),
    ("Cijk_Ailk_Bjlk_SB_MT64x64x8_SN_K1_ISA90a", "gemm"),
    ("miopenSp3AsmConv_v21_1_2_gfx9_fp32_f2x3_stride1_group", "convolution"),
    ("naive_conv_packed_fwd_nchw_float_double_float", "convolution"),
]
NA = [
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>()", "reduction"),
    ("sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_tensor16x8x8_execute_split_k_kernel_cudnn", "convolution"),
    ("void cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<cutlass::MatrixShape<4, 64>>>()", "reduction"),
    ("void cublasLt::epilogue::impl::globalKernel<8, 32, float, __half>()", "elementwise"),
    ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>()", "copy"),
    ("cask_cudnn::computeWgradOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", "other"),
    ("void fft2d_r2c_32x32<float, false, 5u, false>()", "convolution"),
    ("SubTensorOpWithScalar1d", "elementwise"),
    ("MIOpenBatchNormBwdSpatialHybrid", "norm"),
    ("void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64>>()", "attention"),
    ("void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>()", "attention"),
    ("triton_poi_fused_addmm_gelu_view_24", "elementwise"),
    ("triton_red_fused_native_layer_norm_convolution_3", "norm"),
    ("triton_per_fused__softmax_2", "softmax"),
    ("triton_poi_fused_embedding_0", "indexing"),
    ("triton_for_fused_12", "optimizer"),
    ("triton_", "other"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>()", "elementwise"),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_", "elementwise"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>()", "optimizer"),
    ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>()", "indexing"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>()", "reduction"),
    ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1>()", "random"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128>()", "copy"),
    ("void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, float>()", "other"),
    ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>()", "other"),
    ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "communication"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>()", "communication"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>()", "communication"),
    ("void vllm::rms_norm_kernel<c10::Half, 8, 2>()", "norm"),
    ("", "other"),
]
UNKNOWN = [
    ("triton_tem_fused_addmm_3", "gemm"),
    ("triton_tem_fused_convolution_9", "convolution"),
    ("triton_tem_fused_flex_attention_1", "attention"),
    ("_attn_fwd", "attention"),
    ("attn_fwd", "attention"),
    ("fused_moe_kernel", "gemm"),
    ("_matmul_ogs_NNT_fp32xfp32xfp32_64x128x256x1", "gemm"),
    ("matmul_kernel", "gemm"),
]
# Kernels of engines that serve language models: DeepGEMM, DualPipe, vLLM, SGLang, FlashInfer, TensorRT-LLM, fbgemm.
GROUPED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::{}>>>"
)
SERVING = [
    ("yes", "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 128u>", "gemm"),
    ("yes", "void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>", "gemm"),
    ("yes", "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>()", "gemm"),
    ("yes", GROUPED.format("MainloopSm90ArrayTmaGmmaWarpSpecializedFP8FastAccum<4>"), "gemm"),
    ("yes", GROUPED.format("MainloopSm120TmaWarpSpecializedBlockScaled<3>"), "gemm"),
    ("yes", "void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp8_blockwise<cutlass::float_e4m3_t>>", "gemm"),
    ("yes", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "gemm"),
    ("yes", "_p_matmul_ogs_NTN_bf16xbf16xbf16_128x256x128x1_swiglu", "gemm"),
    ("yes", "_w8a8_block_fp8_matmul", "gemm"),
    ("yes", "_fbgemm_grouped_gemm_fp8_rowwise_ws", "gemm"),
    ("yes", "_gemm_afp4wfp4_kernel", "gemm"),
    ("yes", "triton_tem_fused__scaled_mm_3", "gemm"),
    ("yes", "triton_tem_fused__grouped_mm_1", "gemm"),
    ("yes", "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits>", "attention"),
    ("yes", "xqa_kernel_dt_bf16_d_128_beam_1_kvt_bf16_pagedKV_64_nqpkv_4_m_8_sm_90", "attention"),
    ("no", "void mmha::masked_multihead_attention_kernel<uint16_t, uint16_t>", "attention"),
    ("no", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>", "attention"),
    ("no", "_fwd_kernel_stage1", "attention"),
    ("no", "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2>", "gemm"),
    ("no", "void tensorrt_llm::kernels::weight_only::kernel<Details>", "gemm"),
    ("na", "_fwd_kernel_stage2", "attention"),
    ("na", "void flash_fwd_mla_combine_kernel<float, long>", "attention"),
    ("na", "void deep_gemm::transpose_and_pack_fp32_into_ue8m0<128u>", "copy"),
    ("na", "void deep_gemm::smxx_paged_mqa_logits_metadata<32u>", "other"),
    ("na", "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t, cutlass::bfloat16_t>", "other"),
    ("na", "_fwd_kernel_ep_scatter_1", "indexing"),
    ("na", "_per_token_group_quant_fp8", "other"),
    ("na", "_kernel_quantize_fp8_row", "other"),
    ("unknown", "_fwd_grouped_kernel_stage1", "attention"),
    ("unknown", "kernel_unified_attention_2d", "attention"),
    ("unknown", "fused_moe_kernel_gptq_awq", "gemm"),
    ("unknown", "triton_tem_fused_mm_2", "gemm"),
    ("unknown", "_matmul_ogs_NNT_fp32xfp32xfp32_16x128x256x1", "gemm"),
]
TABLE = [
    *(("yes", *row) for row in YES),
    *(("no", *row) for row in NO),
    *(("na", *row) for row in NA),
    *(("unknown", *row) for row in UNKNOWN),
    *SERVING,
]


def test_the_three_sides_of_the_table_are_equally_many() -> None:
    assert len(YES) == len(NO) == len(NA)


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
