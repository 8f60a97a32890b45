"""What PD301 to PD306 say of real traces, and that they leave well-written programs alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.report.report import Report

RULES = tuple(f"PD30{i}" for i in range(1, 7))

SPEAKS = {
    "h100-qwen-bf16.json.gz": {"PD301", "PD306"},  # RMSNorm and rotary embedding written out, contiguous before SDPA
    "a100-sam-fp32.json.gz": {"PD301", "PD302", "PD306"},
    "a100-sam-bf16.json.gz": {"PD301"},  # what lies outside of its compiled region
    "a100-nccl-config": {"PD302", "PD303"},
    "mi210-gpu-only.json.gz": {"PD302"},
    "mi300x-resnet-ddp.json.gz": {"PD302"},
    "v100-bare-list-workers4.json.gz": {"PD303"},
    "v100-df-index": {"PD303", "PD304"},
}
QUIET = (
    "a100-ddp-control",  # Apex' FusedAdam; concatenated features
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


@cache
def report_of(path: Path) -> Report:
    return perfdoctor.analyze(path, select=RULES)


@pytest.mark.parametrize("name", SPEAKS)
def test_what_is_there_is_told(corpus: Path, name: str) -> None:
    report = report_of(corpus / name)
    assert {f.rule for f in report.findings} == SPEAKS[name]
    assert all((f.saving.high_ns or 0) <= f.cost_ns for f in report.findings)


@pytest.mark.parametrize("name", QUIET)
def test_well_written_programs_are_left_alone(corpus: Path, name: str) -> None:
    assert report_of(corpus / name).findings == ()


def test_the_chain_of_a_norm_written_out_is_named(corpus: Path) -> None:
    found = {f.rule: f for f in report_of(corpus / "h100-qwen-bf16.json.gz").findings}
    evidence = {e.label: e.value for e in found["PD301"].evidence}
    assert evidence["costliest chain"] == "add > copy_ > pow > mul > copy_ > mul"
    assert str(found["PD306"].location).endswith("text_base_model.py:28")


def test_passes_of_an_optimizer_are_counted(corpus: Path) -> None:
    title = next(f.title for f in report_of(corpus / "v100-bare-list-workers4.json.gz").findings if f.rule == "PD303")
    assert title == "SGD goes over the parameters 3 times tensor by tensor: 483 kernels a step"
