"""The passes of a serving engine as reports show them."""

from __future__ import annotations

import pytest
from engine_programs import Pass, serve

import perfdoctor
from perfdoctor.report.report import Report
from perfdoctor.reporters.pass_rows import pass_text_of
from perfdoctor.reporters.time_rows import TimeRow
from perfdoctor.reporters.write_report import render_report
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace


def report_on(trace: TraceBuilder, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return perfdoctor.analyze(trace.write(tmp_path_factory.mktemp("trace") / "trace.json"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    prefill = Pass([1500, 500], 0, gpu_us=40_000, graphed=False, host_us={"preparing": 4000})
    return report_on(serve([prefill, *[Pass(host_us={"scheduling": 900, "messages": 600})] * 4]), tmp_path_factory)


def test_a_row_for_each_kind_of_pass(report: Report) -> None:
    text = pass_text_of(report)
    assert text is not None
    assert text.title == "Passes of the engine: mean time, GPU busy"
    prompts, tokens = (
        TimeRow(
            "41.5 ms", "96%", "1 prefill pass of 2 requests, 2,000 tokens; idle: scheduling 900 us, messages 600 us"
        ),
        TimeRow("11.1 ms", "90%", "4 decode passes of 4 requests; idle: scheduling 675 us, messages 450 us"),
    )
    assert text.rows == (tokens, prompts)  # most of the time comes first


@pytest.mark.parametrize("kind", [".txt", ".md", ".html"])
def test_all_formats_show_the_rows(report: Report, kind: str) -> None:
    text = " ".join(render_report(report, kind).split())
    for part in ("Passes of the engine: mean time, GPU busy", "1 prefill pass of 2 requests, 2,000 tokens", "11.1 ms"):
        assert part in text


def test_a_pass_that_was_recorded_alone_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    alone = pass_text_of(report_on(serve([Pass()], overlapped=True), tmp_path_factory))
    waiting = pass_text_of(report_on(serve([Pass()]), tmp_path_factory))
    starved = pass_text_of(
        report_on(serve([Pass(graphed=False, host_us={"launch": 500})], overlapped=True), tmp_path_factory)
    )
    assert alone is not None
    assert waiting is not None
    assert "recorded alone" in alone.rows[0].what
    assert "recorded alone" not in waiting.rows[0].what
    assert starved is not None
    assert "recorded alone" not in starved.rows[0].what


def test_other_programs_have_no_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    report = report_on(build_healthy_trace(), tmp_path_factory)
    assert report.to_dict()["passes"] == []
    assert pass_text_of(report) is None
    assert "Passes of the engine" not in render_report(report, ".txt")
