"""Findings on memory: what stands where others have a cost and a saving in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples

from perfdoctor.report.report import Report
from perfdoctor.reporters.finding_texts import describe_cost, short_cost, short_saving
from perfdoctor.reporters.html.html import Html
from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.pull_request import PullRequest
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Claim, Saving

BYTES = SavedBytes(1_000_000_000, 1_200_000_000, 1_400_000_000, 1_200_000_000)
FORMATS = [Terminal(), Terminal(verbosity=1), Markdown(), PullRequest(), Html()]


def report_with(severity: str, saved_bytes: SavedBytes | None) -> Report:
    report = samples.kernel()
    finding = replace(
        report.findings[0],
        cost_ns=0,
        share_of_step=0.0,
        saving=Saving(),
        claim=Claim(),
        severity=severity,
        saved_bytes=saved_bytes,
    )
    return replace(report, findings=(finding,))


def test_cells_of_what_gives_neither_time_nor_memory_are_empty() -> None:
    report = report_with("high", None)
    (finding,) = report.findings
    assert (describe_cost(report, finding), short_cost(report, finding), short_saving(finding)) == ("", "-", "-")


def test_a_cost_whose_saving_is_unknown_stays_unknown() -> None:
    report = report_with("high", None)
    finding = replace(report.findings[0], cost_ns=1000)
    assert describe_cost(report, finding).endswith("saving: n/a")
    assert short_saving(finding) == "n/a"


@pytest.mark.parametrize("reporter", FORMATS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("severity", ["high", "info"])
def test_each_format_says_the_bytes_and_nothing_where_there_are_none(reporter, severity) -> None:
    with_bytes = " ".join(reporter.render(report_with(severity, BYTES)).split())
    assert "lowers the peak by about 1.20 GB" in with_bytes or "| 1.20 GB |" in with_bytes
    for saved_bytes in (BYTES, None):
        text = reporter.render(report_with(severity, saved_bytes))
        assert "saving: n/a" not in text
        assert "lowers the peak" in text or saved_bytes is None or "1.20 GB" in text
