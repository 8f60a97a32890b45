"""The account adds up to the nanosecond on any trace, and the timeline equals that of an independent sweep."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timeline_oracle import compute_timeline
from trace_strategies import ALL_REDUCE, EXPERTS, LOADERS, SGEMM, TENSOR_GEMM, File, any_file, rank_of

from perfdoctor.analysis.timeline.account import BUCKETS, DETAILS, Account
from perfdoctor.rank import Rank
from perfdoctor.report.to_plain import to_plain
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

# It loads 8 bytes at a time (GRVWA4), as hipBLASLt does for sizes that are multiples of 4,096 too.
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_GRVWA4_GRVWB4_ISA942"

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


def check_partition(account: Account, window: iv.Intervals) -> None:
    """Every instant of the window lies in exactly one part."""
    assert account.window_ns == iv.total(window)
    assert tuple(account.detail) == DETAILS
    assert set(account.parts) == set(DETAILS)
    assert sum(account.detail.values()) == account.window_ns
    assert sum(account.buckets.values()) == account.window_ns
    assert min(account.detail.values()) >= 0
    assert {name: iv.total(part) for name, part in account.parts.items()} == dict(account.detail)
    # As lengths add up to the window, the parts are disjoint exactly if together they still cover all of it.
    assert iv.union_of(account.parts.values()).tolist() == window.tolist()


@relaxed
@given(any_file(), st.sampled_from((slice(None), slice(1, None), slice(0, 1))))
def test_the_account_adds_up_on_any_trace(file: File, steps: slice) -> None:
    rank = rank_of(file)
    rank = Rank(rank.raw_trace, step_slice=steps)
    check_partition(rank.account, rank.window)


@relaxed
@given(any_file())
def test_the_timeline_equals_that_of_a_sweep_over_the_raw_file(file: File) -> None:
    found = to_plain(rank_of(file).timeline)
    expected = compute_timeline(json.dumps(file))
    if expected is None:
        assert set(found.values()) == {None}
    else:
        assert {name: found[name] for name in expected if name != "items"} == {
            name: value for name, value in expected.items() if name != "items"
        }


def test_the_buckets_contain_every_detail_once() -> None:
    assert sorted(name for names in BUCKETS.values() for name in names) == sorted(DETAILS)
    assert tuple(BUCKETS) == ("compute", "bandwidth", "communication", "overhead")


def details_us(trace: TraceBuilder) -> dict[str, int]:
    """The details of the account that are not zero, in us."""
    account = Rank(trace.trace()).account
    return {name: ns // 1000 for name, ns in account.detail.items() if ns}


def test_an_instant_goes_to_the_first_layer_that_covers_it() -> None:
    trace = (
        TraceBuilder()
        .step(0, 100)
        .memcpy("HtoD", 0, 100, stream=1)
        .kernel(POINTWISE, 75, 3, stream=2)
        .kernel(ALL_REDUCE, 20, 50, stream=3)
        .kernel(POINTWISE, 30, 30, stream=4)
        .kernel(TENSOR_GEMM, 40, 10, stream=5)
    )
    assert details_us(trace) == {"compute": 10, "bandwidth": 20, "memcpy": 50, "communication": 20}


@pytest.mark.parametrize(("dur_us", "part"), [(5, "latency"), (5.001, "compute")])
def test_a_kernel_of_five_microseconds_is_latency(dur_us: float, part: str) -> None:
    account = Rank(TraceBuilder().kernel(TENSOR_GEMM, 0, dur_us).trace()).account
    assert {name: ns for name, ns in account.detail.items() if ns} == {part: round(1000 * dur_us)}


def test_a_short_collective_is_communication_and_no_latency() -> None:
    assert details_us(TraceBuilder().kernel(EXPERTS, 0, 3)) == {"communication": 3}


def test_a_collective_by_another_name_is_communication_in_the_account_but_not_in_the_timeline() -> None:
    rank = Rank(TraceBuilder().kernel(EXPERTS, 0, 40).trace())
    assert rank.account.detail["communication"] == 40_000
    assert (rank.timeline.communication_ns, rank.timeline.computation_ns) == (0, 40_000)


def test_an_idle_instant_goes_to_the_first_cause_that_covers_it() -> None:
    trace = TraceBuilder().step(0, 1000).kernel(TENSOR_GEMM, 0, 100, launch_us=0)
    trace.call("cudaStreamSynchronize", 40, 65)  # waited 65 us: it causes 100..165
    trace.range(LOADERS[0], 110, 20)  # the loader comes first: 110..130
    trace.call("cudaMalloc", 160, 40)  # 165..200
    trace.range("gloo:all_reduce", 190, 50)  # 200..240
    trace.kernel(TENSOR_GEMM, 300, 700, launch_us=290)  # late: 240..300
    assert details_us(trace) == {
        "compute": 800,
        "idle_sync": 45,
        "idle_dataloader": 20,
        "idle_allocator": 35,
        "idle_communication": 40,
        "idle_launch": 60,
    }


def test_a_gap_before_an_item_launched_long_before_is_unexplained_unless_it_is_a_few_microseconds() -> None:
    trace = TraceBuilder().kernel(TENSOR_GEMM, 0, 100, launch_us=0).kernel(TENSOR_GEMM, 105, 95, launch_us=1)
    trace.kernel(TENSOR_GEMM, 300, 100, launch_us=2)
    assert details_us(trace) == {"compute": 295, "idle_launch": 5, "idle_unexplained": 100}


@pytest.mark.parametrize("backend", ["gloo", "mpi", "ucc"])
def test_a_collective_of_any_backend_is_communication_of_a_program_on_the_cpu(backend: str) -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 600)
    times_us = details_us(trace.range(f"{backend}:all_reduce", 500, 500, thread=2))
    assert (times_us["compute"], times_us["communication"]) == (600, 400)  # the time that no op computes beside


@pytest.mark.parametrize("name", ["forward", "my mpi: all", "glooey:all_reduce", "ncclAllReduce"])
def test_a_range_of_another_name_is_no_communication(name: str) -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 600).range(name, 500, 500, thread=2)
    assert "communication" not in details_us(trace)


def test_a_program_on_the_cpu_is_accounted_by_its_innermost_ops() -> None:
    trace = TraceBuilder(device=None).step(0, 5000).range(LOADERS[0], 0, 100).op("aten::item", 10, 50)
    trace.op("aten::linear", 100, 500).op("aten::addmm", 150, 400)  # 400 of compute, 100 around it
    trace.op("aten::add_", 700, 300).op("aten::view", 1000, 4)
    trace.op("c10d::allreduce_", 3000, 1000)  # after a break of almost 2 ms, which may be anything
    times_us = details_us(trace)
    assert times_us["idle_dataloader"] == 100
    assert times_us["communication"] == 1000
    assert times_us["latency"] == 4
    assert times_us["idle_launch"] == 100  # the break of 100 us between ops is Python
    assert times_us["idle_unexplained"] == 5000 - 4000 + 3000 - 1004
    assert times_us["compute"] + times_us["bandwidth"] == 800


@pytest.mark.parametrize("table", ["op", "range"])
def test_compiling_on_the_cpu_is_overhead_whatever_runs_within(table: str) -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 100, 300).op("aten::add", 500, 100)
    getattr(trace, table)("_compile.compile_inner (dynamo_timed)", 200, 350)
    assert details_us(trace) == {"compute": 100, "bandwidth": 50, "idle_launch": 350, "idle_unexplained": 500}


def test_loading_precedes_compiling() -> None:
    trace = TraceBuilder(device=None)
    for at in (0, 1000):  # what happens in one step of two is left out
        trace.step(at, 1000).op("_compile (dynamo_timed)", at, 600).range(LOADERS[0], at + 500, 300)
    # The 200 us from the first loader to the second op are a break between ops.
    assert details_us(trace) == {"idle_dataloader": 600, "idle_launch": 1200, "idle_unexplained": 200}


def test_without_gpu_events_all_but_the_loader_is_unexplained() -> None:
    trace = TraceBuilder().step(0, 1000).range(LOADERS[0], 0, 100).op("aten::mm", 200, 300)
    trace.call("cudaLaunchKernel", 300)
    rank = Rank(trace.trace())
    assert rank.device_kind == "gpu_not_recorded"
    assert details_us(trace) == {"idle_dataloader": 100, "idle_unexplained": 900}


def test_use_of_tensor_cores_is_counted_in_kernel_time_and_unknown_without_kernels() -> None:
    trace = TraceBuilder().kernel(TENSOR_GEMM, 0, 10).kernel(SGEMM, 5, 20, stream=8).kernel(POINTWISE, 0, 99)
    trace.kernel("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", 40, 7)
    trace.kernel("triton_tem_fused_mm_0", 60, 3)
    use = Rank(trace.trace()).account.tensor_core
    assert use == {"used": 10_000, "slow_path": 7_000, "not_used": 20_000, "unknown": 3_000}
    assert set(Rank(TraceBuilder().memcpy("HtoD", 0, 5).trace()).account.tensor_core.values()) == {None}


@pytest.mark.parametrize(
    ("device", "kernel", "k", "use"),
    [
        pytest.param("AMD Instinct MI300X", TENSILE, 4097, "slow_path", id="misaligned-on-amd"),
        pytest.param("AMD Instinct MI300X", TENSILE, 4096, "used", id="narrow-loads-of-aligned-rows-on-amd"),
        pytest.param("AMD Instinct MI300X", TENSILE, None, "used", id="amd-without-shapes"),
        pytest.param("NVIDIA H100 80GB HBM3", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", 4097, "used", id="nvjet"),
    ],
)
def test_a_slow_path_is_known_by_the_name_or_on_amd_by_the_shapes(
    device: str, kernel: str, k: int | None, use: str
) -> None:
    trace = TraceBuilder(device=device)
    trace.op("aten::mm", 0, 5, shapes=k and [[4096, k], [k, 4096]], types=k and ["c10::BFloat16"] * 2)
    trace.kernel(kernel, 10, 400, launch_us=1)
    time_ns = Rank(trace.trace()).account.tensor_core
    assert {name: ns for name, ns in time_ns.items() if ns} == {use: 400_000}


def test_shifting_gpu_times_for_disagreeing_clocks_does_not_change_the_timeline() -> None:
    trace = TraceBuilder()
    for row in range(10):
        trace.kernel(TENSOR_GEMM, 100 * row, 60, launch_us=100 * row + 25)
    rank = Rank(trace.trace())
    assert rank.clock_shift.shift_ns == 25_000
    assert rank.trace.gpu.start_ns[0] == 25_000
    assert any("clocks of CPU and GPU" in warning for warning in rank.trace.warnings)
    expected = compute_timeline(trace.to_bytes())
    assert expected is not None
    assert {name: to_plain(rank.timeline)[name] for name in expected if name != "items"} == {
        name: value for name, value in expected.items() if name != "items"
    }
