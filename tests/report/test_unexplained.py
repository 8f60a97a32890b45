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
    assert found.sentence.startswith("1 kernel a step at 18% of the roof in the median, mostly mm.")


def test_without_shapes_compute_cannot_be_judged() -> None:
    trace = TraceBuilder(device=A100).step(0, 1000).op("aten::mm", 0, 50).kernel(GEMM, 0, 1000, launch_us=0)
    found = slices_of(trace)["compute"]
    assert "is not known, because no input shapes were recorded (record_shapes=True)" in found.sentence


def test_without_a_device_compute_cannot_be_judged() -> None:
    found = slices_of(step_of_products(600, device=None))["compute"]
    assert "the peaks of this GPU are not known (--device names another)" in found.sentence


def test_pinned_copies_at_the_rate_of_the_link() -> None:
    """The GPU is busy all the time, and 95 % of it with copies."""
    trace = TraceBuilder(device=A100)
    for number in range(4):
        at = 1000 * number
        trace.step(at, 1000).op("aten::to", at, 20)
        trace.memcpy("HtoD", at, 950, 26_000_000, launch_us=at, pinned=True)
        trace.kernel(GEMM, at + 950, 50, launch_us=at + 10)
    found = slices_of(trace)["memcpy"]
    assert found.share == 0.95
    assert found.sentence == (
        "1 copy a step from pinned memory to the GPU of 26 MB in the mean, the same sizes again and again, at 27.4 "
        "GB/s, "
        "which is what this link does, on the stream of the kernels, so nothing computes meanwhile, from to."
    )


def test_slow_copies_to_pageable_memory_on_a_stream_of_their_own() -> None:
    trace = TraceBuilder(device=A100).kernel(GEMM, 0, 500, launch_us=0)
    trace.memcpy("DtoH", 500, 500, 1_000_000, stream=20, launch_us=5)
    assert slices_of(trace)["memcpy"].sentence == (
        "1 copy from the GPU to pageable memory of 1 MB in the mean, at 2 GB/s of the 25.6 GB/s that large copies "
        "reach on "
        "this link, on another stream than the kernels, but no kernel runs meanwhile."
    )


def test_copies_over_an_unknown_link_without_kernels() -> None:
    trace = TraceBuilder(device=None).memcpy("HtoD", 0, 500, 1_000_000, launch_us=0, pinned=True)
    said = slices_of(trace)["memcpy"].sentence
    assert "at 2 GB/s (the rate of this link is not known), and the GPU runs no kernel at all" in said


def test_memsets_are_named() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 500, launch_us=0).op("aten::zero_", 100, 20)
    trace.memset(500, 500, launch_us=105)
    assert slices_of(trace)["memcpy"].sentence == "1 memset, 500 us each in the median, from zero_."


def test_short_kernels_of_small_grids() -> None:
    trace = TraceBuilder(device=A100, sm_count=108).op("aten::add", 0, 900)
    for number in range(200):
        trace.kernel(POINTWISE, 4 * number, 4, launch_us=number / 100, grid=(8, 1, 1))
    assert slices_of(trace)["latency"].sentence == (
        "200 kernels, 4 us each in the median, mostly add; 8 thread blocks at most for the GPU's 108 multiprocessors."
    )


def test_collectives_with_their_sizes() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 500, launch_us=0)
    trace.kernel(ALL_REDUCE, 500, 500, 20, launch_us=1, comm=collective(in_elements=1 << 20, dtype="Float"))
    said = slices_of(trace)["communication"].sentence
    assert said.startswith("1 all_reduce collective of 4.19 MB in group")
    assert said.endswith("nothing computes during 500 us of them.")


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


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            late_launches,
            "19 gaps, 20 us in the median, 20 us at most, in which the launch came too late: the CPU launches every "
            "30 us, and a kernel takes 10 us in the median; mostly before add.",
        ),
        (
            queued_with_breaks,
            "19 gaps, 2 us in the median, 2 us at most, before work that was queued already: this is what the device "
            "takes "
            "from one item to the next.",
        ),
        (
            unlinked,
            "before ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn; the launches of this work are not",
        ),
    ],
)
def test_launching(build: Callable[[], TraceBuilder], said: str) -> None:
    assert said in slices_of(build())["idle_launch"].sentence


def test_a_long_pause_names_what_the_cpu_was_in() -> None:
    trace = late_launches().op("my::preprocess", 580, 3000)
    trace.kernel(GEMM, 3600, 10, launch_us=3590)
    said = slices_of(trace)["idle_launch"].sentence
    assert said.endswith("the longest gap takes 3.02 ms, while the CPU was in my::preprocess.")


def test_a_pause_without_events_of_the_cpu_says_so() -> None:
    trace = late_launches().kernel(GEMM, 3600, 10, launch_us=3590)
    assert "most of it outside of all ops and calls of the CPU" in slices_of(trace)["idle_launch"].sentence


def test_syncs_with_call_op_and_line() -> None:
    trace = TraceBuilder()
    for at in (0, 1000):
        trace.step(at, 1000).kernel(GEMM, at, 500, launch_us=at)
        trace.range("@train.py:12", at + 10, 530).op("aten::item", at + 10, 520)
        trace.call("cudaStreamSynchronize", at + 20, 490)
        trace.kernel(GEMM, at + 700, 300, launch_us=at + 690)
    assert slices_of(trace)["idle_sync"].sentence == (
        "The queue runs empty in 1 wait a step of the CPU, cudaStreamSynchronize, from item at train.py:12; 200 us of "
        "idle "
        "time after each in the median, 200 us at most."
    )


def test_loader_and_allocator() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 300, launch_us=0).range(LOADER, 300, 400).op("aten::empty", 700, 200)
    trace.call("cudaMalloc", 700, 200)
    trace.kernel(GEMM, 950, 50, launch_us=940)
    found = slices_of(trace)
    assert found["idle_dataloader"].sentence == (
        "The loop waits for 1 batch, 400 us each in the median (_SingleProcessDataLoaderIter)."
    )
    assert found["idle_allocator"].sentence == "1 call to allocate or free memory (cudaMalloc), from empty."


def test_a_stream_that_waits_for_another() -> None:
    trace = TraceBuilder().kernel(GEMM, 0, 300, launch_us=0)
    trace.kernel(ALL_REDUCE, 600, 400, 20, launch_us=1)
    said = slices_of(trace)["idle_communication"].sentence
    assert said == (
        "One gap of 300 us, waiting for an event of another stream before ncclDevKernel_AllReduce_Sum_f32_RING_LL."
    )


def test_a_queued_kernel_that_did_not_start() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 20).kernel(GEMM, 0, 300, launch_us=0).kernel(GEMM, 600, 400, launch_us=6)
    assert slices_of(trace)["idle_unexplained"].sentence == (
        "One gap of 300 us, before mm: the work had been launched already, and what it waited for is not in the file "
        "(a "
        "callback on the host, another process on this GPU)."
    )


def test_gpu_events_that_were_not_recorded() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 500)
    trace.call("cudaLaunchKernel", 10, 5)
    assert "the file has no GPU event" in slices_of(trace)["idle_unexplained"].sentence


def test_a_program_on_the_cpu() -> None:
    trace = TraceBuilder(device=None).op("aten::addmm", 0, 400).op("aten::add", 3000, 400)
    found = slices_of(trace)
    assert found["compute"].sentence.startswith(
        "1 op on the CPU, most of the time in addmm; how fast this CPU can be is not known"
    )
    assert found["idle_unexplained"].sentence.startswith(
        "1 stretch, 2.6 ms in the median, 2.6 ms at most, in which no op"
    )


def test_breaks_between_ops_on_the_cpu() -> None:
    trace = TraceBuilder(device=None)
    for at in (0, 100, 200):
        trace.op("aten::addmm", at, 50)
    assert slices_of(trace)["idle_launch"].sentence == (
        "2 breaks between ops, 50 us each in the median, in which Python and the framework run and nothing computes."
    )


def test_time_of_nested_ops_belongs_to_the_innermost() -> None:
    trace = TraceBuilder(device=None).op("ConvolutionBackward0", 0, 100).op("aten::convolution_backward", 0, 100)
    trace.op("aten::empty", 0, 10)
    assert "1 op on the CPU, most of the time in convolution_backward in ConvolutionBackward0;" in (
        slices_of(trace)["compute"].sentence
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
