"""On all real traces: severity by worth, and promises that hold together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Finding
from perfdoctor.report.report import Report

pytestmark = pytest.mark.corpus

# What issue 13 asks for.
MIN_WORTH_OF_HIGH = 0.03
MIN_SHARE_OF_POSITIVE_RANGES = 0.6


def names_of(corpus: Path) -> list[str]:
    return sorted(path.name for path in corpus.iterdir() if path.is_dir() or path.name.endswith(".json.gz"))


def reports(corpus: Path, report_on: Callable[[str], Report]) -> Iterator[tuple[str, Report]]:
    for name in names_of(corpus):
        yield name, report_on(name)


def step_ns(report: Report) -> float:
    return max((a.window_ns / max(len(a.steps), report.steps.count, 1) for a in report.account), default=0)


def worth_ns(finding: Finding) -> float:
    """What the fix is worth alone: as expected, else half of the bound."""
    alone = finding.saving.alone
    return alone.expected_ns if alone.expected_ns is not None else (alone.high_ns or finding.cost_ns) / 2


def test_no_finding_is_high_that_is_worth_less_than_three_percent(
    corpus: Path, report_on: Callable[[str], Report]
) -> None:
    high = [
        (name, finding.title, worth_ns(finding) / step_ns(report))
        for name, report in reports(corpus, report_on)
        for finding in report.findings
        if finding.severity == "high"
    ]
    assert len(high) > 10  # else nothing is tested
    assert [each for each in high if each[2] < MIN_WORTH_OF_HIGH] == []


def test_covered_findings_are_low_at_most_and_come_after_what_covers_them(
    corpus: Path, report_on: Callable[[str], Report]
) -> None:
    covered = 0
    for name, report in reports(corpus, report_on):
        for position, finding in enumerate(report.findings):
            assert (finding.saving.high_ns or 0) <= finding.cost_ns <= step_ns(report) + 1, (name, finding.title)
            if finding.covered_by is not None:
                covered += 1
                assert finding.covered_by < position, name
                assert SEVERITIES.index(finding.severity) <= SEVERITIES.index("low"), (name, finding.title)
    assert covered


def test_the_step_after_each_fix_never_rises(corpus: Path, report_on: Callable[[str], Report]) -> None:
    for name, report in reports(corpus, report_on):
        after = [e.value for f in report.findings for e in f.evidence if e.id == STEP_AFTER]
        assert all(later <= earlier for earlier, later in pairwise(after)), (name, after)
        promised = [f.saving.expected_ns for f in report.findings if f.saving.expected_ns is not None]
        assert (report.limit.after_fixes_ns is not None) == any(promised), name


def test_most_replayed_ranges_begin_above_zero(corpus: Path, report_on: Callable[[str], Report]) -> None:
    """A range from 0 to everything says nothing; a fix that saves nothing at all next to the others does not count."""
    replayed = [
        finding.saving
        for _, report in reports(corpus, report_on)
        for finding in report.findings
        if finding.saving.basis == "replayed" and finding.saving.high_ns
    ]
    assert len(replayed) > 20
    assert sum(bool(saving.low_ns) for saving in replayed) >= MIN_SHARE_OF_POSITIVE_RANGES * len(replayed)
