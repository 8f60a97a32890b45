"""Slices of the account that no finding claims: which are listed, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from trace_strategies import File, any_file, lawful_fleet, rank_of

import perfdoctor
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.pipeline import diagnose_run, run_rule, summarize_rank
from perfdoctor.rank import Rank
from perfdoctor.report.report import UnexplainedSlice
from perfdoctor.report.unexplained import MIN_SHARE, merge_slices, reduce_slice
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import FleetAnalyzer, Run
from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.units import format_bytes, format_rate, format_time

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
A100 = "NVIDIA A100-SXM4-40GB"


def slices_of(trace: TraceBuilder) -> dict[str, UnexplainedSlice]:
    """The slices of a trace by detail, with no rule that could claim one."""
    return {each.detail: each for each in summarize_rank(Rank(trace.trace())).unexplained}


def product(size: int = 4096) -> dict[str, object]:
    return {"shapes": [[size, size], [size, size]], "types": ["c10::BFloat16", "c10::BFloat16"]}


def step_of_products(kernel_us: float, size: int = 4096, device: str | None = A100) -> TraceBuilder:
    """Two steps, each one matrix product with recorded shapes: at the A100's peak 4096 cubed takes 440 us."""
    trace = TraceBuilder(device=device)
    for at in (0, kernel_us):
        trace.step(at, kernel_us).op("aten::mm", at, 50, **product(size))
        trace.kernel(GEMM, at, kernel_us, launch_us=at)
    return trace


def test_kernels_near_their_roof_need_no_excuse() -> None:
    assert not slices_of(step_of_products(600))


def test_a_product_far_from_its_roof_is_listed() -> None:
    (found,) = slices_of(step_of_products(3000)).values()
    assert found.share == 1.0
    assert found.ns == 6_000_000
    assert found.sentence == (
        "1 kernel a step, 3 ms in the median, 3 ms at most: 100% in mm; they reach 18% of their roof in the median."
    )


def test_without_shapes_compute_cannot_be_judged() -> None:
    trace = TraceBuilder(device=A100).step(0, 1000).op("aten::mm", 0, 50).kernel(GEMM, 0, 1000, launch_us=0)
    found = slices_of(trace)["compute"]
    assert "is not known, because no input shapes were recorded (record_shapes=True)" in found.sentence


def test_without_a_device_compute_cannot_be_judged() -> None:
    found = slices_of(step_of_products(600, device=None))["compute"]
    assert "the peaks of this GPU are not known (--device names another)" in found.sentence


def late_launches() -> TraceBuilder:
    """Each kernel of 10 us is launched 20 us after the one before it has ended."""
    trace = TraceBuilder()
    for number in range(20):
        at = 30 * number
        trace.op("aten::add", at, 8).kernel(GEMM, at, 10, launch_us=at)
    return trace


def queued_with_breaks() -> TraceBuilder:
    """Kernels of 10 us, launched in time, with 2 us between them."""
    trace = TraceBuilder()
    for number in range(20):
        trace.kernel(GEMM, 12 * number, 10, launch_us=number / 10)
    return trace


def unlinked() -> TraceBuilder:
    trace = TraceBuilder().op("aten::mm", 0, 600)
    for number in range(20):
        trace.kernel(GEMM, 30 * number, 10)
    return trace


def copies() -> TraceBuilder:
    trace = TraceBuilder().kernel(GEMM, 0, 500, launch_us=0).range("@train.py:12 main", 100, 50).op("aten::to", 100, 20)
    return trace.memcpy("HtoD", 500, 500, 1_000_000, launch_us=105)


def short_kernels() -> TraceBuilder:
    trace = TraceBuilder(device=A100, sm_count=108).op("aten::add", 0, 900)
    for number in range(200):
        trace.kernel(POINTWISE, 4 * number, 4, launch_us=number / 100, grid=(8, 1, 1))
    return trace


def collectives() -> TraceBuilder:
    trace = TraceBuilder().kernel(GEMM, 0, 500, launch_us=0)
    return trace.kernel(ALL_REDUCE, 500, 500, 20, launch_us=1, comm=collective(in_elements=1 << 20, dtype="Float"))


def long_pause() -> TraceBuilder:
    return late_launches().op("my::preprocess", 580, 3000).kernel(GEMM, 3600, 10, launch_us=3590)


def syncs() -> TraceBuilder:
    trace = TraceBuilder()
    for at in (0, 1000):
        trace.step(at, 1000).kernel(GEMM, at, 500, launch_us=at)
        trace.range("@train.py:12", at + 10, 530).op("aten::item", at + 10, 520)
        trace.call("cudaStreamSynchronize", at + 20, 490)
        trace.kernel(GEMM, at + 700, 300, launch_us=at + 690)
    return trace


def loader_and_allocator() -> TraceBuilder:
    trace = TraceBuilder().kernel(GEMM, 0, 300, launch_us=0).range(LOADER, 300, 400).op("aten::empty", 700, 200)
    trace.call("cudaMalloc", 700, 200)
    return trace.kernel(GEMM, 950, 50, launch_us=940)


def stream_that_waits() -> TraceBuilder:
    trace = TraceBuilder().kernel(GEMM, 0, 300, launch_us=0)
    return trace.kernel(ALL_REDUCE, 600, 400, 20, launch_us=1)


def queued_kernel() -> TraceBuilder:
    return TraceBuilder().op("aten::mm", 0, 20).kernel(GEMM, 0, 300, launch_us=0).kernel(GEMM, 600, 400, launch_us=6)


@pytest.mark.parametrize(
    ("build", "detail", "said"),
    [
        (late_launches, "idle_launch", "19 gaps, 20 us in the median, 20 us at most: 100% in add."),
        (
            queued_with_breaks,
            "idle_launch",
            "19 gaps, 2 us in the median, 2 us at most: 100% outside of all lines, ops and ranges of the file; before "
            "work that was queued already: this is what the device takes from one item to the next.",
        ),
        (
            unlinked,
            "idle_launch",
            "19 gaps, 20 us in the median, 20 us at most: 100% in mm; the launches of this work are not in the file.",
        ),
        (copies, "memcpy", "1 copy of 500 us: 100% at train.py:12, mostly to."),
        (short_kernels, "latency", "200 kernels, 4 us in the median, 4 us at most: 100% in add."),
        (collectives, "communication", "1 collective of 500 us: 100% in ncclDevKernel_AllReduce_Sum_f32_RING_LL."),
        (long_pause, "idle_launch", "20 gaps, 20 us in the median, 3.02 ms at most: 89% in preprocess, 11% in add."),
        (syncs, "idle_sync", "1 gap a step, 200 us in the median, 200 us at most: 100% at train.py:12, mostly item."),
        (loader_and_allocator, "idle_dataloader", "1 gap of 400 us: 100% at DataLoader."),
        (loader_and_allocator, "idle_allocator", "1 gap of 200 us: 100% in empty."),
        (
            stream_that_waits,
            "idle_communication",
            "1 gap of 300 us: 100% outside of all lines, ops and ranges of the file.",
        ),
        (
            queued_kernel,
            "idle_unexplained",
            "1 gap of 300 us: 100% in mm; the work had been launched already, and what it waited for is not in the "
            "file (a callback on the host, another process on this GPU).",
        ),
    ],
)
def test_a_slice_has_its_place_and_what_runs_there(build: Callable[[], TraceBuilder], detail: str, said: str) -> None:
    assert slices_of(build())[detail].sentence == said


def test_gpu_events_that_were_not_recorded() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 500)
    trace.call("cudaLaunchKernel", 10, 5)
    assert "the file has no GPU event" in slices_of(trace)["idle_unexplained"].sentence


def test_a_program_on_the_cpu() -> None:
    trace = TraceBuilder(device=None).op("aten::addmm", 0, 400).op("aten::add", 3000, 400)
    found = slices_of(trace)
    assert found["compute"].sentence == "1 op of 400 us: 100% in addmm; how fast this CPU can be is not known."
    assert found["idle_unexplained"].sentence == (
        "1 stretch of 2.6 ms: 100% outside of all lines, ops and ranges of the file; Python stacks (with_stack=True) "
        "would show what it is."
    )


def test_what_a_finding_claims_is_not_listed(tmp_path: Path) -> None:
    """Weights that are copied before each layer: PD109 claims their time."""
    trace = TraceBuilder(device=A100)
    for number in range(20):
        at = 890 * number
        trace.memcpy("HtoD", at, 800, 20_000_000, launch_us=at, pinned=True)
        trace.op("aten::mm", at + 10, 20, **product(2048)).kernel(GEMM, at + 800, 80, launch_us=at + 12)
    report = perfdoctor.analyze(trace.write(tmp_path / "trace.json"))
    assert [finding.rule for finding in report.findings] == ["PD109"]
    assert "memcpy" not in {each.detail for each in report.unexplained}
    report = perfdoctor.analyze(tmp_path / "trace.json", ignore=["PD109"])
    assert "memcpy" in {each.detail for each in report.unexplained}


def test_only_time_near_the_roof_explains_everything(tmp_path: Path) -> None:
    near = perfdoctor.analyze(step_of_products(600).write(tmp_path / "near.json"))
    unknown = perfdoctor.analyze(step_of_products(600, device=None).write(tmp_path / "unknown.json"))
    assert not near.findings
    assert near.explains_everything
    assert not unknown.explains_everything


def test_one_slice_of_each_detail_in_a_fleet() -> None:
    slices = [UnexplainedSlice(rank, "latency", 10 + rank, 0.1 + rank / 100, "Kernels.") for rank in range(4)]
    (merged,) = merge_slices(slices)
    assert merged.rank == 3
    assert merged.sentence == "Kernels. Ranks 0-2 have such a slice, too."
    assert merge_slices(slices[:1]) == (slices[0],)
    assert merge_slices(slices[:2])[0].sentence == "Kernels. Rank 0 has such a slice, too."


def test_a_slice_shrinks_by_what_a_finding_over_ranks_claims() -> None:
    slices = (UnexplainedSlice(0, "communication", 100, 0.2, ""), UnexplainedSlice(0, "latency", 90, 0.18, ""))
    assert reduce_slice(slices, "communication", 50) == (UnexplainedSlice(0, "communication", 50, 0.1, ""), slices[1])
    assert reduce_slice(slices, "communication", 80) == (slices[1],)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (POINTWISE, "vectorized_elementwise_kernel<AddFunctor>"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)", "CatArrayBatchedCopy"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT_", "aiter::add_rmsnorm_quant_kernel"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("_Z", "_Z"),
        ("_Z99x", "_Z99x"),
    ],
)
def test_short_names_of_kernels(name: str, short: str) -> None:
    assert short in (short_kernel_name(name), f"aiter::{short_kernel_name(name)}")


def test_figures_have_three_digits() -> None:
    assert [format_time(ns) for ns in (64, 999_600, 1_234_567, 12.5e9)] == ["0.064 us", "1 ms", "1.23 ms", "12.5 s"]
    assert [format_bytes(n) for n in (4096, 30e6, 1.5e12)] == ["4.1 KB", "30 MB", "1,500 GB"]
    assert format_rate(27.7e9) == "27.7 GB/s"


@given(any_file())
def test_nothing_large_stays_unsaid_in_any_trace(file: File) -> None:
    rank = rank_of(file)
    rules = [rule for rule in registry.load_analyzers() if not issubclass(rule, FleetAnalyzer)]
    findings = [finding for rule in rules for finding in run_rule(rule, Run((rank,)))[0]]
    summary = summarize_rank(rank, known_findings=findings)
    said = {each.detail: each for each in summary.unexplained}
    assert all(each.sentence.endswith(".") and each.ns > 0 and MIN_SHARE < each.share <= 1 for each in said.values())
    claimed = iv.union_of(finding.claim.intervals for finding in findings)
    for detail, part in rank.account.parts.items():
        left_ns = iv.total(iv.subtract(part, claimed))
        if detail not in said and detail not in ("compute", "bandwidth"):
            assert left_ns <= MIN_SHARE * rank.window_ns


@given(lawful_fleet())
def test_a_fleet_lists_each_detail_once(files: list[File]) -> None:
    report = diagnose_run(Run(tuple(map(rank_of, files))), registry.load_analyzers())
    details = [each.detail for each in report.unexplained]
    assert len(details) == len(set(details))
