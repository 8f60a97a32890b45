"""Findings of PD002, PD003, PD105, PD106 and PD108 on real traces; the other traces have none."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.report.finding import Finding

RULES = ("PD002", "PD003", "PD105", "PD106", "PD108")
EXPECTED_RULES = {
    "a100-sam-fp32.json.gz": {"PD105"},  # masks of 43 MB come back to pageable memory
    "cpu-only-rank34.json.gz": {"PD003"},  # one step in five waits 0.2 s more for gloo
    "h100-timesformer-bf16.json.gz": {"PD105"},  # the one batch, from NumPy
    "mi250-minitoy.json.gz": {"PD106"},  # torch.randn(...).to(device) in each step
    "v100-bare-list-workers0.json.gz": {"PD105"},
    "v100-bare-list-workers4.json.gz": {"PD105"},
    "v100-legacy-workers0.json.gz": {"PD105"},
    "v100-legacy-workers4.json.gz": {"PD105"},
    "v100-ddp-test": {"PD003"},  # marks of 82 to 166 ms, while the GPU finishes steps evenly
}
QUIET = (
    "a100-ddp-control",  # pinned batches, losses of 1.7 KB to pageable memory
    "a100-negative-queue",  # nine small tensors a step from Python: 0.05 %
    "b200-eager.json.gz",
    "gp100-user-annotation.json.gz",  # labels of 8 bytes
    "gtx1650-clock-skew.json.gz",  # compiled, but nothing compiles
    "h100-qwen-bf16.json.gz",  # 30 % launched before the recording
    "h100-transformer-steps.json.gz",  # only the first step is slow
    "mi300x-resnet18-ddp.json.gz",
    "mi300x-resnet-ddp.json.gz",  # as qwen
    "rtx4090-llama-2ranks",
    "sampled-w128",
    "triton-compile.json.gz",
    "v100-resnet18-2ranks",
    "v100-torchrec-4ranks",
)
pytestmark = pytest.mark.corpus


def findings_of(path: Path) -> tuple[Finding, ...]:
    """What these rules report among all others."""
    return tuple(finding for finding in analyze_once(path).findings if finding.rule in RULES)


@pytest.mark.parametrize("name", EXPECTED_RULES)
def test_faults_are_found(corpus: Path, name: str) -> None:
    assert {finding.rule for finding in findings_of(corpus / name)} == EXPECTED_RULES[name]


@pytest.mark.parametrize("name", QUIET)
def test_other_traces_have_no_finding(corpus: Path, name: str) -> None:
    assert findings_of(corpus / name) == ()


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
