"""Devices of real traces: those that the trace names, and those that only its kernels tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfdoctor.report.report import Report

Reports = Callable[[str], Report]
pytestmark = pytest.mark.corpus

UNNAMED_V100 = [
    "v100-legacy-workers0.json.gz",
    "v100-legacy-workers4.json.gz",
    "v100-bare-list-workers0.json.gz",
    "v100-bare-list-workers4.json.gz",
]


@pytest.mark.parametrize(
    ("name", "device", "source"),
    [
        *((name, "V100 (by its kernels)", "kernels") for name in UNNAMED_V100),
        ("sampled-w128", "A100 or A800 (by its kernels)", "kernels"),
        ("mi-merged-4pids.json.gz", "MI300-series GPU (by its kernels)", "kernels"),
        ("rtx4090-llama-2ranks", "NVIDIA GeForce RTX 4090", "trace"),
        ("cpu-only-rank34.json.gz", None, None),
    ],
)
def test_devices_by_name_or_by_kernels(report_on: Reports, name: str, device: str | None, source: str | None) -> None:
    assert {(trace.device, trace.device_from) for trace in report_on(name).traces} == {(device, source)}


@pytest.mark.parametrize("name", UNNAMED_V100)
def test_float32_convolutions_of_an_unnamed_v100_get_the_precision_that_it_has(report_on: Reports, name: str) -> None:
    report = report_on(name)
    (finding,) = (finding for finding in report.findings if finding.rule == "PD203")
    values: dict[str, Any] = {each.label: each.value for each in finding.evidence}
    text = f"{finding.advice} {finding.fix}"

    # By their raw files convolution ops take 40 to 63 % with their transforms; where the loop waits for batches or
    # launches, a replay gives back less of that.
    assert 0.05 < finding.share_of_step < 0.63
    assert values["peak of the remedy over the present peak"] == pytest.approx(130 / 16.4)  # V100S, the least of them
    assert finding.saving.low_ns == 0  # a bound
    assert "torch.float16" in text
    assert "GradScaler" in text
    assert "bfloat16" not in text
    assert "tf32" not in text.lower()
