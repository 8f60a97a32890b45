"""Names of real kernels, and their times: operations or bytes over the rate of the device, plus a few us."""

from __future__ import annotations

from dataclasses import dataclass

FP32, BF16 = "float", "c10::BFloat16"
BYTES = {FP32: 4, BF16: 2}
_MIN_KERNEL_US = 1.9  # the shortest kernel that an A100 or H100 shows

_ARRAY = "std::array<char*, {n}ul>"
_XMMA = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{layout}_n_tilesize128x128x64_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas"
)
_FLASH = (
    "void pytorch_flash::{kernel}<pytorch_flash::Flash_{way}_kernel_traits<64, 128, 128, {warps}false, false, "
    "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, {last}, cutlass::bfloat16_t> >, "
    "false, true, false, false, true, false>(pytorch_flash::Flash_{way}_params)"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: its properties in the trace, its rates, and the names of its kernels for matrix products.

    Attributes:
        name: Its name.
        capability: Compute capability.
        sm_count: Streaming multiprocessors.
        memory_bytes: Size of its memory.
        flops_per_s: Rate of matrix products by data type.
        bytes_per_s: Rate of memory traffic.
        gemm: Name of a matrix product's kernel by data type.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    flops_per_s: dict[str, float]
    bytes_per_s: float
    gemm: dict[str, str]

    def matrix_us(self, flops: float, dtype: str) -> float:
        """Time of a matrix product of so many operations."""
        return _MIN_KERNEL_US + flops / self.flops_per_s[dtype] * 1e6

    def stream_us(self, size_bytes: float) -> float:
        """Time of a kernel that reads and writes so many bytes of the device's memory."""
        return _MIN_KERNEL_US + size_bytes / self.bytes_per_s * 1e6


# Rates are about 70 % of the peak for products in bf16, 85 % for float32 and for memory traffic: what training reaches.
V100 = Gpu(
    "Tesla V100-SXM2-16GB", (7, 0), 80, 16_935_419_904, {FP32: 13.2e12}, 0.75e12, {FP32: "volta_sgemm_128x64_{layout}"}
)
A100 = Gpu(
    "NVIDIA A100-SXM4-80GB",
    (8, 0),
    108,
    85_051_637_760,
    {FP32: 16.8e12, BF16: 218e12},
    1.65e12,
    {FP32: "ampere_sgemm_128x64_{layout}", BF16: "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_{layout}"},
)
H100 = Gpu(
    "NVIDIA H100 80GB HBM3",
    (9, 0),
    132,
    85_045_477_376,
    {FP32: 50e12, BF16: 560e12},
    2.75e12,
    {FP32: "sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n", BF16: _XMMA},
)

FLASH_FORWARD = _FLASH.format(kernel="flash_fwd_kernel", way="fwd", warps="4, ", last=4)
FLASH_BACKWARD = tuple(
    _FLASH.format(kernel=kernel, way="bwd", warps="8, 4, 4, 4, ", last=8)
    for kernel in (
        "flash_bwd_dot_do_o_kernel",
        "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
        "flash_bwd_convert_dq_kernel",
    )
)
FMHA_FORWARD = (
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, "
    "64, 64, 64, true, true>::Params)"
)
FMHA_BACKWARD = (
    "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<float, "
    "cutlass::arch::Sm80, true, false, true, 64, 64, 64, false>::Params)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<{t}, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float const*, "
    "float const*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
    "namespace)::FusedAdamMathFunctor<{t}, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, "
    "double, double, bool, float const*, float const*)"
)
SGD = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<3>, at::native::(anonymous namespace)::FusedSgdMathFunctor<{t}, 3>, double, float const*, "
    "double, double, double, bool, bool, bool, float const*, float const*>(at::native::(anonymous namespace)::"
    "TensorListMetadata<3>)"
)
FOREACH_NORM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<{t}, (at::native::NormType)1, {t}, 1, 1, "
    "0>, float*, int>(at::native::(anonymous namespace)::TensorListMetadata<1>)"
)
EMBEDDING = "void at::native::(anonymous namespace)::indexSelectLargeIndex<{t}, long, unsigned int, 2, 2, -2, true>()"
EMBEDDING_BACKWARD = "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<{t}, float, long>()"
LOG_SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMax{way}<8, {t}, float, {t}, at::native::(anonymous namespace)::"
    "LogSoftMax{way}Epilogue>({t}*, {t} const*, int)"
)
NLL = "void at::native::(anonymous namespace)::nll_loss_{way}_reduce_cuda_kernel_2d<{t}, float, long>()"
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<{t}, at::native::func_wrapper_t<{t}, at::native::"
    "sum_functor<{t}, float, {t}>::operator()(at::TensorIterator&)::{{lambda(float, float)#1}}>, unsigned int, {t}, 4, "
    "4> >(at::native::ReduceOp<{t}>)"
)
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{t}, float>(int, float, {t} const*, "
    "{t} const*, {t} const*, float*, float*, {t}*)"
)
LAYER_NORM_INPUT = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{t}, float>({t} const*, "
    "{t} const*, float const*, float const*, {t} const*, {t}*, int)"
)
LAYER_NORM_WEIGHT = (
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<{t}, float, 32u, 1u, 32u, true, true, "
    "false>(long, long, {t} const*, {t} const*, float const*, float const*, {t}*, {t}*)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_{t}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

CONVOLUTION = "volta_scudnn_128x64_relu_interior_nn_v1"
CONVOLUTION_INPUT = "volta_scudnn_128x64_stridedB_interior_nn_v1"
CONVOLUTION_WEIGHT = "volta_scudnn_128x128_stridedB_splitK_medium_nn_v1"
BATCH_NORM = (
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct, float const*, "
    "cudnnTensorStruct, float*, float const*, float const*, float, float, float*, float*, float*, float*, float, float)"
)
BATCH_NORM_BACKWARD = "void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_bw_1C11_args<float>)"
MAX_POOL = "void at::native::(anonymous namespace)::max_pool_{way}_nchw<float, float>(int, float const*, long, long)"


def elementwise(functor: str, arrays: int) -> str:
    """Name of a pointwise kernel over so many tensors."""
    array = _ARRAY.format(n=arrays)
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, {array} >(int, {functor}, {array})"


def add(dtype: str) -> str:
    """Name of an addition kernel."""
    return elementwise(f"at::native::CUDAFunctor_add<{dtype}>", 3)


def activation(name: str, dtype: str, backward: bool = False) -> str:
    """Name of a kernel for GELU or ReLU, forward or backward."""
    way = "Backward" if backward else ""
    lambdas = "::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda(" + dtype + ")#1}"
    functor = f"at::native::{name}{way}CUDAKernelImpl(at::TensorIteratorBase&, at::native::{name}Type){lambdas}"
    return elementwise(functor, 3 if backward else 2)
