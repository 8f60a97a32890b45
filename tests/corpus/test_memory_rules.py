"""What PD301 to PD306 say of real traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.report.finding import Finding

pytestmark = pytest.mark.corpus

RULES = tuple(f"PD30{i}" for i in range(1, 7))


def findings_of(path: Path) -> tuple[Finding, ...]:
    """What these rules report among all others."""
    return tuple(finding for finding in analyze_once(path).findings if finding.rule in RULES)


def test_costliest_chain_is_the_norm_written_out(corpus: Path) -> None:
    findings = {f.rule: f for f in findings_of(corpus / "h100-qwen-bf16.json.gz")}
    evidence = {e.label: e.value for e in findings["PD301"].evidence}
    assert evidence["costliest chain"] == "add > copy_ > pow > mul > copy_ > mul"
    assert str(findings["PD306"].location).endswith("text_base_model.py:28")


def test_passes_of_an_optimizer_are_counted(corpus: Path) -> None:
    title = next(f.title for f in findings_of(corpus / "v100-bare-list-workers4.json.gz") if f.rule == "PD303")
    assert title == "SGD goes over the parameters 3 times tensor by tensor: 483 kernels a step"
