"""Law 11: more is asked for only where it would change the diagnosis, in one short line; the long form has the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from real_traces import analyze_once
from recordings import list_recordings, name_recording

from perfdoctor.report.report import Report
from perfdoctor.reporters import report_notes
from perfdoctor.reporters.terminal import Terminal

# A smaller share of time that nobody explains would not make another finding the first one.
_MIN_SHARE = 0.10


def asks_for_nothing(report: Report) -> bool:
    """Whether a report asks for more although no rule failed and hardly any time is without a finding."""
    asked = report_notes.describe_not_judged(report)
    failed = any(each.status == "failed" for each in report.outcomes)
    unexplained = sum(each.share for each in report.unexplained)
    return asked is not None and not failed and unexplained < _MIN_SHARE


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_only_what_would_change_the_diagnosis_is_asked_for(path: Path) -> None:
    report = analyze_once(path)
    lines = Terminal().render(report).splitlines()
    in_full = Terminal(verbosity=1).render(report)

    assert not asks_for_nothing(report)
    assert sum(line.startswith("Not judged") for line in lines) <= 1
    assert all(len(line) <= 80 for line in lines if line.startswith("Not judged"))
    for group in report_notes.skipped_rules(report):
        assert group.rules[0] in in_full  # what is not said in the short form is there


def test_without_the_law_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next((each for each in list_recordings() if each.name.startswith("t4-vgg16")), None)
    if path is None:
        pytest.skip("../shared is not mounted")
    asking = analyze_once(path)
    assert report_notes.describe_not_judged(asking) is not None  # 36 % of the time have no known limit
    report = replace(asking, unexplained=())
    assert not asks_for_nothing(report)

    monkeypatch.setattr(report_notes, "_MIN_DECISIVE_SHARE", 0.0)

    assert asks_for_nothing(report)
