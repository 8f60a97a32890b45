"""Work, verdicts and bounds of kernels: each launch's FLOPs, what they prove, and what bounds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from perfdoctor.trace import read
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
    """Ops one after the other, each with its kernels behind it."""

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

    def run(self) -> Rank:
        return Rank(self.builder.trace())


def kinds(run: Rank) -> list[str]:
    return [BOUNDS[kind] if kind >= 0 else "" for kind in run.bounds.kind]


def verdicts(run: Rank) -> list[tuple[str, str]]:
    found = run.verdicts
    return [(VERDICTS[v], BASES[b]) for v, b in zip(found.tensor_core, found.basis, strict=True)]


# Work -----------------------------------------------------------------------------------------------------------------


def test_flops_go_to_the_longest_kernel_that_multiplies_and_not_to_helpers() -> None:
    run = Program().mm(512, 1024, 2048, (TAIL, 90), (OLD, 20), (FAST, 30)).run()
    flops = 2 * 512 * 1024 * 2048

    assert np.nan_to_num(run.kernel_costs.flops).tolist() == [0, 0, flops]
    assert run.kernel_costs.is_main_kernel.tolist() == [False, False, True]
    assert run.kernel_costs.op_cost.tolist() == [0, 0, 0]
    (found,) = run.kernel_costs.op_costs
    assert (found.m, found.k, found.n) == (512, 1024, 2048)


def test_launches_of_one_main_kernel_share_its_work_by_time() -> None:
    run = Program().mm(512, 1024, 2048, (FAST, 30), (FAST, 10), (TAIL, 5)).run()

    assert run.kernel_costs.flops[:2].sum() == pytest.approx(2 * 512 * 1024 * 2048)
    assert run.kernel_costs.flops[0] == pytest.approx(3 * run.kernel_costs.flops[1])


def test_ops_without_shapes_have_no_work() -> None:
    builder = TraceBuilder(**H100).op("aten::mm", 0, 50).kernel(FAST, 100, 30, launch_us=1)  # type: ignore[arg-type]
    run = Rank(builder.trace())

    assert np.isnan(run.kernel_costs.flops).all()
    assert run.kernel_costs.op_costs == ()
    assert run.account.mfu is None


GRADIENTS = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]


def gradients(*kernels: tuple[str, float]) -> list[float]:
    shapes: list[object] = [[8, 64, 28, 28], [8, 64, 28, 28], [64, 64, 3, 3], *[[]] * 8]
    run = Program().op("aten::convolution_backward", shapes, [BF16] * 3 + [""] * 8, *kernels, concrete=GRADIENTS).run()
    half = 2 * 8 * 64 * 28 * 28 * 64 * 9
    return [round(value / half, 6) for value in run.kernel_costs.flops]


def test_gradients_of_a_convolution_go_to_the_kernels_that_say_so() -> None:
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
    run = Program().op("aten::native_layer_norm_backward", shapes, ["float", "float"], (norm, 30), (norm, 10)).run()

    assert run.kernel_costs.bytes.sum() == pytest.approx(3 * 1024 * 256 * 4)


@given(st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 40), st.integers(-1, 40)), max_size=60))
def test_rows_are_numbered_by_what_they_hold(rows: list[tuple[int, int, int]]) -> None:
    columns = tuple(np.array([row[i] for row in rows], np.int32) for i in range(3))
    which, first = distinct_rows(columns, 41)

    assert len(first) == len(set(rows))
    assert [rows[first[w]] for w in which] == rows


# Verdicts -------------------------------------------------------------------------------------------------------------


def test_a_kernel_without_a_name_that_beats_cuda_cores_has_proven_it() -> None:
    # 2 * 4096^3 FLOPs in 300 us are 458 TFLOP/s; CUDA cores do 134 at most.
    run = Program().mm(4096, 4096, 4096, (MINE, 300)).mm(256, 4096, 4096, (MINE, 3000)).run()

    assert verdicts(run) == [("yes", "proven"), ("yes", "proven")]


def test_an_operand_type_makes_it_likely_and_float32_leaves_it_open() -> None:
    run = Program().mm(256, 4096, 4096, (MINE, 3000)).mm(256, 4096, 4096, (MINE, 3000), dtype="float").run()

    assert verdicts(run) == [("yes", "likely"), ("unknown", "name")]


def test_nothing_is_likely_on_a_device_without_tensor_cores() -> None:
    run = Program(device="Quadro GP100", capability=(6, 0)).mm(256, 4096, 4096, (MINE, 3000)).run()

    assert verdicts(run) == [("unknown", "name")]


def test_a_no_that_beats_cuda_cores_makes_its_rule_suspect() -> None:
    run = Program().mm(8192, 8192, 8192, (SGEMM, 4000), dtype="float").run()  # 275 TFLOP/s; 66.9 is the peak

    assert verdicts(run) == [("unknown", "contradicted")]
    (violation,) = run.verdicts.violations
    assert violation.rule == run.kernel_classes.by_name[int(run.trace.gpu.name[0])].rule
    assert violation.unit == "CUDA cores"
    assert any(violation.rule in note for note in run.notes)


def test_an_honest_no_makes_no_noise() -> None:
    run = Program().mm(8192, 8192, 8192, (SGEMM, 20_000), dtype="float").run()  # 55 TFLOP/s

    assert verdicts(run) == [("no", "name")]
    assert run.notes == ()


def test_flops_beyond_any_unit_are_left_out_and_reported() -> None:
    run = Program().mm(8192, 8192, 8192, (FAST, 500)).run()  # 2199 TFLOP/s; 989 is the peak

    (violation,) = run.verdicts.violations
    assert violation.unit == "Tensor Cores"
    assert run.verdicts.impossible.tolist() == [True]
    assert run.account.mfu is None
    assert kinds(run) == ["invalid"]


def test_winograd_may_exceed_the_peak_of_the_direct_count() -> None:
    shapes: list[object] = [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    kernel = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    run = (
        Program(device="Tesla V100-SXM2-16GB", capability=(7, 0))
        .op("aten::cudnn_convolution", shapes, ["float"] * 2 + [""] * 7, (kernel, 11_000), concrete=concrete)
        .run()
    )

    assert run.kernel_costs.flops[0] / 11e-3 > 15.7e12
    assert run.verdicts.violations == ()
    assert verdicts(run) == [("no", "name")]


def test_an_unknown_device_proves_nothing() -> None:
    run = Program(device="NVIDIA X999").mm(8192, 8192, 8192, (FAST, 1)).run()

    assert run.verdicts.violations == ()
    assert run.account.mfu is None


# Bounds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dur_us", "kind"),
    [(FAST, 180, "compute"), (FAST, 1000, "inefficient"), (FAST, 100, "invalid")],
)
def test_a_large_product_is_bound_by_maths_or_inefficient_or_impossible(kernel: str, dur_us: float, kind: str) -> None:
    run = Program().mm(4096, 4096, 4096, (kernel, dur_us)).run()  # 139 us at the peak of 989 TFLOP/s

    assert kinds(run) == [kind]
    assert run.bounds.nearest_roof[0] == 0


@pytest.mark.parametrize(
    ("dur_us", "kind"), [(130, "bandwidth"), (400, "inefficient"), (20, "invalid"), (4, "latency")]
)
def test_an_addition_is_bound_by_memory_or_inefficient_or_cached(dur_us: float, kind: str) -> None:
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]  # 403 MB: 120 us at 3.35 TB/s
    run = Program().op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, dur_us)).run()

    assert kinds(run) == [kind]
    assert run.bounds.nearest_roof[0] == 1


def test_inefficient_products_say_why() -> None:
    run = (
        Program()
        .mm(3137, 3137, 512, (SLOW, 300))
        .mm(4096, 4096, 512, (OLD, 300))
        .mm(4096, 4096, 30522, (FAST, 9000))
        .mm(4096, 4096, 512, (FAST, 300))
        .run()
    )

    assert set(kinds(run)) == {"inefficient"}
    assert [REASONS[reason] for reason in run.bounds.reason] == ["alignment", "old-architecture", "alignment", ""]


def test_without_shapes_the_category_stands_in_and_says_so() -> None:
    builder = TraceBuilder(**H100)  # type: ignore[arg-type]
    for i, (name, dur) in enumerate([(FAST, 50), (ELEMENTWISE, 50), (TAIL, 50), (FAST, 3)]):
        builder.kernel(name, 100 * i, dur)
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 900, 50)
    run = Rank(builder.memcpy("HtoD", 1000, 50).trace())

    assert kinds(run) == ["compute", "bandwidth", "bandwidth", "latency", "", ""]
    assert run.bounds.assumed.tolist() == [True, True, True, False, False, False]
    assert np.isnan(run.bounds.roofline_ns).all()


def test_account_follows_the_bounds() -> None:
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]
    run = (
        Program()
        .mm(4096, 4096, 4096, (FAST, 200), (TAIL, 10))
        .mm(3137, 64, 3137, (SLOW, 100))  # inefficient; writing the result is the nearest ceiling
        .op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, 130), (ELEMENTWISE, 4))
        .run()
    )

    detail = run.account.detail
    assert sum(detail.values()) == run.account.window_ns
    assert (detail["compute"], detail["bandwidth"], detail["kernel_latency"]) == (200_000, 240_000, 4_000)


def test_utilization_and_rates_of_the_window() -> None:
    run = Program().mm(4096, 4096, 4096, (FAST, 200)).run()
    shapes: list[object] = [[8192, 4096], [8192, 4096], []]
    adding = Program().op("aten::add", shapes, ["float", "float", "Scalar"], (ELEMENTWISE, 160)).run()

    assert run.account.mfu == pytest.approx(2 * 4096**3 / 200e-6 / 989.4e12)
    assert run.account.achieved_bytes_per_s is None
    assert adding.account.mfu is None
    assert adding.account.achieved_bytes_per_s == pytest.approx(3 * 8192 * 4096 * 4 / 160e-6)


def test_utilization_is_unknown_when_much_of_the_maths_is() -> None:
    run = Program().mm(4096, 4096, 4096, (FAST, 200)).op("mine::product", [], [], (FAST, 100)).run()

    assert run.account.mfu is None


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
def test_grids_tell_of_idle_multiprocessors(dur_us: int, blocks: int, kind: str, reason: str) -> None:
    launch = KernelLaunches(
        dur_ns=np.array([dur_us * 1000]),
        kind=np.zeros(1, np.int64),
        cost_fraction=np.ones(1),
        blocks=np.array([blocks]),
        sm_count=132,
    )
    found = find_kernel_bounds(ceilings(12_000, 4_000), launch)

    assert (BOUNDS[found.kind[0]], REASONS[found.reason[0]]) == (kind, reason)


def test_balanced_is_where_neither_ceiling_is_clearly_the_higher() -> None:
    launch = KernelLaunches(np.array([12_000]), np.zeros(1, np.int64), np.ones(1))

    assert find_kernel_bounds(ceilings(10_000, 9_000), launch).near_ridge_point[0]
    assert not find_kernel_bounds(ceilings(10_000, 4_000), launch).near_ridge_point[0]
    assert not find_kernel_bounds(ceilings(np.nan, 4_000), launch).near_ridge_point[0]


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
        run = Rank(read(path))
        assert run.verdicts.violations == (), path.name
        checked += int(
            np.isfinite(run.kernel_costs.flops[run.kernel_costs.match_rows("gemm", "convolution", "attention")]).sum()
        )
    assert checked > 500


@pytest.mark.corpus
def test_odd_dimensions_of_timesformer_are_inefficient_for_their_alignment(corpus: Path) -> None:
    run = Rank(read(corpus / "h100-timesformer-bf16.json.gz"))
    gpu, ops = run.trace.gpu, run.trace.ops
    dims = [run.trace.text(int(ops.dims[op])) or "" if op >= 0 else "" for op in gpu.op]
    odd = np.array(["3137,3137" in text or "64,3137" in text for text in dims]) & run.kernel_classes.match_rows(
        lambda k: k.category == "gemm"
    )
    odd &= gpu.kind == KERNEL

    assert odd.sum() == 24
    assert {BOUNDS[kind] for kind in run.bounds.kind[odd]} == {"inefficient"}
    assert {REASONS[reason] for reason in run.bounds.reason[odd]} == {"alignment"}
    assert {VERDICTS[v] for v in run.verdicts.tensor_core[odd]} == {"yes"}
