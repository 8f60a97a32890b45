"""cuDNN: convolutions, their helpers, and persistent RNNs.

MIOpen spells layout conversions, transforms and hand-written convolutions alike: its kernels fit these rules, too.
"""

from __future__ import annotations

from perfdoctor.gpu.kernel_rules.rule import Rule
from perfdoctor.gpu.word_table import words

HELPERS: tuple[Rule, ...] = (
    Rule(
        "A2",
        "copy",
        "na",
        words(
            "nchwtonhwc nhwctonchw nchw2nhwc nhwc2nchw nhwctofoldednhwc foldednhwctonhwc nchw2cnhw cnhw2nchw "
            "nhwcaddpadding tensortransform batched_transpose transpose_readwrite ::transpose< "
            "converttensor_kernel"
        ),
        "changes the layout beside a convolution or gemm; a finding of its own, not missing Tensor Cores",
        none_of=words("884 1688 scudnn hcudnn 16816"),
    ),
    Rule("A2b", "copy", "na", words("im2col im2d2col im3d2col col2im vol2col"), "unfolds the input of a convolution"),
    Rule(
        "A3",
        "convolution",
        "na",
        words("winograd_nonfused generatewinogradtiles winogradforward winogradwgrad flip_filter"),
        "transform of a Winograd convolution",
    ),
    Rule(
        "A3c",
        "convolution",
        "na",
        words("fft1d_ fft2d_"),
        "transform of an FFT convolution",
        pattern=r"fft[12]d_[cr]2[cr]_",
    ),
    Rule(
        "A3d",
        "other",
        "na",
        words(
            "offsetskernel offsets_kernel kernel_helper_stage kern_precompute compute_gemm_pointers _prepare_kernel "
            "prepare_grouped_gemm get_group_gemm_starts compute_problem_sizes"
        ),
        "works out offsets for a convolution or grouped gemm",
    ),
    Rule(
        "A3e",
        "reduction",
        "na",
        words("pointwise_mult_and_sum"),
        "multiplies and adds in the frequency domain of an FFT convolution",
    ),
)
"""Layout conversions, transforms of Winograd and FFT convolutions, offsets."""

CUDA_CORES: tuple[Rule, ...] = (
    Rule(
        "N4",
        "convolution",
        "no",
        words("cudnn_"),
        "cuDNN kernel of letter s, d, h or c without an instruction shape, Winograd included",
        pattern=r"(?:maxwell|pascal|volta|turing|ampere)_(?:fp16_|bf16_|fp32_)?[sdhc]cudnn_",
    ),
    Rule(
        "N5c",
        "convolution",
        "no",
        words(
            "conv_depthwise depthwiseconv depthwise_conv spatialdepthwise depthwise_fprop depthwise_dgrad "
            "depthwise_wgrad dwconv _c1_k1 causal_conv1d"
        ),
        "depthwise convolution: one channel a group, nothing to contract",
        instruction="FFMA",
        depthwise=True,
    ),
    Rule(
        "N5",
        "convolution",
        "no",
        words(
            "convolve_sgemm convolve_hgemm convolve_dgemm convolvend_ convolve_common_engine dgrad_engine "
            "dgrad_alg dgrad2d_alg wgrad_alg wgrad2d_alg grouped_direct winograd3x3 naive_conv "
            "miopensp3asmconv sp3asmconv gcnasmconv miopenconvuni miopencv"
        ),
        "hand-written convolution of cuDNN or MIOpen on plain FMA",
    ),
)
"""Letter names without an instruction shape, depthwise and hand-written convolutions."""

PERSISTENT_RNN: tuple[Rule, ...] = (
    Rule(
        "RN",
        "gemm",
        "no",
        words("rnn_blockpersist persistrnn"),
        "persistent float32 RNN of cuDNN",
        none_of=words("hmma"),
        instruction="FFMA",
    ),
)
"""The variant on Tensor Cores says HMMA."""

FIRST_LAYER: tuple[Rule, ...] = (
    Rule(
        "L1v",
        "convolution",
        "yes",
        words("first_layer_"),
        "cuDNN's first-layer kernel of Volta (from PyProf's list)",
        pattern=r"first_layer_[wfd]",
    ),
)
"""Tensor Cores; the name does not say so."""
