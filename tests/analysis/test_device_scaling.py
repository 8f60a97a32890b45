"""What time scales with on another device, and how many times as long each GPU item takes there."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.kernels.device_scaling import device_ratios_of
from perfdoctor.gpu import Device, find_device
from perfdoctor.gpu.roofline.efficiencies import Cell, Efficiency
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE
from perfdoctor.gpu.roofline.scale_kernels import ScalingKernels, scale_durations_to
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.arrays import FloatArray

BF16 = "c10::BFloat16"
GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EVEN = {Cell(family): Efficiency(0.5, 0.5, 0.5) for family in ("gemm", "convolution", "attention", "memory")}


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


def faster(of: Device, *, peaks: float = 1.0, bandwidth: float = 1.0) -> Device:
    assert of.memory_bandwidth_bytes_per_s is not None
    return replace(
        of,
        peaks_flops=MappingProxyType({dtype: peaks * peak for dtype, peak in of.peaks_flops.items()}),
        memory_bandwidth_bytes_per_s=bandwidth * of.memory_bandwidth_bytes_per_s,
    )


def kernels(
    family: str = "gemm",
    operand: str = "bf16",
    dur_us: float = 500,
    flops: float = np.nan,
    moved: float = np.nan,
    roof: int = COMPUTE,
    *,
    on_matrix_units: bool = True,
) -> ScalingKernels:
    one = np.ones(1)
    of = np.full(1, roof, np.int8)
    return ScalingKernels(family, operand, on_matrix_units, dur_us * 1e3 * one, flops * one, moved * one, of)


H100, A100, V100 = device("H100"), device("A100-SXM4-80GB"), device("V100-SXM2-32GB")
A100_40GB = device("A100-SXM4-40GB")


def test_a_large_product_scales_with_the_peaks_where_efficiencies_are_equal() -> None:
    [ratios] = scale_durations_to(A100, H100, kernels(flops=1e12, moved=1e6, dur_us=2e6 / 989.4), EVEN)
    assert ratios == pytest.approx([989.4 / 312] * 3, rel=1e-3)


def test_what_moves_data_scales_with_the_bandwidth() -> None:
    [ratios] = scale_durations_to(A100, H100, kernels("memory", "", 2e6 / 3350, moved=1e9, roof=BANDWIDTH), EVEN)
    assert ratios == pytest.approx([3350 / 2039] * 3, rel=1e-3)


def test_kernels_of_unknown_work_take_as_many_flops_a_byte_as_their_like() -> None:
    [ratios] = scale_durations_to(A100, H100, kernels(), EVEN)
    assert ratios == pytest.approx([3350 / 2039, 250 * 3.35 / 312, 989.4 / 312], rel=1e-3)
    [ratios] = scale_durations_to(A100, H100, kernels(roof=BANDWIDTH), EVEN)
    assert ratios == pytest.approx([3350 / 2039] * 3, rel=1e-3)


@pytest.mark.parametrize(("there", "kept"), [(A100_40GB, 2039 / 1555), (H100, 2039 / 3350 / 2**0.5)])
def test_a_slow_kernel_stays_slow_within_a_generation_and_half_as_much_on_another(there: Device, kept: float) -> None:
    slow = kernels("memory", "", 2 * 2e6 / 2039, moved=1e9, roof=BANDWIDTH)
    assert scale_durations_to(there, A100, slow, EVEN)[0, 1] == pytest.approx(kept, rel=1e-3)


def test_what_takes_the_time_of_any_launch_takes_it_everywhere() -> None:
    [ratios] = scale_durations_to(A100, H100, kernels(dur_us=3, flops=1e6, moved=1e4), EVEN)
    assert ratios.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("family", "operand", "on_matrix_units", "peak"),
    [
        ("convolution", "fp32", False, 156),  # TF32 by PyTorch's default
        ("gemm", "fp32", False, 19.5),
        ("gemm", "fp16", True, 312),
    ],
)
def test_pytorch_chooses_the_unit_on_a_newer_device(
    family: str, operand: str, on_matrix_units: bool, peak: float
) -> None:
    now = 125 if on_matrix_units else 15.7
    work = kernels(family, operand, 2e6 / now, flops=1e12, moved=1e6, on_matrix_units=on_matrix_units)
    [ratios] = scale_durations_to(A100, V100, work, EVEN)
    assert ratios[1] == pytest.approx(now / peak, rel=1e-3)


@pytest.mark.parametrize("operand", ["fp32", "bf16"])
def test_types_that_an_older_device_lacks_run_on_its_cuda_cores(operand: str) -> None:
    now = 156 if operand == "fp32" else 312
    [ratios] = scale_durations_to(V100, A100, kernels(operand=operand, dur_us=2e6 / now, flops=1e12, moved=1e6), EVEN)
    assert ratios[1] == pytest.approx(now / 15.7, rel=1e-3)


def test_without_a_bandwidth_nothing_is_said() -> None:
    unknown = replace(A100, memory_bandwidth_bytes_per_s=None)
    assert np.isnan(scale_durations_to(unknown, H100, kernels("memory", "", moved=1e9))).all()


work = st.builds(
    kernels,
    st.sampled_from(["gemm", "convolution", "attention", "memory"]),
    st.sampled_from(["bf16", "fp16", "fp32", ""]),
    st.floats(1, 1e6),
    st.floats(1e3, 1e15) | st.just(np.nan),
    st.floats(1e3, 1e12) | st.sampled_from([0.0, np.nan]),
    st.sampled_from([COMPUTE, BANDWIDTH]),
    on_matrix_units=st.booleans(),
)


@given(work)
def test_on_the_same_device_each_kernel_is_expected_to_take_its_time(some: ScalingKernels) -> None:
    [[best, expected, worst]] = scale_durations_to(A100, A100, some)
    assert best <= expected <= worst
    assert expected == pytest.approx(1)


@given(work, st.floats(1, 8), st.floats(1, 8))
def test_no_kernel_takes_longer_on_a_faster_device(some: ScalingKernels, peaks: float, bandwidth: float) -> None:
    slower = scale_durations_to(A100, A100, some)
    assert (scale_durations_to(faster(A100, peaks=peaks, bandwidth=bandwidth), A100, some) <= slower + 1e-9).all()


def program() -> TraceBuilder:
    """300 us of a product, 200 of an addition, 100 of a collective, 50 of a copy, 3 of a short kernel, in 1 ms."""
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132).step(0, 1000)
    builder.op("aten::mm", 0, 10, shapes=[[4096, 4096], [4096, 4096]], types=[BF16] * 2)
    builder.kernel(GEMM, 20, 300, launch_us=1)
    builder.kernel(ADD, 350, 200, launch_us=30)
    builder.kernel(ALL_REDUCE, 600, 100, launch_us=40)
    builder.memcpy("HtoD", 750, 50, launch_us=50)
    return builder.kernel(ADD, 850, 3, launch_us=60)


def test_the_window_is_split_by_what_it_scales_with_to_the_nanosecond() -> None:
    rank = Rank(program().trace())
    split = rank.time_by_scaling

    assert sum(split.values()) == rank.window_ns
    assert {name: split[name] for name in ("tensor_cores", "cuda_cores", "bandwidth", "link")} == {
        "tensor_cores": 300_000,
        "cuda_cores": 0,
        "bandwidth": 200_000,
        "link": 200_000,  # with 50 us in which nothing runs after the collective
    }
    assert split["nothing"] >= 3_000


def ratios_of(rank: Rank, there: Device) -> FloatArray:
    """How many times as long each GPU item takes on another device: at best, as expected, at worst."""
    facts = (rank.kernel_classes, rank.kernel_costs, rank.verdicts, rank.roof_shares.roof, rank.scaling)
    assert rank.device is not None
    return device_ratios_of(*facts, rank.device, there)


def test_short_kernels_are_expected_to_stay_and_collectives_to_follow_the_link() -> None:
    ratios = ratios_of(Rank(program().trace()), A100)
    assert ratios[4, 1] == 1
    assert ratios[2].tolist() == [1, 900 / 600, 900 / 600]
    assert ratios[3].tolist() == [1, 1, 128 / 64]


def convolution(device_name: str, capability: tuple[int, int], main: str, copy: bool) -> Rank:
    """A step with a convolution of unknown sizes, of one kernel, and perhaps one that lays out its data anew."""
    builder = TraceBuilder(device=device_name, capability=capability).step(0, 1000)
    builder.op("aten::cudnn_convolution", 0, 20).kernel(main, 30, 400, launch_us=1)
    if copy:
        builder.kernel("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", 500, 200, launch_us=5)
    return Rank(builder.trace())


def test_a_convolution_that_moves_to_tensor_cores_lays_out_its_data_anew() -> None:
    volta = convolution("Tesla V100-SXM2-32GB", (7, 0), "volta_scudnn_128x64_relu_medium_nn_v1", copy=False)
    alone = scale_durations_to(A100, V100, kernels("convolution", "fp32", 400, on_matrix_units=False))[0]
    assert ratios_of(volta, A100)[0] == pytest.approx(alone * (1, 1.5, 2.1), rel=0.01)


@pytest.mark.parametrize(("there", "copies"), [(V100, 0), (H100, 1)])
def test_only_on_cuda_cores_a_convolution_needs_no_copies(there: Device, copies: int) -> None:
    main = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"
    ratios = ratios_of(convolution("NVIDIA A100-SXM4-80GB", (8, 0), main, copy=True), there)
    assert (ratios[1, 1] > 0) == bool(copies)
    assert ratios[1, 2] > 0


def test_products_that_a_convolution_launches_are_convolutions() -> None:
    volta = convolution("Tesla V100-SXM2-32GB", (7, 0), "volta_sgemm_64x64_nt", copy=False)
    builder = TraceBuilder(device="Tesla V100-SXM2-32GB", capability=(7, 0)).step(0, 1000)
    product = Rank(builder.op("aten::mm", 0, 20).kernel("volta_sgemm_64x64_nt", 30, 400, launch_us=1).trace())
    assert ratios_of(volta, A100)[0, 1] < 0.5 * ratios_of(product, A100)[0, 1]
