"""The findings of the rules about matrix maths on real traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfdoctor.report.report import Report

Reports = Callable[[str], Report]
pytestmark = pytest.mark.corpus


def findings_of(report: Report, rule: str) -> list[Any]:
    return [finding for finding in report.findings if finding.rule == rule]


def evidence_of(finding: Any) -> dict[str, Any]:
    return {e.label: e.value for e in finding.evidence}


def test_a_sequence_of_3137_is_on_the_slow_path_and_not_off_the_tensor_cores(report_on: Reports) -> None:
    report = report_on("h100-timesformer-bf16.json.gz")
    (finding,) = findings_of(report, "PD202")
    assert "N = 3137: pad to 3144" in finding.title
    assert "scaled_dot_product_attention" in finding.advice
    assert finding.location is not None
    values = evidence_of(finding)
    assert 2.5 < values["time over the roofline's"] < 4.2
    assert {"N = 3137: pad to 3144", "K = 3137: pad to 3144"} <= values.keys()
    assert findings_of(report, "PD201") == []


def test_unfused_attention_is_found_and_its_time_is_not_promised_twice(report_on: Reports) -> None:
    report = report_on("h100-timesformer-bf16.json.gz")
    (attention,), (slow,) = findings_of(report, "PD205"), findings_of(report, "PD202")
    assert "over a sequence of 3137" in attention.title
    assert attention.saving.high_ns + slow.saving.high_ns <= attention.cost_ns
    # By itself it is worth a third of the step. But one worker that prepares the videos takes longer than the GPU then.
    assert attention.saving.alone.expected_ns >= 0.25 * attention.cost_ns / attention.share_of_step
    assert report.findings[attention.covered_by].rule == "PD103"
    assert attention.severity == "low"


def test_gemm_kernels_of_convolutions_are_reported_as_convolutions(report_on: Reports) -> None:
    report = report_on("v100-ns-resolution/rank0.json.gz")
    (finding,) = findings_of(report, "PD203")
    assert finding.share_of_step > 0.45  # they take 56 %; the rest is what the roofline leaves
    assert any("sgemm" in label for label in evidence_of(finding))
    assert findings_of(report, "PD201") == []


def test_float32_products_cost_what_the_step_takes_longer_than_at_the_roofline(report_on: Reports) -> None:
    finding, traffic = findings_of(report_on("a100-sam-fp32.json.gz"), "PD201")
    assert finding.severity == "high"
    assert "set_float32_matmul_precision" in finding.fix
    assert 0.25 < finding.share_of_step < 0.36 * 15 / 16  # they take 36 %, and bfloat16 has sixteen times the peak
    assert finding.saving.high_ns <= finding.cost_ns
    assert "memory-bound kernels in the recording work on float32" in traffic.title
    assert findings_of(report_on("a100-sam-bf16.json.gz"), "PD201") == []


def test_masks_in_float64_are_found_and_python_numbers_are_no_float64(report_on: Reports) -> None:
    (finding,) = findings_of(report_on("a100-sam-fp32.json.gz"), "PD204")
    assert finding.severity in ("low", "medium")
    assert any("upsample_bilinear2d_out_frame<double" in label for label in evidence_of(finding))
    assert finding.saving.high_ns <= finding.cost_ns
    for name in ("a100-sam-bf16.json.gz", "a100-ddp-control/rank3.json.gz", "h100-timesformer-bf16.json.gz"):
        assert findings_of(report_on(name), "PD204") == []


def test_misaligned_tf32_products_name_their_dimensions(report_on: Reports) -> None:
    report = report_on("a100-ddp-control/rank3.json.gz")
    (finding,) = findings_of(report, "PD202")
    assert {"N = 9375: pad to 9376", "K = 9375: pad to 9376"} <= evidence_of(finding).keys()
    assert findings_of(report, "PD201") == []  # what is left on CUDA cores there is bound by memory


def test_misaligned_products_of_compiled_code_have_no_dimension_to_blame(report_on: Reports) -> None:
    (finding,) = findings_of(report_on("a100-negative-queue/rank0.json.gz"), "PD202")
    assert "pad to" not in finding.title
    assert finding.confidence <= 0.5


# By the raw files: FLOPs and bytes of the recorded inputs over the kernels' durations.
SLOW_FAMILIES = {
    # aten::_flash_attention_forward of [8, 4096, 16, 128]: 1.10 TFLOP in 3.68 ms, 298 of 1,307 TFLOP/s.
    "triton-compile.json.gz": {"attention"},
    # Batch norms of 64 to 512 channels, a block each, on 304 multiprocessors: 4 to 15 % of 5,300 GB/s.
    "mi300x-resnet-ddp.json.gz": {"norm"},
    # add of two [1024, 4096, 256] in bfloat16, one transposed: 6.4 GB in 11.9 ms, 544 of 1,555 GB/s; and one product
    # of [4, 32] x [32, 65536], 1,024 times: 22.4 ms for 4.8 GB.
    "a100-sam-bf16.json.gz": {"elementwise", "gemm"},
    # Attention is float32's (PD205), softmax a part of unfused attention (PD205), products are near what they reach.
    "a100-sam-fp32.json.gz": set(),
    "h100-timesformer-bf16.json.gz": set(),
    "h100-qwen-bf16.json.gz": set(),
    "h100-bert-small-bf16.json.gz": set(),
    "h100-transformer-steps.json.gz": set(),
    "mi300x-decode-graph.json.gz": set(),
    "b300-decode-graph.json.gz": set(),
}


@pytest.mark.parametrize("name", SLOW_FAMILIES)
def test_kernels_far_below_comparable_ones_are_found_by_family(name: str, report_on: Reports) -> None:
    assert {f.subject for f in findings_of(report_on(name), "PD209")} == SLOW_FAMILIES[name]
