from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples

from perfdoctor.report.report import StepSummary
from perfdoctor.reporters.time_split import time_split_of


def test_the_split_of_a_step_is_the_window_over_its_steps():
    report = samples.loader_stall()
    split = time_split_of(report)
    assert split.window_ns * samples.STEPS == report.account[0].window_ns
    assert sum(part.share for part in split.buckets) == pytest.approx(1)
    assert sum(part.ns for part in split.buckets) == pytest.approx(split.window_ns)
    assert [part.label for part in split.details][:2] == [
        "idle, waiting for the DataLoader",
        "idle, waiting for launches",
    ]


def test_nothing_to_account_for_is_no_split():
    assert time_split_of(samples.empty()) is None


def test_details_below_one_percent_are_left_out():
    labels = {part.label for part in time_split_of(samples.loader_stall()).details}
    assert "idle, unexplained" not in labels
    assert "copies" in labels


def test_unknown_tensor_core_use_is_not_zero():
    assert time_split_of(samples.cpu_only()).tensor_cores is None
    unknown = {"used": 0, "slow_path": 0, "not_used": 0, "unknown": 7}
    report = samples.report((samples.account(tensor_core=unknown, compute=3),))
    assert time_split_of(report).tensor_cores is None


@pytest.mark.parametrize(
    ("device", "expected"), [("Quadro GP100", False), ("NVIDIA GeForce GTX 1650", False), (None, True)]
)
def test_a_device_without_tensor_cores_does_not_leave_them_unused(device: str | None, expected: bool):
    report = samples.loader_stall()
    report = replace(report, traces=tuple(replace(t, device=device, vendor="nvidia") for t in report.traces))
    assert (time_split_of(report).tensor_cores is not None) == expected


def test_tensor_core_use_adds_up_in_words():
    assert time_split_of(samples.loader_stall()).tensor_cores == (
        "Tensor Cores in 12.0 ms of matrix work: used 62%, slow path 15%, not used 21%, unknown 2.1%"
    )


def test_varying_and_inferred_steps_are_called_so():
    steady = samples.healthy()
    shaky = replace(steady, steps=StepSummary(8, "inferred", 40_000_000, variation=0.31))
    assert "inferred, varying by 31%" in time_split_of(shaky).title
    assert "varying" not in time_split_of(steady).title
