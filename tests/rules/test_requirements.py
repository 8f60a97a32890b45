"""What rules need: a GPU that only copies is one, and the report says what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.report.report import Report
from perfdoctor.rules.requirements import REQUIREMENTS, explain_missing
from perfdoctor.testing import TraceBuilder

OF_IDLE_TIME_AND_COPIES = {"PD102", "PD103", "PD105", "PD106", "PD107", "PD109", "PD306"}
ONLY_COPIES = "the GPU only copies here, no kernel was recorded, and this rule looks at kernels"


def copying(kind: str = "HtoD") -> TraceBuilder:
    """Steps of 10 ms in which the GPU copies pageable memory for 3 ms and then waits."""
    b = TraceBuilder()
    for at in range(0, 40_000, 10_000):
        b.step(at, 10_000).op("aten::copy_", at + 100, 3000).memcpy(
            kind, at + 150, 3000, 20_000_000, launch_us=at + 120
        )
    return b


def report_on(b: TraceBuilder, folder: Path) -> Report:
    return perfdoctor.analyze(b.write(folder / "trace.json"))


def outcomes(report: Report) -> dict[str, tuple[str, str | None]]:
    return {outcome.rule: (outcome.status, outcome.why) for outcome in report.outcomes}


@pytest.mark.parametrize("kind", ["HtoD", "DtoH", "DtoD"])
def test_rules_of_idle_time_and_copies_run_where_the_gpu_only_copies(kind: str, tmp_path: Path) -> None:
    report = report_on(copying(kind), tmp_path)
    of_rule = outcomes(report)
    assert {of_rule[rule] for rule in OF_IDLE_TIME_AND_COPIES} == {("ran", None)}
    assert "PD103" in {finding.rule for finding in report.findings}
    assert ("PD105" in {finding.rule for finding in report.findings}) is (kind != "DtoD")


def test_rules_of_kernels_say_that_it_only_copies(tmp_path: Path) -> None:
    of_rule = outcomes(report_on(copying(), tmp_path))
    assert of_rule["PD201"] == of_rule["PD104"] == ("skipped", ONLY_COPIES)
    assert not any("machine with a GPU" in (why or "") for _, why in of_rule.values())


def test_memsets_are_work_of_the_gpu_too(tmp_path: Path) -> None:
    b = TraceBuilder().step(0, 10_000)
    b.memset(100, 3000, launch_us=50)
    of_rule = outcomes(report_on(b, tmp_path))
    assert of_rule["PD103"] == ("ran", None)


def test_copies_without_launches_ask_for_launches(tmp_path: Path) -> None:
    b = TraceBuilder().step(0, 10_000)
    b.memcpy("HtoD", 100, 3000)
    of_rule = outcomes(report_on(b, tmp_path))
    assert of_rule["PD103"] == ("ran", None)
    assert of_rule["PD105"] == ("skipped", explain_missing("launches", {"gpu_items"}))
    assert "no copy can be joined to its launch" in (of_rule["PD105"][1] or "")


def test_one_kernel_is_enough_for_rules_of_kernels(tmp_path: Path) -> None:
    b = copying()
    b.kernel("gemm", 5000, 100, launch_us=4000)
    of_rule = outcomes(report_on(b, tmp_path))
    assert {of_rule[rule][0] for rule in (*OF_IDLE_TIME_AND_COPIES, "PD201", "PD104")} == {"ran"}


def test_without_any_gpu_item_all_of_them_ask_for_a_gpu(tmp_path: Path) -> None:
    b = TraceBuilder().step(0, 10_000)
    b.op("aten::mm", 100, 3000)
    of_rule = outcomes(report_on(b, tmp_path))
    assert {of_rule[rule] for rule in (*OF_IDLE_TIME_AND_COPIES, "PD201")} == {("skipped", REQUIREMENTS["kernels"])}


def test_launches_without_gpu_items_ask_for_a_gpu_recording(tmp_path: Path) -> None:
    b = TraceBuilder().step(0, 10_000)
    b.call("cudaLaunchKernel", 100, 5)
    assert outcomes(report_on(b, tmp_path))["PD201"] == ("skipped", REQUIREMENTS["kernels"])


@pytest.mark.parametrize("need", [*REQUIREMENTS, "unheard of"])
def test_where_kernels_are_there_the_sentence_is_that_of_the_requirement(need: str) -> None:
    expected = REQUIREMENTS.get(need, "it needs 'unheard of', which is not known here")
    assert explain_missing(need, {"gpu_items", "kernels"}) == explain_missing(need, frozenset()) == expected
