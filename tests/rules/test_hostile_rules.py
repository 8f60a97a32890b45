"""A faulty rule cannot hurt: whatever it returns or raises becomes PD901 with its name, and the report is complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report import pricers
from perfdoctor.report.finding import Evidence, Finding, FindingScope
from perfdoctor.report.report import Report
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run
from perfdoctor.savings.edits import Edit, remove_waits, scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import CallRows, GpuRows, OpRows

RULES = [rule for rule in registry.load_analyzers() if rule.__module__.startswith("perfdoctor.analyzers.")]
GEMM = "ampere_sgemm_128x64_nn"


def stalled_rank(rank: int = 0) -> Rank:
    """Two steps that wait for a loader and then for a kernel, so that built-in rules have findings."""
    trace = TraceBuilder(rank=rank)
    for at in (0, 1000):
        trace.step(at, 1000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 400)
        trace.kernel(GEMM, at + 450, 500, launch_us=at + 410)
        trace.call("cudaStreamSynchronize", at + 460, 490)
    return Rank(trace.trace())


def make_rule(yields: Callable[[RankAnalyzer, Rank], Any], rule_id: str = "XX001") -> type[Analyzer]:
    """A rule that yields what the function returns for the rule and a rank."""

    class Hostile(RankAnalyzer):
        rule = rule_id
        name = "hostile"

        def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
            yield yields(self, rank)

    return Hostile


def check_report_is_intact(report: Report, expected: Report, hostile: Sequence[str] = ("XX001",)) -> None:
    """Check that a report equals the one without the hostile rules, plus PD901 with the name of each of them."""
    faults = [finding for finding in report.findings if finding.rule == "PD901"]
    assert sorted(fault.title.split()[0] for fault in faults) == [*hostile]
    assert all(fault.saving == Saving() for fault in faults)
    assert to_plain([f for f in report.findings if f.rule != "PD901"]) == to_plain(expected.findings) != []
    assert to_plain(report.account) == to_plain(expected.account)
    outcomes = {outcome.rule: outcome.status for outcome in report.outcomes}
    assert {outcomes.pop(rule) for rule in hostile} == {"failed"}
    assert set(outcomes.values()) <= {"ran", "skipped"}


@cache
def stalled_run() -> Run:
    return Run((stalled_rank(),))


@cache
def report_without_hostile_rule() -> Report:
    return pipeline.diagnose_run(stalled_run(), RULES)


def check_becomes_pd901(*rules: type[Analyzer]) -> None:
    report = pipeline.diagnose_run(stalled_run(), [*rules, *RULES])
    check_report_is_intact(report, report_without_hostile_rule(), [rule.rule for rule in rules])


def valid_fields(rank: Rank) -> dict[str, Any]:
    """Valid fields of a finding."""
    return {
        "rule": "XX001",
        "name": "hostile",
        "title": "something",
        "cost_ns": 1000,
        "share_of_step": 0.001,
        "severity": "info",
        "saving": Saving(0, None, 1000, "bounded"),
        "advice": "do it",
        "rank": rank.rank,
        "claim": Claim(iv.window(0, 1000), rank=rank.rank),
    }


def test_a_valid_finding_is_reported() -> None:
    rule = make_rule(lambda _, rank: Finding(**valid_fields(rank)))
    report = pipeline.diagnose_run(Run((stalled_rank(),)), [rule, *RULES])
    assert [f.title for f in report.findings if f.rule in ("XX001", "PD901")] == ["something"]


class Unprintable:
    """Raises whatever is called."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __eq__ = __hash__ = __str__  # type: ignore[assignment]


WRONG_TYPES = [None, 3, 2.5, True, "text", b"bytes", [], {}, (1,), object(), np.zeros(3), np.int64(7), Unprintable()]
MAY_BE: dict[str, tuple[Any, ...]] = {
    "rule": ("text",),
    "name": ("text",),
    "title": ("text",),
    "advice": ("text",),
    "subject": ("text",),
    "fix": (None, "text"),
    "rank": (None, 3),
    "cost_ns": (3,),
    "share_of_step": (None,),
    "confidence": (3, 2.5),
    "order_key_ns": (None, 3, 2.5, 7),
    "location": (None,),
    "edit": (None,),
    "memory_edit": (None,),
    "saved_bytes": (None,),
    "scope": (None,),
    "recurrence": (None,),
    "covered_by": (None, 3),
    "covering_key": (None,),
    "covers": (),
    "places": (),
    "actions": (),
    "topics": (),
    "seen_in": ((1,),),
    "occurs_once": (True,),
    "makes_results_wrong": (True,),
    "is_symptom": (True,),
    "has_table_price": (True,),
    "evidence": (),
    "references": (),
    "severity": (),
    "saving": (),
    "claim": (),
}


@pytest.mark.parametrize("field", [field.name for field in fields(Finding)])
def test_a_wrong_type_in_any_field_becomes_pd901(field: str) -> None:
    rules = []
    for number, wrong in enumerate(WRONG_TYPES, 1):
        if any(type(wrong) is type(right) for right in MAY_BE[field]):
            continue
        if field == "order_key_ns" and isinstance(wrong, np.integer):
            continue
        rules.append(
            make_rule(lambda _, rank, wrong=wrong: Finding(**{**valid_fields(rank), field: wrong}), f"XX{number:03}")
        )
    check_becomes_pd901(*rules)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost_ns": -1},
        {"cost_ns": 10**12},
        {"cost_ns": math.nan},
        {"cost_ns": math.inf},
        {"share_of_step": math.nan},
        {"share_of_step": 1.5},
        {"confidence": math.inf},
        {"confidence": -0.5},
        {"order_key_ns": math.nan},
        {"severity": "fatal"},
        {"evidence": (Evidence("ratio", math.nan),)},
        {"evidence": (Evidence("ratio", object()),)},  # type: ignore[arg-type]
        {"evidence": (Evidence(3, 4),)},  # type: ignore[arg-type]
        {"evidence": ("text",)},
        {"references": (3,)},
        {"claim": Claim(iv.window(-5000, 1000), rank=0)},
        {"claim": Claim(iv.window(0, 10**10), rank=0)},
        {"claim": Claim(np.array([[100, 50]], np.int64), rank=0)},
        {"claim": Claim(np.array([[100, 200], [150, 300]], np.int64), rank=0)},
        {"claim": Claim(np.array([[0.5, 1.5]]), rank=0)},  # type: ignore[arg-type]
        {"claim": Claim(rank="one")},  # type: ignore[arg-type]
    ],
    ids=range(21),
)
def test_a_wrong_value_becomes_pd901(wrong: dict[str, Any]) -> None:
    check_becomes_pd901(make_rule(lambda _, rank: Finding(**{**valid_fields(rank), **wrong})))


def other_rank() -> Rank:
    return Rank(TraceBuilder().kernel(GEMM, 0, 5, launch_us=0).kernel(GEMM, 5, 5, launch_us=1).trace())


@pytest.mark.parametrize(
    "edit",
    [
        lambda rank: scale_durations(rank.kernels.mask, 0.5),
        lambda rank: remove_waits(rank.kernels.mask),
        lambda rank: remove_waits(rank.kernels.rows),
        lambda rank: scale_durations(rank.calls.rows, 0.5),
        lambda rank: Edit(dropped_calls=rank.kernels.rows),
        lambda rank: remove_waits(CallRows(rank.trace.calls, rank.kernels.mask)),
        lambda rank: GpuRows(rank.trace.calls, [0]),
        lambda rank: OpRows(rank.trace.ops, [0, 1]),
        lambda rank: GpuRows(rank.trace.gpu, [99]),
        lambda rank: GpuRows(rank.trace.gpu, [-1]),
        lambda rank: GpuRows(rank.trace.gpu, [0.5]),
        lambda _: remove_waits(other_rank().calls.rows) | scale_durations(other_rank().kernels.rows, 0.5),
        lambda _: scale_durations(GpuRows(TraceBuilder().kernel(GEMM, 0, 5).trace().gpu, [0]), 0.5),
    ],
    ids=range(13),
)
def test_rows_of_another_table_or_trace_become_pd901(edit: Callable[[Rank], Edit]) -> None:
    check_becomes_pd901(make_rule(lambda _, rank: Finding(**{**valid_fields(rank), "edit": edit(rank)})))


def test_a_finding_that_cannot_be_priced_becomes_pd901(monkeypatch: pytest.MonkeyPatch) -> None:
    """If pricing fails for one edit, the other findings keep their price."""
    order_fixes = pricers.order_fixes_greedily

    def order(replay: Any, edits: Any, *weights: Any) -> Any:
        if any(len(edit.dur_ns) == 1 and edit.dur_ns[0] == 123 for edit in edits.values()):
            raise ArithmeticError("no luck")
        return order_fixes(replay, edits, *weights)

    def hostile(_: RankAnalyzer, rank: Rank) -> Finding:
        return Finding(**{**valid_fields(rank), "edit": Edit(GpuRows(rank.trace.gpu, [0]), np.array([123]))})

    run = Run((stalled_rank(),))
    expected = pipeline.diagnose_run(run, RULES)
    monkeypatch.setattr(pricers, "order_fixes_greedily", order)
    report = pipeline.diagnose_run(run, [make_rule(hostile), *RULES])
    assert [f.title for f in report.findings if f.rule == "PD901"] == ["XX001 hostile failed: ArithmeticError: no luck"]
    assert to_plain([f for f in report.findings if f.rule != "PD901"]) == to_plain(expected.findings)


class RaisesAtInit(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def __init__(self, *_: object) -> None:
        raise RuntimeError("not today")

    def analyze_rank(self, _: Rank) -> Iterator[Finding]:
        yield from ()


class RaisesUsageErrorLikeOurs(RaisesAtInit):
    def __init__(self, *_: object) -> None:
        from perfdoctor.errors import UsageError

        raise UsageError("it is the user's fault")


class RaisesWhenAsked(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        raise KeyError(rank)


class YieldsNothingIterable(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Any:
        return rank.window_ns


class Recursing(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        yield from self.analyze_rank(rank)


class ChangesTheTrace(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        rank.trace.gpu.start_ns[:] = 0
        yield from ()


class RaisesWhatCannotBePrinted(RankAnalyzer):
    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        class SilentError(Exception):
            def __str__(self) -> str:
                raise RuntimeError(f"no words about {rank.rank}")

        raise SilentError


class Whole(Analyzer):
    """Looks at all ranks at once, and fails."""

    rule = "XX001"
    name = "hostile"

    def analyze(self, run: Run) -> Iterator[Finding]:
        yield Finding(**{**valid_fields(run.ranks[0]), "cost_ns": 10**15})


@pytest.mark.parametrize(
    "rule",
    [
        *(RaisesAtInit, RaisesUsageErrorLikeOurs, RaisesWhenAsked, YieldsNothingIterable, Recursing, ChangesTheTrace),
        *(RaisesWhatCannotBePrinted, Whole),
    ],
)
def test_a_rule_that_fails_wherever_becomes_pd901(rule: type[Analyzer]) -> None:
    check_becomes_pd901(rule)


class Comparing(FleetAnalyzer):
    """Claims more than the longest step over several ranks."""

    rule = "XX001"
    name = "hostile"

    def analyze_fleet(self, fleet: Any) -> Iterator[Finding]:
        summary = fleet.summaries[0]
        yield self.finding(
            summary, title="too much", cost_ns=10**15, advice="", saving=Saving(), claim=Claim(), confidence=1.0
        )


def test_a_rule_over_ranks_becomes_pd901_too() -> None:
    run = Run((stalled_rank(0), stalled_rank(1)))
    check_report_is_intact(pipeline.diagnose_run(run, [Comparing, *RULES]), pipeline.diagnose_run(run, RULES))


def test_a_finding_may_say_what_it_has_to_fit_into() -> None:
    scope = FindingScope(step_ns=100, window=iv.window(0, 100))
    plain = {**valid_fields(stalled_rank()), "cost_ns": 50, "claim": Claim(iv.window(0, 50))}
    assert Finding(**plain, scope=scope).cost_ns == 50
    with pytest.raises(ValueError, match="more than the 100 of the whole step"):
        Finding(**{**plain, "cost_ns": 101}, scope=scope)
    with pytest.raises(ValueError, match="outside of the analysed window"):
        Finding(**{**plain, "claim": Claim(iv.window(0, 101))}, scope=scope)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (
            {"rule": "XX002"},
            "Odd needs a rule like 'PD101' and a name like 'dataloader-stall'; they are 'XX002' and None",
        ),
        ({"rule": 3, "name": "fine"}, "Odd needs a rule like 'PD101' and a name like 'dataloader-stall'; they are 3"),
        ({"rule": "XX002", "name": "Not Fine"}, "they are 'XX002' and 'Not Fine'"),
        ({"rule": "XX002", "name": "fine", "needs": "kernels"}, "Odd.needs must be a frozenset of names"),
        ({"rule": "XX002", "name": "fine", "defaults": {"x": "1"}}, "Odd.defaults must map names of thresholds"),
        ({"rule": "XX002", "name": "fine", "references": "https://x"}, "Odd.references must be a tuple of texts"),
    ],
)
def test_a_rule_class_that_lacks_something_gets_a_sentence(members: dict[str, Any], sentence: str) -> None:
    class Plain(RankAnalyzer):
        def analyze_rank(self, _: Rank) -> Iterator[Finding]:
            yield from ()

    with pytest.raises(TypeError) as caught:
        type("Odd", (Plain,), members)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
