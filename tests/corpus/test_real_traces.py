"""Every real trace is analysed without a failure, and its report keeps the contract."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import settings
from real_traces import read_once
from timeline_oracle import compute_timeline

from perfdoctor.rank import Rank
from perfdoctor.report.report import Report
from perfdoctor.report.to_plain import to_plain
from perfdoctor.reporters.json_ import Json, load_schema

SHARED = Path(__file__).resolve().parents[3] / "shared"
Reports = Callable[[str], Report]
pytestmark = pytest.mark.corpus


def traces() -> list[str]:
    """Every trace that MANIFEST.csv names; without the corpus one placeholder, which the fixture skips."""
    manifest = SHARED / "traces" / "MANIFEST.csv"
    if not manifest.is_file():
        return ["the corpus"]
    with manifest.open() as file:
        return [row["file"] for row in csv.DictReader(file)]


def references() -> list[dict[str, str]]:
    """The rows of the table of reference figures; without the corpus one placeholder."""
    table = SHARED / "reference" / "timeline.csv"
    if not table.is_file():
        return [{"trace": "the corpus"}]
    with table.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_schema())


@pytest.mark.parametrize("name", traces())
def test_a_real_trace_is_analysed_and_its_report_keeps_the_contract(
    name: str, report_on: Reports, validator: jsonschema.Draft202012Validator
) -> None:
    report = report_on(name)
    assert [f.title for f in report.findings if f.rule == "PD901"] == []
    assert [o for o in report.outcomes if o.status == "failed"] == []
    for account in report.account:
        assert sum(account.detail.values()) == sum(account.buckets.values()) == account.window_ns
        assert min(account.detail.values()) >= 0
    steps_ns = max(account.window_ns / max(len(account.steps), 1) for account in report.account)
    assert sum(f.saving.high_ns or 0 for f in report.findings) <= steps_ns
    assert all((f.saving.high_ns or 0) <= f.cost_ns for f in report.findings)
    # A share above 100 % is an error in a rule's arithmetic.
    assert [e for f in report.findings for e in f.evidence if e.unit == "%" and not _is_share(e.value)] == []
    validator.validate(orjson.loads(Json().render(report)))


def _is_share(value: Any) -> bool:
    return value is None or 0 <= value <= 100


@pytest.mark.parametrize("line", references(), ids=lambda line: line["trace"])
def test_the_timeline_is_exact_and_agrees_with_the_reference(line: dict[str, str], corpus: Path) -> None:
    """The figures are exactly those of a sweep, and those of the reference within 0.1 % or its rounding.

    The reference was computed in float64 milliseconds since the epoch, where neighbouring values differ by 0.25 us. So
    each edge has an error of up to that, and n items one of some 0.75 us x sqrt(n). Of a tiny figure this is more than
    0.1 % (three kernels of exactly 123 us are 369 us, not 369.4), so the larger of both bounds counts.
    """
    path = corpus / line["trace"]
    trace = read_once(path)
    found = to_plain(Rank(trace).timeline)
    for column, value_ms in line.items():
        if column.endswith("_ms"):
            value_ns, reference_ns = found[f"{column.removesuffix('_ms')}_ns"], float(value_ms) * 1e6
            assert abs(value_ns - reference_ns) <= max(0.001 * reference_ns, 750 * math.sqrt(len(trace.gpu))), column
    # The largest files hold nine tenths of the bytes, and take the sweep most of its time: they come at night.
    if path.stat().st_size < 500_000 * (settings().max_examples // 25):
        expected = compute_timeline(gzip.decompress(path.read_bytes()))
        assert expected is not None
        assert expected.pop("items") == len(trace.gpu)
        assert {name: found[name] for name in expected} == expected


def findings(report: Report, rule: str) -> Iterator[Any]:
    return (f for f in report.findings if f.rule == rule)


def shares(report: Report) -> dict[str, float]:
    """Each detail of the first rank's account as a share of its window."""
    account = report.account[0]
    return {name: ns / account.window_ns for name, ns in account.detail.items()}


def test_a_loader_without_workers_is_found_and_one_with_four_is_not(report_on: Reports) -> None:
    starved, fed = report_on("v100-bare-list-workers0.json.gz"), report_on("v100-bare-list-workers4.json.gz")
    (finding,) = findings(starved, "PD101")
    assert finding.severity == "high"
    assert 0.19 < finding.share_of_step < 0.23
    assert "no workers" in finding.title
    assert "num_workers=" in finding.fix
    assert not any(findings(fed, "PD101"))
    assert shares(fed)["idle_dataloader"] < 0.01


def test_a_loader_without_workers_is_found_in_legacy_traces_whose_steps_are_inferred(report_on: Reports) -> None:
    starved, fed = report_on("v100-legacy-workers0.json.gz"), report_on("v100-legacy-workers4.json.gz")
    assert [f.severity for f in findings(starved, "PD101")] == ["high"]
    assert starved.steps.source == "inferred"
    assert not any(findings(fed, "PD101"))


def test_bfloat16_on_misaligned_tensor_core_kernels_is_no_missing_tensor_core(report_on: Reports) -> None:
    report = report_on("h100-timesformer-bf16.json.gz")
    assert not any(findings(report, "PD201"))
    assert (report.account[0].tensor_core["slow_path"] or 0) > 0


def test_float32_convolutions_on_a_v100_are_found(report_on: Reports) -> None:
    (finding,) = findings(report_on("v100-ns-resolution/rank0.json.gz"), "PD203")
    assert finding.severity == "high"
    assert "float16" in finding.fix  # it has neither TF32 nor bfloat16


def test_half_precision_convolutions_get_no_advice_to_use_half_precision(report_on: Reports) -> None:
    (finding,) = findings(report_on("pg509-vit-graph-ns.json.gz"), "PD203")
    assert "in half precision already" in finding.advice
    assert "allow_tf32" not in finding.fix


@pytest.mark.parametrize("name", ["v100-torchrec-4ranks"])
def test_the_rank_that_slept_is_named(name: str, report_on: Reports) -> None:
    report = report_on(name)
    (finding,) = findings(report, "PD401")
    assert (finding.rank, finding.severity) == (2, "medium")
    assert report.findings[0] is finding
    assert [t.rank for t in report.traces] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["v100-resnet18-2ranks", "rtx4090-llama-2ranks", "sampled-w128"])
def test_two_ranks_are_analysed_together(name: str, report_on: Reports) -> None:
    report = report_on(name)
    assert [t.rank for t in report.traces] == [0, 1]
    assert len(report.timeline) == len(report.account) == 2
    assert {o.rule: o.status for o in report.outcomes}["PD401"] == "ran"
    assert [f.title for f in report.findings if f.rule == "PD901"] == []


@pytest.mark.parametrize("name", ["gtx1650-clock-skew.json.gz", "v100-resnet18-2ranks/rank1.json.gz"])
def test_gpu_times_are_shifted_where_clocks_disagree_and_the_timeline_stays(name: str, corpus: Path) -> None:
    source = read_once(corpus / name)
    rank = Rank(source)
    assert rank.clock_shift.shift_ns > 0
    linked = rank.trace.gpu.call >= 0
    launched = rank.trace.calls.start_ns[rank.trace.gpu.call[linked]]
    assert (rank.trace.gpu.start_ns[linked] >= launched).all()
    expected = compute_timeline(gzip.decompress((corpus / name).read_bytes()))
    assert expected is not None
    found = to_plain(rank.timeline)
    assert {n: found[n] for n in expected if n != "items"} == {n: v for n, v in expected.items() if n != "items"}


def test_gpu_times_are_not_shifted_where_clocks_agree(corpus: Path) -> None:
    assert Rank(read_once(corpus / "h100-nsfw-vit-bf16.json.gz")).clock_shift.shift_ns == 0


@pytest.mark.parametrize(
    "name", ["a100-cupti-counters.json.gz", "no-distributed-info.json.gz", "cpu-only-rank34.json.gz"]
)
def test_a_trace_without_gpu_events_says_nothing_about_the_gpu(name: str, report_on: Reports) -> None:
    report = report_on(name)
    assert set(to_plain(report.timeline[0]).values()) <= {None, report.traces[0].rank}
    assert set(report.account[0].tensor_core.values()) == {None}
    skipped = {o.rule for o in report.outcomes if o.status == "skipped"}
    assert skipped >= {"PD102", "PD103", "PD201", "PD203"}
    # These two rules run on a program without a GPU; a program whose GPU events are missing has a device.
    assert {rule in skipped for rule in ("PD104", "PD402")} == {report.traces[0].device is not None}
