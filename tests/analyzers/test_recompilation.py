"""What PD108 makes of a run that compiles in few of its steps for most of its time."""

from __future__ import annotations

from all_cases import CASES

from perfdoctor import pipeline
from perfdoctor.analyzers.pd108_recompilation import Recompilation
from perfdoctor.reporters.verdict import verdict_of


def test_what_most_of_the_run_goes_to_is_the_head_and_no_one_off() -> None:
    case = next(each for each in CASES if str(each) == "PD108-most-of-the-run-in-a-few-steps")
    report = pipeline.diagnose_run(case.run(), [Recompilation])
    assert not report.findings[0].is_one_off
    assert "of it: 90% of the run compiles: torch.compile takes 900 ms in 11 of 126 steps" in verdict_of(report)
