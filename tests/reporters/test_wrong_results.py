"""A finding on wrong results: every format says so, and none speaks of a time that it costs or saves."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import report_samples as samples

from perfdoctor.report.report import Report
from perfdoctor.reporters.finding_gate import Gate
from perfdoctor.reporters.finding_texts import describe_cost, plain_message, short_cost
from perfdoctor.reporters.github_annotations import GithubAnnotations
from perfdoctor.reporters.html.html import Html
from perfdoctor.reporters.junit import Junit
from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.pull_request import PullRequest
from perfdoctor.reporters.sarif import Sarif
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.reporters.verdict import verdict_of
from perfdoctor.savings.saving import Claim, Saving

TITLE = "The training is wrong: gradients are clipped before they are unscaled"


def wrong() -> Report:
    report = samples.kernel()
    finding = replace(
        report.findings[0],
        title=TITLE,
        cost_ns=0,
        share_of_step=0.0,
        saving=Saving(),
        claim=Claim(),
        severity="high",
        makes_results_wrong=True,
    )
    return replace(report, findings=(finding,))


def test_texts_name_no_time() -> None:
    report = wrong()
    (finding,) = report.findings
    assert describe_cost(report, finding).startswith("makes the results wrong")
    assert short_cost(report, finding) == "wrong results"
    assert "Makes the results wrong" in plain_message(report, finding)
    assert "Above all: the training is wrong" in verdict_of(report)


@pytest.mark.parametrize(
    "reporter",
    [Terminal(), Terminal(verbosity=1), Markdown(), PullRequest(), Sarif(), Junit(), GithubAnnotations(), Html()],
    ids=lambda reporter: type(reporter).__name__,
)
def test_each_format_says_that_it_is_wrong(reporter) -> None:
    text = reporter.render(wrong())
    assert "results wrong" in text or "wrong results" in text
    assert not re.search(r"costs (0|n/a)|saving: n/a|saves nothing", text)


def test_the_quiet_form_says_it_in_place_of_a_cost() -> None:
    line = Terminal(verbosity=-1).render(wrong()).split("\n")[-2]
    assert re.match(r"HIGH +PD\d+ wrong results  ", line)


def test_the_gate_fails_on_it() -> None:
    (judgement,) = Gate("high").judge(wrong())
    assert judgement.fails
