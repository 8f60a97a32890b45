"""Law 7: one place, one fix, one worth. The same line with the same fix is one finding, whichever rules saw a part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import analyze_once
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor.report import pricing
from perfdoctor.report.report import Report
from perfdoctor.testing import TraceBuilder

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>"
FIX = "torch.randn(..., device=x.device)"


def says_a_fix_twice(report: Report) -> bool:
    """Whether several findings of a rank have one line and one fix."""
    fixes = Counter(
        (each.rank, str(each.location), each.actions)
        for each in report.findings
        if each.location is not None and each.actions and not each.makes_results_wrong
    )
    return any(count > 1 for count in fixes.values())


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_no_line_has_a_fix_twice(path: Path) -> None:
    assert not says_a_fix_twice(analyze_once(path))


def make_report(
    folder: Path, *, make_us: int, first_us: int = 0, steps: bool = True, op: str = "aten::randn", copied: bool = True
) -> Report:
    """A loop of six steps with 1.6 ms of kernels, each with a tensor made on the CPU first.

    Args:
        folder: Where the trace is written.
        make_us: How long making it takes.
        first_us: How much longer it takes in the first step.
        steps: Whether the steps are annotated.
        op: What makes it.
        copied: Whether it is copied to the GPU.
    """
    trace, at = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132), 0
    for number in range(6):
        begin, ready = at, at + make_us + (first_us if number == 0 else 0)
        trace.frame("train.py(12): train_step", begin, ready - begin + 400)
        trace.op(op, begin + 5, ready - begin - 10)
        if copied:
            trace.op("aten::to", ready, 400).op("aten::copy_", ready + 3, 390)
            call = trace.call("cudaMemcpyAsync", ready + 10, 5)
            trace.memcpy("Memcpy HtoD (Pageable -> Device)", ready + 50, 320, 4 << 20, correlation=call)
            trace.call("cudaStreamSynchronize", ready + 20, 360)
        at = ready + 420
        for _ in range(8):
            trace.op("aten::add", at, 20).kernel(ADD, at + 15, 180, launch_us=at + 5)
            at += 200
        if steps:
            trace.step(begin, at - begin, number)
    return perfdoctor.analyze(str(trace.write(folder / "trace.json")))


@given(make_us=st.integers(100, 5_000), first_us=st.sampled_from([0, 3_000, 12_000]), steps=st.booleans())
def test_a_tensor_made_on_the_cpu_is_one_finding(
    tmp_path_factory: pytest.TempPathFactory, make_us: int, first_us: int, steps: bool
) -> None:
    report = make_report(tmp_path_factory.mktemp("t"), make_us=make_us, first_us=first_us, steps=steps)

    assert not says_a_fix_twice(report)
    (finding,) = [each for each in report.findings if each.fix == FIX]
    count = 1 if steps else 6
    # The time that making and copying takes, and no more: the kernels stay.
    assert finding.cost_ns <= count * (make_us + first_us + 420) * 1000
    assert (finding.saving.high_ns or 0) <= finding.cost_ns


def test_parts_are_named_in_the_evidence(tmp_path: Path) -> None:
    report = make_report(tmp_path, make_us=1_500, first_us=12_000)
    (finding,) = [each for each in report.findings if each.fix == FIX]
    parts = [each for each in finding.evidence if each.label.startswith("part of it")]

    assert finding.rule == "PD106"
    assert {each.label[len("part of it (") :][:5] for each in parts} == {"PD102", "PD103"}
    assert max(int(each.value or 0) for each in parts) < finding.cost_ns


@pytest.mark.parametrize(("op", "copied"), [("aten::randn", False), ("aten::mm", True), ("aten::sort", True)])
def test_other_work_of_the_cpu_has_another_fix(tmp_path: Path, op: str, copied: bool) -> None:
    report = make_report(tmp_path, make_us=1_500, op=op, copied=copied)

    assert any(each.rule == "PD103" for each in report.findings)
    assert not any(each.fix is not None and "device=x.device" in each.fix for each in report.findings)


def test_without_the_law_the_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "join_by_fix", lambda findings, _ledger: list(findings))

    assert says_a_fix_twice(make_report(tmp_path, make_us=1_500))
