"""PD301 to PD306 on real traces: which rules fire, and that none does on well-written programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.report.finding import Finding

RULES = tuple(f"PD30{i}" for i in range(1, 7))

EXPECTED_RULES = {
    "h100-qwen-bf16.json.gz": {"PD301", "PD306"},  # RMSNorm and rotary embedding written out, contiguous before SDPA
    "a100-sam-fp32.json.gz": {"PD301", "PD302", "PD306"},
    "a100-sam-bf16.json.gz": {"PD301"},  # the part outside of its compiled region
    "a100-nccl-config": {"PD302", "PD303"},
    "mi210-gpu-only.json.gz": {"PD302"},
    "mi300x-resnet-ddp.json.gz": {"PD302"},
    "v100-bare-list-workers4.json.gz": {"PD303", "PD304"},
    "v100-df-index": {"PD303", "PD304"},
}
WELL_WRITTEN = (
    "a100-ddp-control",  # Apex's FusedAdam; concatenated features
    "a100-negative-queue",
    "a100-vit-graph-bf16.json.gz",  # compiled
    "triton-compile.json.gz",
    "h100-nsfw-vit-bf16.json.gz",  # one patch embedding
    "h100-timesformer-bf16.json.gz",
    "v100-ns-resolution",  # a foreach optimizer of 1 % of the step
    "rtx4090-llama-2ranks",
    "sampled-w128",  # Shampoo
    "v100-torchrec-4ranks",
)


def findings_of(path: Path) -> tuple[Finding, ...]:
    """What these rules report among all others."""
    return tuple(finding for finding in analyze_once(path).findings if finding.rule in RULES)


@pytest.mark.parametrize("name", EXPECTED_RULES)
def test_rules_that_fire(corpus: Path, name: str) -> None:
    findings = findings_of(corpus / name)
    assert {f.rule for f in findings} == EXPECTED_RULES[name]
    assert all((f.saving.high_ns or 0) <= f.cost_ns for f in findings)


@pytest.mark.parametrize("name", WELL_WRITTEN)
def test_well_written_programs_get_no_finding(corpus: Path, name: str) -> None:
    assert findings_of(corpus / name) == ()


def test_costliest_chain_is_the_norm_written_out(corpus: Path) -> None:
    findings = {f.rule: f for f in findings_of(corpus / "h100-qwen-bf16.json.gz")}
    evidence = {e.label: e.value for e in findings["PD301"].evidence}
    assert evidence["costliest chain"] == "add > copy_ > pow > mul > copy_ > mul"
    assert str(findings["PD306"].location).endswith("text_base_model.py:28")


def test_passes_of_an_optimizer_are_counted(corpus: Path) -> None:
    title = next(f.title for f in findings_of(corpus / "v100-bare-list-workers4.json.gz") if f.rule == "PD303")
    assert title == "SGD goes over the parameters 3 times tensor by tensor: 483 kernels a step"
