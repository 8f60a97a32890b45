"""Laws of comparisons, on any two traces: what is added up adds up, and everything can be printed."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from trace_strategies import any_file, rank_of

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.comparison.comparison import TABLES, Comparison, compare_recordings
from perfdoctor.comparison.recording import Recording, recording_of_report
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.reporters.comparison_terminal import ComparisonTerminal
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.reporters.write_comparison import render_comparison

VALIDATOR = jsonschema.Draft202012Validator(load_schema("comparison"))
any_pair = settings(suppress_health_check=[HealthCheck.too_slow])


def recording_of(file: dict[str, Any]) -> Recording:
    summary = pipeline.summarize_rank(rank_of(file), options=AnalysisOptions(breakdown=True))
    return recording_of_report(pipeline.report_on_summaries([from_rank(summary)], ()), "a trace", unprofiled=False)


def compare(*files: dict[str, Any]) -> Comparison:
    one, other = map(recording_of, files)
    return compare_recordings([one], [other], "1.0")


@any_pair
@given(any_file(), any_file())
def test_tables_and_account_add_up_and_everything_can_be_printed(before: dict[str, Any], after: dict[str, Any]) -> None:
    comparison = compare(before, after)
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    if comparison.account:
        assert sum(row.difference_ns for row in comparison.account) == difference_ns
        assert sum(row.before_ns for row in comparison.account) == comparison.before.mean_ns
    for name in TABLES:
        table = comparison.table(name)
        if table.is_known:
            assert table.difference_ns == difference_ns, name
            assert sum(row.difference_ns for row in table.rows) + (table.remainder_ns or 0) == difference_ns, name
            assert table.remainder_ns == 0, name  # few rows: all are there, and each side's are its mean step
    VALIDATOR.validate(json.loads(render_comparison(comparison, ".json")))
    for verbosity in (-1, 0, 1):
        text = ComparisonTerminal(verbosity=verbosity).render(comparison)
        assert max(map(len, text.splitlines())) <= 80
    assert render_comparison(comparison, ".md").startswith("## perfdoctor compare")


@any_pair
@given(any_file())
def test_a_trace_against_itself_differs_in_nothing(file: dict[str, Any]) -> None:
    comparison = compare(file, file)
    assert {reason.aspect for reason in comparison.reasons} <= {"steps"}
    assert comparison.step.verdict in ("same", "unknown")
    assert comparison.step.difference_ns in (0, None)
    for name in TABLES:
        assert {row.difference_ns for row in comparison.table(name).rows} <= {0}, name
        assert {row.status for row in comparison.table(name).rows} <= {"same"}, name
