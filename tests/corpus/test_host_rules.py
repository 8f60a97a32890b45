"""What findings of PD002, PD003, PD105, PD106 and PD108 on real traces say."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.report.finding import Finding

RULES = ("PD002", "PD003", "PD105", "PD106", "PD108")
pytestmark = pytest.mark.corpus


def findings_of(path: Path) -> tuple[Finding, ...]:
    """What these rules report among all others."""
    return tuple(finding for finding in analyze_once(path).findings if finding.rule in RULES)


def test_a_batch_from_pageable_memory_has_its_line_and_what_pinning_would_give(corpus: Path) -> None:
    (finding,) = findings_of(corpus / "h100-timesformer-bf16.json.gz")
    assert str(finding.location).endswith("pipeline/model.py:40")
    evidence = {e.label: e.value for e in finding.evidence}
    assert (evidence["achieved"], evidence["pinned copies on this link"]) == (11.13, 51.2)


def test_the_copy_is_cheaper_than_the_wait_in_its_call(corpus: Path) -> None:
    (finding,) = findings_of(corpus / "v100-legacy-workers4.json.gz")
    evidence = {e.label: e.value for e in finding.evidence}
    assert evidence["CPU blocked per step"] > 2 * finding.cost_ns  # most of it waits for the step before


def test_a_slow_step_names_the_collective_that_it_waits_in(corpus: Path) -> None:
    (finding,) = findings_of(corpus / "cpu-only-rank34.json.gz")
    assert "Once in this trace: a step takes 425 ms, 1.9 times the median: longer collectives" in finding.title
    assert finding.cost_ns == 0
    assert {e.label: e.value for e in finding.evidence}["most more time in"] == "gloo:all_reduce"
