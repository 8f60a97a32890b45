"""Faults planted in a synthetic job of several ranks are found, and a balanced job has no finding."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import SyntheticFleet

OVER_RANKS = ("PD101", "PD401", "PD402", "PD404", "PD408", "PD409")


def findings(fleet: SyntheticFleet) -> dict[str, Finding]:
    """The findings of the rules over ranks and of PD101, by rule."""
    rules = [rule for rule in registry.load_analyzers() if rule.rule in OVER_RANKS]
    report = pipeline.diagnose_run(Run(tuple(Rank(trace.trace()) for trace in fleet.builders())), rules)
    assert [o.rule for o in report.outcomes if o.status == "failed"] == []
    assert len({f.rule for f in report.findings}) == len(report.findings)
    return {finding.rule: finding for finding in report.findings}


def evidence(finding: Finding) -> dict[str, object]:
    return {entry.label: entry.value for entry in finding.evidence}


@pytest.mark.parametrize(
    "fleet",
    [
        SyntheticFleet(),
        SyntheticFleet(sequences=False),
        SyntheticFleet(ranks=2, steps=10, seed=1),
        SyntheticFleet(ranks=7, steps=4, seed=2),
        SyntheticFleet().clock_offset(2, 3e6),
        SyntheticFleet(sequences=False).clock_offset(1, 3e6).clock_offset(3, -2e6),
        SyntheticFleet().missing(1),
    ],
    ids=["plain", "no-sequences", "two", "seven", "clock", "clocks-without-sequences", "missing"],
)
def test_a_balanced_fleet_has_no_finding(fleet: SyntheticFleet) -> None:
    assert findings(fleet) == {}


@pytest.mark.parametrize("sequences", [True, False])
def test_a_late_loader_is_named_with_its_own_finding(sequences: bool) -> None:
    found = findings(SyntheticFleet(sequences=sequences).late_loader(2, by_us=3000))
    late = found["PD409"]
    assert late.rank == 2
    assert "waiting for its DataLoader: the others wait" in late.title
    assert late.cost_ns == pytest.approx(3_000_000, rel=0.02)
    assert late.saving.expected_ns == pytest.approx(3_000_000, rel=0.02)
    assert evidence(late)["its own finding"] == f"PD101: {found['PD101'].title}"
    assert "PD402" not in found  # waiting is no transfer


def test_a_slow_backward_is_named() -> None:
    late = findings(SyntheticFleet().slow_backward(1, 1.3))["PD401"]
    assert (late.rank, late.severity) == (1, "medium")
    assert "in its backward pass" in late.title
    assert late.cost_ns == pytest.approx(0.3 * 6_000_000, rel=0.05)


def test_a_rank_with_a_larger_batch_is_late_in_its_backward_pass() -> None:
    late = findings(SyntheticFleet().uneven_batch(3, 1.4))["PD401"]
    assert late.rank == 3
    assert "in its backward pass" in late.title  # twice as long as forward, so twice the delay
    assert late.cost_ns == pytest.approx(0.4 * 9_000_000, rel=0.05)


def test_a_slow_link_of_all_is_no_straggler() -> None:
    found = findings(SyntheticFleet().slow_link([0], 3))
    assert "PD401" not in found
    assert found["PD402"].severity == "medium"  # half of the 23 % that overlap would hide at most
    assert evidence(found["PD402"])["all_reduce in group default_pg, exposed per step"] == pytest.approx(
        2.76e6, rel=0.02
    )


def test_ranks_that_share_a_slow_link_are_named_together() -> None:
    late = findings(SyntheticFleet(tensor_parallel=2).slow_link([2], 10))["PD401"]
    assert re.match(r"Ranks 2, 3 are [\d.]+ ms late in each step, ", late.title)
    assert "in communication" in late.title
    assert late.saving.expected_ns == pytest.approx(1_800_000, rel=0.01)  # nine times the transfer within the group


def test_a_slow_host_is_named() -> None:
    fleet = SyntheticFleet(ranks=8, ranks_per_host=2)
    late = findings(fleet.late_loader(4, by_us=1500).late_loader(5, by_us=1500))["PD401"]
    assert re.match(r"Ranks 4, 5 \(all of one host\) are [\d.]+ ms late in each step", late.title)


def test_a_rank_that_waited_for_a_late_one_is_not_blamed() -> None:
    late = findings(SyntheticFleet(tensor_parallel=2).late_loader(2, by_us=3000))["PD409"]
    assert late.rank == 2
    assert re.match(r"Rank 2 enters the step [\d.]+ ms late in each step", late.title)
    assert evidence(late)["share of all waiting that it causes"] == pytest.approx(100, abs=3)


@pytest.mark.parametrize("sequences", [True, False])
def test_a_clock_three_seconds_ahead_is_found_and_changes_nothing(sequences: bool) -> None:
    plain = findings(SyntheticFleet(sequences=sequences).late_loader(1, by_us=2000))["PD409"]
    ahead = findings(SyntheticFleet(sequences=sequences).late_loader(1, by_us=2000).clock_offset(1, 3e6))["PD409"]
    assert evidence(ahead)["its clock was ahead of that of rank 0 by"] == pytest.approx(3_000_000_000, abs=100_000)
    assert (ahead.rank, ahead.title) == (plain.rank, plain.title)
    assert ahead.cost_ns == pytest.approx(plain.cost_ns, abs=2)


def test_a_missing_rank_is_named_and_the_others_are_still_compared(tmp_path: Path) -> None:
    folder = SyntheticFleet().late_loader(2, by_us=3000).missing(0).missing(3).write(tmp_path / "run")
    report = perfdoctor.analyze(folder, select=["PD409"])
    assert [trace.rank for trace in report.traces] == [1, 2]
    assert any("2 of the job's 4 ranks have no trace here (0, 3)" in w for w in report.traces[0].warnings)
    assert [finding.rank for finding in report.findings] == [2]


def drop_gpu_events(path: Path) -> None:
    """Leave in a file what a recording without the GPU has, or one that was cut short before its kernels."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = [
        each for each in trace["traceEvents"] if each.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


def test_a_rank_without_gpu_events_is_left_out_of_the_others(tmp_path: Path) -> None:
    folder = SyntheticFleet().late_loader(2, by_us=3000).write(tmp_path / "run")
    drop_gpu_events(folder / "rank0.json.gz")
    report = perfdoctor.analyze(folder)
    assert [trace.rank for trace in report.traces] == [1, 2, 3, 0]
    assert [len(report.timeline), len(report.account), len(report.missing)] == [3, 3, 1]
    assert report.missing[0].warnings[0] == "this rank is left out of the analysis: its file has no GPU events"
    assert report.findings[0].rank == 2
    assert report.unexplained == ()


def test_ranks_that_are_all_without_gpu_events_are_all_there(tmp_path: Path) -> None:
    folder = SyntheticFleet(ranks=2).write(tmp_path / "run")
    for rank in range(2):
        drop_gpu_events(folder / f"rank{rank}.json.gz")
    report = perfdoctor.analyze(folder)
    assert (len(report.timeline), report.missing) == (2, ())


@pytest.mark.parametrize("ranks", [2, 4])
def test_noise_that_moves_from_rank_to_rank_is_called_noise(ranks: int) -> None:
    noise = findings(SyntheticFleet(ranks=ranks, steps=12).noise(1500))["PD401"]
    assert noise.title.startswith("Ranks take turns at coming last")
    assert noise.saving.expected_ns is None


def test_a_slow_rank_is_found_in_noise() -> None:
    late = findings(SyntheticFleet(steps=12).noise(400).slow_backward(0, 1.4))["PD401"]
    assert (late.rank, late.confidence) == (0, 0.9)


MIXED: Sequence[Callable[[], SyntheticFleet]] = [
    lambda: SyntheticFleet(ranks=3, steps=5).late_loader(1, 900),
    lambda: SyntheticFleet(ranks=5, steps=5).slow_backward(4, 1.2),
]


@pytest.mark.parametrize("build", MIXED)
def test_the_order_of_the_ranks_does_not_matter(build: Callable[[], SyntheticFleet]) -> None:
    rules = [rule for rule in registry.load_analyzers() if rule.rule in ("PD401", "PD409")]
    runs = [Rank(trace.trace()) for trace in build().builders()]
    [forth] = pipeline.diagnose_run(Run(tuple(runs)), rules).findings
    [back] = pipeline.diagnose_run(Run(tuple(reversed(runs))), rules).findings
    assert (forth.rank, forth.title, forth.cost_ns) == (back.rank, back.title, back.cost_ns)


def test_the_same_fleet_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    fleet = SyntheticFleet(ranks=2, steps=2, seed=5).noise(100)
    for name in ("a", "b"):
        fleet.write(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["rank0.json.gz", "rank1.json.gz"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
