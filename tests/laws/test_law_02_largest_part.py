"""Law 2: the head names the largest part of the time, whatever it is: a finding, a one-off, a slice without a rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from all_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from real_traces import analyze_once
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report, UnexplainedSlice
from perfdoctor.reporters import verdict
from perfdoctor.reporters.report_facts import gpu_not_recorded, main_findings, share_of_step, step_length_ns
from perfdoctor.rules import registry
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import RuleCase, TraceBuilder
from perfdoctor.units import format_share

# Work may be well done: that of a slice without a rule counts only where it is most of the time.
_WORK, _MOST = ("compute", "bandwidth"), 0.5
# Of less than this the head of a report with nothing to fix says how busy the GPU is.
_MIN_SHARE = 0.10
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>"


def largest_share(report: Report) -> float:
    """The share of the largest part of the time that the findings and the unexplained slices of a report know of."""
    findings = [share_of_step(report, each) or 0.0 for each in report.findings if each.covered_by is None]
    slices = [each.share for each in report.unexplained if each.detail not in _WORK or each.share >= _MOST]
    return max([*findings, *slices], default=0.0)


def hides_largest(report: Report) -> bool:
    """Whether the head names a share of the time that is not the largest, or none where one is large."""
    wrong = any(each.makes_results_wrong for each in report.findings)
    largest = largest_share(report)
    if wrong or gpu_not_recorded(report) or largest < _MIN_SHARE:
        return False
    work = max((each.share for each in report.unexplained if each.detail in _WORK), default=0.0)
    if not main_findings(report) and work == largest:
        return False  # a healthy recording: the head says how busy the GPU is
    return format_share(largest) not in verdict.verdict_of(report)


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_the_head_names_the_largest_part(path: Path) -> None:
    report = analyze_once(path)

    assert not hides_largest(report), verdict.verdict_of(report)


def make_report(folder: Path, *, gap_us: int, sync_us: int, kernel_us: int) -> Report:
    """A loop with a kernel, a wait for it, and a pause of the CPU that nothing explains."""
    builder, at = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132), 0
    for _ in range(6):
        builder.kernel(ADD, at + 10, kernel_us, launch_us=at)
        at += kernel_us + sync_us + gap_us + 20
    return perfdoctor.analyze(str(builder.write(folder / "trace.json")))


@given(gap_us=st.integers(0, 5_000), sync_us=st.integers(0, 2_000), kernel_us=st.integers(5, 5_000))
def test_generated_loops(tmp_path_factory: pytest.TempPathFactory, gap_us: int, sync_us: int, kernel_us: int) -> None:
    report = make_report(tmp_path_factory.mktemp("t"), gap_us=gap_us, sync_us=sync_us, kernel_us=kernel_us)

    assert not hides_largest(report), verdict.verdict_of(report)


def test_the_law_is_quiet_where_nothing_is_large(tmp_path: Path) -> None:
    report = make_report(tmp_path, gap_us=0, sync_us=0, kernel_us=5_000)

    assert "busy for" in verdict.verdict_of(replace(report, findings=(), unexplained=()))


@pytest.mark.parametrize(("share", "named"), [(0.24, True), (0.05, False)])
def test_a_large_cost_without_a_fix_is_named_where_the_rest_is_work(tmp_path: Path, share: float, named: bool) -> None:
    report = make_report(tmp_path, gap_us=0, sync_us=0, kernel_us=5_000)
    step_ns = round(step_length_ns(report))
    found = Finding(
        "PD307",
        "recompute",
        "Activation checkpointing computes again",
        round(share * step_ns),
        share,
        "info",
        Saving(),
        "",
    )
    work = UnexplainedSlice(0, "bandwidth", round(0.7 * step_ns), 0.7, "ops")

    said = verdict.verdict_of(replace(report, findings=(found,), unexplained=(work,)))

    assert ("activation checkpointing computes again" in said) is named


_LARGER_BATCH = [case for case in CASES if case.rule == "PD509" and case.expected]


@pytest.mark.parametrize("case", _LARGER_BATCH, ids=str)
def test_a_larger_batch_is_a_hint_at_the_end_and_never_the_head(case: RuleCase) -> None:
    report = pipeline.diagnose_run(case.run(), registry.load_analyzers())

    assert [each.rule for each in report.findings].index("PD509") == len(report.findings) - 1
    assert report.findings[-1].severity == "info"
    assert "batch twice as large" not in verdict.verdict_of(report)


@pytest.mark.parametrize("case", [case for case in CASES if case.rule == "PD509" and not case.expected], ids=str)
def test_a_batch_that_is_large_enough_gets_no_hint(case: RuleCase) -> None:
    assert "PD509" not in {each.rule for each in pipeline.diagnose_run(case.run(), registry.load_analyzers()).findings}


def test_without_the_law_the_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that names the smallest part."""
    report = make_report(tmp_path, gap_us=3_000, sync_us=100, kernel_us=500)
    assert largest_share(report) >= _MIN_SHARE
    assert not hides_largest(report)

    monkeypatch.setattr(verdict, "largest_part", lambda _report: None)

    assert hides_largest(report)
