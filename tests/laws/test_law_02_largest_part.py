"""Law 2: the head names the place with most of the time that may go, or what nothing explains where that is more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report_samples
from all_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from real_traces import analyze_once
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.report.report import Report
from perfdoctor.reporters import verdict
from perfdoctor.reporters.place_text import main_places, name_place
from perfdoctor.reporters.report_facts import gpu_not_recorded, main_findings, share_of_step
from perfdoctor.rules import registry
from perfdoctor.testing import RuleCase, TraceBuilder
from perfdoctor.units import format_share

MS = 1_000_000
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>"


def hides_largest(report: Report) -> bool:
    """Whether the head names neither the first place, nor scattered time that nothing explains and that is more."""
    if any(each.makes_results_wrong for each in report.findings) or gpu_not_recorded(report):
        return False
    place = next(iter(main_places(report)), None)
    if place is None:
        return False
    head = verdict.verdict_of(report)
    first = next(iter(main_findings(report)), None)
    if first is not None and place.kind != "line" and (share_of_step(report, first) or 0.0) >= (place.share or 0.0):
        return format_share(share_of_step(report, first)) not in head
    slices = [each.share for each in report.unexplained if each.detail not in ("compute", "bandwidth")]
    costs = [share_of_step(report, each) or 0.0 for each in main_findings(report)]
    scattered = max(slices, default=0.0)
    if place.kind != "line" and scattered > max([place.share or 0.0, *costs]):
        return format_share(scattered) not in head
    return format_share(place.share) not in head or name_place(place) not in head


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


def test_work_that_a_finding_takes_away_goes_before_a_guess() -> None:
    """Of 16 ms of work at one line a fix saves 16 ms; another has 13 ms, of which a fifth may go and all overhead."""
    report = report_samples.loader_stall()
    (finding, *_) = report.findings
    saved = replace(finding, saving=replace(finding.saving, low_ns=0, expected_ns=16 * MS, high_ns=16 * MS))
    report = replace(report, findings=(saved, *report.findings[1:]))
    overhead = dict.fromkeys(DETAILS, 0) | {"bandwidth": 10 * MS, "latency": 3 * MS}
    other = report_samples.placed(report, share=0.3, ns=13 * MS, line=32, causes=overhead)
    for findings, line in (((0,), 30), ((), 32)):
        both = report_samples.placed(other, share=0.37, ns=16 * MS, line=30, findings=findings)
        assert main_places(both)[0].line == line


def test_without_the_law_the_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that names the smallest part."""
    report = make_report(tmp_path, gap_us=3_000, sync_us=100, kernel_us=500)
    assert not hides_largest(report)

    monkeypatch.setattr(verdict, "main_places", lambda _report: main_places(report)[-1:])
    monkeypatch.setattr(verdict, "_find_scattered", lambda _report, _place: None)

    assert hides_largest(report)
