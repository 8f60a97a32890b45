"""Costs, Tensor Core verdicts and bounds of kernels: FLOPs of each launch, what they prove, what bounds the launch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once

from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, VERDICTS
from perfdoctor.gpu.roofline.kernel_bounds import (
    BOUNDS,
    REASONS,
    KernelLaunches,
    RooflineTimes,
    estimate_latency_limits,
    find_kernel_bounds,
)
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import KERNEL

BF16 = "c10::BFloat16"
H100 = {"device": "NVIDIA H100 80GB HBM3", "capability": (9, 0), "sm_count": 132}
FAST = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
SLOW = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1"
OLD = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_tn_align8"
TAIL = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
MINE = "_my_matmul_gemm_kernel"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
SGEMM = "ampere_sgemm_128x128_nn"


class Program:
    """Ops one after the other, each followed by its kernels."""

    def __init__(self, **device: object) -> None:
        self.builder = TraceBuilder(**(H100 | device))  # type: ignore[arg-type]
        self.at_us = 0.0

    def op(
        self, name: str, shapes: list[object], types: list[str], *kernels: tuple[str, float], concrete: object = None
    ) -> Program:
        self.builder.op(name, self.at_us, 50, shapes=shapes, types=types, concrete=concrete)  # type: ignore[arg-type]
        began_us = self.at_us
        for i, (kernel, dur_us) in enumerate(kernels):
            self.builder.kernel(kernel, self.at_us + 100, dur_us, launch_us=began_us + 5 * i + 1)
            self.at_us += dur_us
        self.at_us += 200
        return self

    def mm(self, m: int, k: int, n: int, *kernels: tuple[str, float], dtype: str = BF16) -> Program:
        return self.op("aten::mm", [[m, k], [k, n]], [dtype, dtype], *kernels)

    def rank(self) -> Rank:
        return Rank(self.builder.trace())


def kinds(rank: Rank) -> list[str]:
    return [BOUNDS[kind] if kind >= 0 else "" for kind in rank.bounds.kind]


def verdicts(rank: Rank) -> list[tuple[str, str]]:
    found = rank.verdicts
    return [(VERDICTS[v], BASES[b]) for v, b in zip(found.tensor_core, found.basis, strict=True)]


# Costs ----------------------------------------------------------------------------------------------------------------


def test_flops_go_to_the_longest_kernel_that_multiplies_and_not_to_helpers() -> None:
    rank = Program().mm(512, 1024, 2048, (TAIL, 90), (OLD, 20), (FAST, 30)).rank()
    flops = 2 * 512 * 1024 * 2048

    assert np.nan_to_num(rank.kernel_costs.flops).tolist() == [0, 0, flops]
    assert rank.kernel_costs.is_main_kernel.tolist() == [False, False, True]
    assert rank.kernel_costs.op_cost.tolist() == [0, 0, 0]
    (found,) = rank.kernel_costs.op_costs
    assert (found.m, found.k, found.n) == (512, 1024, 2048)


def test_launches_of_one_main_kernel_share_its_flops_by_time() -> None:
    rank = Program().mm(512, 1024, 2048, (FAST, 30), (FAST, 10), (TAIL, 5)).rank()

    assert rank.kernel_costs.flops[:2].sum() == pytest.approx(2 * 512 * 1024 * 2048)
    assert rank.kernel_costs.flops[0] == pytest.approx(3 * rank.kernel_costs.flops[1])


def test_ops_without_shapes_have_no_costs() -> None:
    builder = TraceBuilder(**H100).op("aten::mm", 0, 50).kernel(FAST, 100, 30, launch_us=1)  # type: ignore[arg-type]
    rank = Rank(builder.trace())

    assert np.isnan(rank.kernel_costs.flops).all()
    assert rank.kernel_costs.op_costs == ()
    assert rank.account.mfu is None


GRADIENTS = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]


def gradients(*kernels: tuple[str, float]) -> list[float]:
    shapes: list[object] = [[8, 64, 28, 28], [8, 64, 28, 28], [64, 64, 3, 3], *[[]] * 8]
    rank = (
        Program().op("aten::convolution_backward", shapes, [BF16] * 3 + [""] * 8, *kernels, concrete=GRADIENTS).rank()
    )
    half = 2 * 8 * 64 * 28 * 28 * 64 * 9
    return [round(value / half, 6) for value in rank.kernel_costs.flops]


def test_gradients_of_a_convolution_go_to_the_kernels_that_name_them() -> None:
    dgrad = (
        "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_stage3_execute_kernel_cudnn"
    )
    wgrad = "cutlass_tensorop_bf16_s16816wgrad_optimized_bf16_256x64_32x4_nhwc_align8"
    nameless = "cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align8"

    assert gradients((dgrad, 30), (wgrad, 40)) == [1, 1]
    assert gradients((dgrad, 30), (nameless, 40)) == [1, 1]
    assert np.isnan(gradients((nameless, 30), (nameless, 40))).all()


def test_bytes_of_an_op_that_moves_data_are_shared_by_all_its_kernels() -> None:
    norm = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float, false>"
    shapes: list[object] = [[1024, 256], [1024, 256]]
    rank = Program().op("aten::native_layer_norm_backward", shapes, ["float", "float"], (norm, 30), (norm, 10)).rank()

    assert rank.kernel_costs.bytes.sum() == pytest.approx(3 * 1024 * 256 * 4)


@given(st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 40), st.integers(-1, 40)), max_size=60))
def test_rows_are_numbered_by_their_values(rows: list[tuple[int, int, int]]) -> None:
    columns = tuple(np.array([row[i] for row in rows], np.int32) for i in range(3))
    which, first = distinct_rows(columns, 41)

    assert len(first) == len(set(rows))
    assert [rows[first[w]] for w in which] == rows


# Verdicts -------------------------------------------------------------------------------------------------------------


def test_an_unknown_kernel_faster_than_cuda_cores_is_proven_to_use_tensor_cores() -> None:
    # 2 * 4096^3 FLOPs in 300 us are 458 TFLOP/s; CUDA cores do 134 at most.
    rank = Program().mm(4096, 4096, 4096, (MINE, 300)).mm(256, 4096, 4096, (MINE, 3000)).rank()

    assert verdicts(rank) == [("yes", "proven"), ("yes", "proven")]


def test_an_operand_type_makes_tensor_cores_likely_and_float32_leaves_them_unknown() -> None:
    rank = Program().mm(256, 4096, 4096, (MINE, 3000)).mm(256, 4096, 4096, (MINE, 3000), dtype="float").rank()

    assert verdicts(rank) == [("yes", "likely"), ("unknown", "name")]


def test_nothing_is_likely_on_a_device_without_tensor_cores() -> None:
    rank = Program(device="Quadro GP100", capability=(6, 0)).mm(256, 4096, 4096, (MINE, 3000)).rank()

    assert verdicts(rank) == [("unknown", "name")]


def test_a_cuda_core_kernel_faster_than_cuda_cores_makes_its_rule_suspect() -> None:
    rank = Program().mm(8192, 8192, 8192, (SGEMM, 4000), dtype="float").rank()  # 275 TFLOP/s; 66.9 is the peak

    assert verdicts(rank) == [("unknown", "contradicted")]
    (violation,) = rank.verdicts.violations
    assert violation.rule == rank.kernel_classes.by_name[int(rank.trace.gpu.name[0])].rule
    assert violation.unit == "CUDA cores"
    assert any(violation.rule in note for note in rank.notes)


def test_a_cuda_core_kernel_within_its_peak_is_no_violation() -> None:
    rank = Program().mm(8192, 8192, 8192, (SGEMM, 20_000), dtype="float").rank()  # 55 TFLOP/s

    assert verdicts(rank) == [("no", "name")]
    assert rank.notes == ()


def test_flops_beyond_any_unit_are_left_out_and_reported() -> None:
    rank = Program().mm(8192, 8192, 8192, (FAST, 500)).rank()  # 2199 TFLOP/s; 989 is the peak

    (violation,) = rank.verdicts.violations
    assert violation.unit == "Tensor Cores"
    assert rank.verdicts.impossible.tolist() == [True]
    assert rank.account.mfu is None
    assert kinds(rank) == ["invalid"]


def test_winograd_may_exceed_the_peak_of_the_direct_count() -> None:
    shapes: list[object] = [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    kernel = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    rank = (
        Program(device="Tesla V100-SXM2-16GB", capability=(7, 0))
        .op("aten::cudnn_convolution", shapes, ["float"] * 2 + [""] * 7, (kernel, 11_000), concrete=concrete)
        .rank()
    )

    assert rank.kernel_costs.flops[0] / 11e-3 > 15.7e12
    assert rank.verdicts.violations == ()
    assert verdicts(rank) == [("no", "name")]


WINOGRAD_TRANSFORM = ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>()", 500.0)
DIRECT = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>()"


@pytest.mark.parametrize(
    ("kernels", "violations", "impossible"),
    [
        # 237 GFLOP: 21 TFLOP/s, where 15.7 is the peak
        ([("volta_sgemm_128x64_nn", 11_000.0), WINOGRAD_TRANSFORM], 0, False),
        ([("volta_sgemm_128x64_nn", 11_000.0)], 0, True),  # its transforms are not in the file
        ([(DIRECT, 11_000.0)], 1, True),
        ([(DIRECT, 18_000.0)], 0, False),
    ],
)
def test_a_gemm_of_a_convolution_may_exceed_the_peak_of_the_direct_count(
    kernels: list[tuple[str, float]], violations: int, impossible: bool
) -> None:
    shapes: list[object] = [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    rank = (
        Program(device="Tesla V100-SXM2-16GB", capability=(7, 0))
        .op("aten::cudnn_convolution", shapes, ["float"] * 2 + [""] * 7, *kernels, concrete=concrete)
        .rank()
    )

    assert len(rank.verdicts.violations) == violations
    assert rank.verdicts.impossible[0] == impossible
    assert verdicts(rank)[0] == ("no", "name")


def test_an_unknown_device_proves_nothing() -> None:
    rank = Program(device="NVIDIA X999").mm(8192, 8192, 8192, (FAST, 1)).rank()

    assert rank.verdicts.violations == ()
    assert rank.account.mfu is None


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dur_us", "kind"), [(FAST, 180, "compute"), (FAST, 1000, "inefficient"), (FAST, 100, "invalid")]
)
def test_a_large_product_is_bound_by_maths_or_inefficient_or_impossible(kernel: str, dur_us: float, kind: str) -> None:
    rank = Program().mm(4096, 4096, 4096, (kernel, dur_us)).rank()  # 139 us at the peak of 989 TFLOP/s

    assert kinds(rank) == [kind]
    assert rank.bounds.nearest_roof[0] == 0


@pytest.mark.parametrize(
    ("dur_us", "kind"), [(130, "bandwidth"), (400, "inefficient"), (20, "invalid"), (4, "latency")]
)
def test_an_addition_is_bound_by_memory_or_inefficient_or_cached(dur_us: float, kind: str) -> None:
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]  # 403 MB: 120 us at 3.35 TB/s
    rank = Program().op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, dur_us)).rank()

    assert kinds(rank) == [kind]
    assert rank.bounds.nearest_roof[0] == 1


def test_inefficient_products_have_a_reason() -> None:
    rank = (
        Program()
        .mm(3137, 3137, 512, (SLOW, 300))
        .mm(4096, 4096, 512, (OLD, 300))
        .mm(4096, 4096, 30522, (FAST, 9000))
        .mm(4096, 4096, 512, (FAST, 300))
        .rank()
    )

    assert set(kinds(rank)) == {"inefficient"}
    assert [REASONS[reason] for reason in rank.bounds.reason] == ["alignment", "old-architecture", "alignment", ""]


def test_without_shapes_the_bound_is_assumed_from_the_category() -> None:
    builder = TraceBuilder(**H100)  # type: ignore[arg-type]
    for i, (name, dur) in enumerate([(FAST, 50), (ELEMENTWISE, 50), (TAIL, 50), (FAST, 3)]):
        builder.kernel(name, 100 * i, dur)
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 900, 50)
    rank = Rank(builder.memcpy("HtoD", 1000, 50).trace())

    assert kinds(rank) == ["compute", "bandwidth", "bandwidth", "latency", "", ""]
    assert rank.bounds.assumed.tolist() == [True, True, True, False, False, False]
    assert np.isnan(rank.bounds.roofline_ns).all()


def kernel_time_us(rank: Rank) -> tuple[float, ...]:
    detail = rank.account.detail
    assert sum(detail.values()) == rank.account.window_ns
    return tuple(detail[name] / 1e3 for name in ("compute", "bandwidth", "latency"))


def test_account_follows_the_roofs() -> None:
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]
    rank = (
        Program()
        .mm(4096, 4096, 4096, (FAST, 200), (TAIL, 10))  # 88 % of the roof; the helper's work is unknown
        .mm(3137, 64, 3137, (SLOW, 100))  # 7 % of the memory's roof, which is the nearest one
        .op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, 130), (ELEMENTWISE, 4))
        .rank()
    )

    assert kernel_time_us(rank) == (200, 244, 0)


def test_a_long_kernel_far_below_its_roof_belongs_to_the_roof() -> None:
    rank = Program().mm(4096, 4096, 4096, (FAST, 1760)).rank()  # 176 us at the 782 TFLOP/s that are attained

    assert kernel_time_us(rank) == (1760, 0, 0)
    roof = rank.account.roofs["compute"]
    assert roof is not None
    assert (roof.share, roof.known_share) == (pytest.approx(0.1, abs=0.001), 1.0)
    assert rank.account.roofs["bandwidth"] is None


def test_how_near_a_bucket_is_to_its_roof_is_over_what_is_known() -> None:
    rank = Program().mm(4096, 4096, 4096, (FAST, 352)).op("mine::product", [], [], (FAST, 648)).rank()

    roof = rank.account.roofs["compute"]
    assert roof is not None
    assert (roof.share, roof.known_share) == (pytest.approx(0.5, abs=0.005), pytest.approx(0.352))


def test_the_share_of_the_roof_from_which_a_short_kernel_is_bound_is_a_setting() -> None:
    shapes: list[object] = [[1024, 1024], [1024, 1024], []]  # 12.6 MB: 4.2 us at 3.0 TB/s
    rank = Program().op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, 9)).rank()

    assert kernel_time_us(Rank(rank.raw_trace, min_roof_share=0.4)) == (0, 9, 0)
    assert kernel_time_us(Rank(rank.raw_trace, min_roof_share=0.5)) == (0, 0, 9)


def test_a_short_kernel_that_reaches_its_roof_is_not_latency() -> None:
    shapes: list[object] = [[1024, 1024], [1024, 1024], []]  # 12.6 MB: 4.2 us at 3.0 TB/s
    types = ["float", "float", "Scalar"]

    assert kernel_time_us(Program().op("aten::add", shapes, types, (ELEMENTWISE, 4.5)).rank()) == (0, 4.5, 0)
    assert kernel_time_us(Program().op("mine::add", [], [], (ELEMENTWISE, 4.5)).rank()) == (0, 0, 4.5)


@pytest.mark.parametrize(
    ("device", "transform_us", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 10, (60, 0, 0)),  # 43 us of work in 60
        ("NVIDIA H100 80GB HBM3", 70, (120, 0, 0)),  # 43 us of work in 120
        ("NVIDIA X999", 70, (50, 70, 0)),  # by category: what the roof is nobody knows
    ],
)
def test_the_time_of_a_convolution_includes_its_transforms(
    device: str, transform_us: float, expected: tuple[float, ...]
) -> None:
    shapes: list[object] = [[36, 256, 56, 56], [64, 256, 3, 3], *[[]] * 7]  # 33 GFLOP: 43 us at the roof
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    transform = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>"
    main = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1"
    rank = (
        Program(device=device)
        .op(
            "aten::cudnn_convolution",
            shapes,
            [BF16] * 2 + [""] * 7,
            (transform, transform_us),
            (main, 50),
            concrete=concrete,
        )
        .rank()
    )

    assert kernel_time_us(rank) == expected


def test_communication_is_exposed_only_where_no_kernel_computes() -> None:
    builder = TraceBuilder(**H100)  # type: ignore[arg-type]
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 100, stream=20)
    builder.op("aten::mm", 0, 5, shapes=[[64, 64], [64, 64]], types=[BF16, BF16]).kernel(FAST, 40, 8, launch_us=1)
    rank = Rank(builder.trace())

    assert rank.account.detail["communication"] == 100_000  # contracts: before latency
    assert rank.account.detail["latency"] == 0
    assert rank.exposed_parts["communication"].tolist() == [[0, 40_000], [48_000, 100_000]]
    assert rank.exposed_parts["latency"].tolist() == [[40_000, 48_000]]


def test_utilization_and_rates_of_the_window() -> None:
    rank = Program().mm(4096, 4096, 4096, (FAST, 200)).rank()
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]
    adding = Program().op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, 160)).rank()

    assert rank.account.mfu == pytest.approx(2 * 4096**3 / 200e-6 / 989.4e12)
    assert rank.account.achieved_bytes_per_s is None
    assert adding.account.mfu is None
    assert adding.account.achieved_bytes_per_s == pytest.approx(3 * 8192 * 4096 * 4 / 160e-6)


def test_utilization_is_a_lower_bound_when_some_of_the_maths_is_unknown() -> None:
    known = Program().mm(4096, 4096, 4096, (FAST, 200)).rank().account
    account = Program().mm(4096, 4096, 4096, (FAST, 200)).op("mine::product", [], [], (FAST, 100)).rank().account
    unknown = Program().op("mine::product", [], [], (FAST, 100)).rank().account

    assert known.mfu_known_share == 1.0
    assert account.mfu == pytest.approx(2 * 4096**3 / (account.window_ns / 1e9) / 989.4e12)
    assert account.mfu_known_share == pytest.approx(2 / 3)
    assert (unknown.mfu, unknown.mfu_known_share, unknown.mfu_peak_name) == (None, 0.0, None)


def test_utilization_has_one_peak_that_of_the_type_with_most_time() -> None:
    half = Program().mm(4096, 4096, 4096, (FAST, 400)).mm(1024, 1024, 1024, (SGEMM, 200), dtype="float").rank().account
    single = Program().mm(4096, 4096, 4096, (SGEMM, 4000), dtype="float").rank().account

    flops = 2 * (4096**3 + 1024**3)
    assert (half.mfu_peak_name, half.mfu_peak_flops_per_s) == ("bf16", 989.4e12)
    assert half.mfu == pytest.approx(flops / (half.window_ns / 1e9) / 989.4e12)
    assert (single.mfu_peak_name, single.mfu_peak_flops_per_s) == ("fp32 without Tensor Cores", pytest.approx(66.9e12))


def test_utilization_above_the_peak_of_one_type_takes_the_highest_peak_in_use() -> None:
    account = Program().mm(4096, 4096, 4096, (FAST, 200)).mm(512, 512, 512, (SGEMM, 300), dtype="float").rank().account

    assert account.mfu_peak_name == "bf16"
    assert account.mfu == pytest.approx(2 * (4096**3 + 512**3) / (account.window_ns / 1e9) / 989.4e12)


@pytest.mark.parametrize(
    ("device", "capability", "kernel", "dtype", "peak_name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), "ampere_fp16_sgemm_fp16_128x128_nn", "c10::Half", "fp16", 312e12),
        (
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4",
            "float",
            "tf32",
            156e12,
        ),
        (
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            "nvjet_qqtst_128x128_128x5_2x1_v_bz_TNT",
            "c10::Float8_e4m3fn",
            "fp8",
            1978.9e12,
        ),
    ],
)
def test_the_peak_of_utilization_is_that_of_the_type(
    device: str, capability: tuple[int, int], kernel: str, dtype: str, peak_name: str, peak: float
) -> None:
    op = "aten::_scaled_mm" if "Float8" in dtype else "aten::mm"
    shapes: list[object] = [[4096, 4096], [4096, 4096]]
    account = Program(device=device, capability=capability).op(op, shapes, [dtype] * 2, (kernel, 9000)).rank().account

    assert account.mfu_peak_name == peak_name
    assert account.mfu_peak_flops_per_s == pytest.approx(peak)
    assert account.mfu == pytest.approx(2 * 4096**3 / 9e-3 / peak)


def ceilings(compute_ns: float, memory_ns: float) -> RooflineTimes:
    column = np.array([compute_ns]), np.array([memory_ns])
    flag = np.zeros(1, bool)
    return RooflineTimes(*column, np.fmax(*column) * 0.8, flag, np.zeros(1, np.int8), flag)


@pytest.mark.parametrize(
    ("dur_us", "blocks", "kind", "reason"),
    [
        (15, 64, "latency", ""),
        (100, 64, "inefficient", "small-grid"),
        (100, 140, "inefficient", "tail-wave"),
        (100, 132, "inefficient", ""),
        (100, 120, "inefficient", ""),
        (15, 120, "compute", ""),
        (100, 132 * 9 + 1, "inefficient", ""),
        (100, -1, "inefficient", ""),
        (15, 1000, "compute", ""),
    ],
)
def test_small_grids_and_tail_waves_are_reasons(dur_us: int, blocks: int, kind: str, reason: str) -> None:
    launch = KernelLaunches(
        dur_ns=np.array([dur_us * 1000]),
        kind=np.zeros(1, np.int64),
        cost_fraction=np.ones(1),
        blocks=np.array([blocks]),
        sm_count=132,
    )
    found = find_kernel_bounds(ceilings(12_000, 4_000), launch)

    assert (BOUNDS[found.kind[0]], REASONS[found.reason[0]]) == (kind, reason)


def test_the_shortest_kernel_is_taken_from_the_trace_where_it_has_short_ones() -> None:
    assert estimate_latency_limits(np.arange(1500, 1600)) == (1505, 5000)
    assert estimate_latency_limits(np.full(100, 4000)) == (4000, 8000)
    assert estimate_latency_limits(np.full(100, 40_000)) == (2000, 5000)
    assert estimate_latency_limits(np.array([1], np.int64)) == (2000, 5000)


# Real traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.corpus
def test_no_real_trace_contradicts_a_rule(corpus: Path) -> None:
    checked = 0
    for path in sorted(corpus.rglob("*.json.gz")):
        if path.stat().st_size > 800_000:  # the benchmark does all of them; here the small ones
            continue
        rank = Rank(read_once(path))
        assert rank.verdicts.violations == (), path.name
        checked += int(
            np.isfinite(rank.kernel_costs.flops[rank.kernel_costs.match_rows("gemm", "convolution", "attention")]).sum()
        )
    assert checked > 500


@pytest.mark.corpus
def test_odd_dimensions_of_timesformer_are_inefficient_for_their_alignment(corpus: Path) -> None:
    rank = Rank(read_once(corpus / "h100-timesformer-bf16.json.gz"))
    gpu, ops = rank.trace.gpu, rank.trace.ops
    dims = [rank.trace.text(int(ops.dims[op])) or "" if op >= 0 else "" for op in gpu.op]
    odd = np.array(["3137,3137" in text or "64,3137" in text for text in dims]) & rank.kernel_classes.match_rows(
        lambda k: k.category == "gemm"
    )
    odd &= gpu.kind == KERNEL

    assert odd.sum() == 24
    assert {BOUNDS[kind] for kind in rank.bounds.kind[odd]} == {"inefficient"}
    assert {REASONS[reason] for reason in rank.bounds.reason[odd]} == {"alignment"}
    assert {VERDICTS[v] for v in rank.verdicts.tensor_core[odd]} == {"yes"}
