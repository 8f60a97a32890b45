"""The contract that every registered analyzer keeps, ours and third parties' alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import orjson
import pytest
from all_cases import CASES
from rule_cases import ALL_REDUCE, LOADER, SGEMM, Case, healthy

from perfdoctor import pipeline as engine
from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank, Run
from perfdoctor.report.finding import Claim, Finding, Saving
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Analyzer, RankAnalyzer
from perfdoctor.rules.requirements import NEEDS
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import parse

HEADINGS = [
    "What it finds",
    "Why it costs time",
    "How it is measured",
    "How to fix",
    "When it is wrong",
    "Needs",
    "References",
]
ANALYZERS = registry.registered()
SPEAKING = [case for case in CASES if case.says]
BY_RULE = {analyzer.rule: analyzer for analyzer in ANALYZERS}


def each_analyzer() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("analyzer", ANALYZERS, ids=lambda a: a.rule)


@each_analyzer()
def test_the_docstring_is_a_manual_page(analyzer: type[Analyzer]) -> None:
    page = inspect.getdoc(analyzer) or ""
    headings = re.findall(r"^([A-Z][\w ]+):$", page, re.MULTILINE)
    assert headings == HEADINGS
    summary, _, _ = page.partition("\n\n")
    assert summary.endswith(".")
    sections = re.split(r"^[A-Z][\w ]+:$", page, flags=re.MULTILINE)[1:]
    assert min(len(section.split()) for section in sections) >= 1


@each_analyzer()
def test_what_an_analyzer_declares_is_known(analyzer: type[Analyzer]) -> None:
    assert analyzer.needs <= NEEDS.keys()
    assert analyzer.references
    assert all(url.startswith("https://") for url in analyzer.references)
    assert all(isinstance(value, (int, float)) for value in analyzer.defaults.values())


@each_analyzer()
def test_a_threshold_that_does_not_exist_is_refused(analyzer: type[Analyzer]) -> None:
    with pytest.raises(UsageError, match=f"{analyzer.rule} has no setting 'minimum_share'; its settings are: "):
        analyzer({"minimum_share": 0.5})


def tiny_traces() -> dict[str, list[TraceBuilder]]:
    skewed = TraceBuilder()
    for at in range(0, 100, 10):
        skewed.kernel(SGEMM, at, 5, launch_us=at + 3)
    return {
        "one kernel": [TraceBuilder().kernel(SGEMM, 5, 10)],
        "one kernel without length": [TraceBuilder().kernel(SGEMM, 5, 0)],
        "one linked kernel": [TraceBuilder().kernel(SGEMM, 5, 10, launch_us=0)],
        "one copy": [TraceBuilder().memcpy("HtoD", 5, 10)],
        "one op": [TraceBuilder(device=None).op("aten::mm", 5, 10)],
        "one range": [TraceBuilder(device=None).range(LOADER, 5, 10)],
        "one step": [TraceBuilder().step(5, 10)],
        "one empty step": [TraceBuilder().step(5, 0)],
        "one call": [_called()],
        "one frame": [_framed()],
        "GPU only": [TraceBuilder().kernel(SGEMM, 5, 10).kernel(ALL_REDUCE, 50, 10)],
        "CPU only": [TraceBuilder(device=None).step(0, 99).op("aten::mm", 5, 10).range(LOADER, 20, 50)],
        "steps after all work": [TraceBuilder().kernel(SGEMM, 5, 10, launch_us=0).step(100, 50)],
        "skewed clocks": [skewed],
        "two ranks of one kernel": [TraceBuilder(rank=rank).kernel(ALL_REDUCE, 5, 10) for rank in (0, 1)],
        "a rank without a GPU": [healthy(), TraceBuilder(device=None, rank=1).op("aten::mm", 5, 10)],
    }


def _framed() -> TraceBuilder:
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 50)
    return trace


def _called() -> TraceBuilder:
    trace = TraceBuilder(device=None)
    trace.call("cudaMalloc", 5, 10)
    return trace


@pytest.mark.parametrize("name", tiny_traces())
def test_no_trace_is_too_small(name: str) -> None:
    ranks = tuple(Rank(trace.trace()) for trace in tiny_traces()[name])
    report = engine.diagnose(Run(ranks), ANALYZERS)
    assert [f.title for f in report.findings if f.rule == "PD901"] == []
    assert {o.status for o in report.outcomes} <= {"ran", "skipped"}
    assert {o.rule for o in report.outcomes} == {a.rule for a in ANALYZERS}


@pytest.mark.parametrize("value", [0, 0.5, True, "x", {}, [], [[]], [0], [[2**62, 2**62]], -(2**62), 2**62])
def test_no_argument_is_too_odd(value: object) -> None:
    trace = healthy().to_dict()
    for event in trace["traceEvents"]:
        event["args"] = dict.fromkeys((*event["args"], "Input Strides", "Concrete Inputs"), value)
        event["name"] += "9" * 5000 if event["name"].startswith("ProfilerStep#") else ""
    report = engine.diagnose(Run((Rank(parse(orjson.dumps(trace), "x")),)), ANALYZERS)
    assert [o for o in report.outcomes if o.status == "failed"] == []


def run_of(case: Case) -> Run:
    return Run(tuple(Rank(trace.trace(), facts=case.facts) for trace in case.ranks()))


@pytest.mark.parametrize("case", SPEAKING, ids=str)
def test_an_analyzer_is_deterministic_and_leaves_the_run_as_it_is(case: Case) -> None:
    run = run_of(case)
    before = [[column.copy() for column in columns(rank)] for rank in run.ranks]
    analyzer = BY_RULE[case.rule]
    first, second = list(analyzer().analyze(run)), list(analyzer().analyze(run))
    assert [f.to_dict() for f in first] == [f.to_dict() for f in second] != []
    for rank, kept in zip(run.ranks, before, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(columns(rank), kept, strict=True))


def columns(rank: Rank) -> list[np.ndarray]:
    return [getattr(table, name) for table in rank.raw_trace.tables for name in ("start_ns", "end_ns", "name")]


@pytest.mark.parametrize("case", SPEAKING, ids=str)
def test_what_a_finding_claims_lies_in_the_window_and_covers_its_cost(case: Case) -> None:
    run = run_of(case)
    for finding in BY_RULE[case.rule]().analyze(run):
        if finding.saving == Saving():  # promises nothing, so it need not claim anything
            continue
        rank = next(r for r in run.ranks if r.trace.rank == finding.claim.rank)
        inside = finding.claim.intervals
        assert len(inside)
        assert inside[0, 0] >= rank.window[0, 0]
        assert inside[-1, 1] <= rank.window[-1, 1]
        assert rank.per_step(finding.claim.total_ns) == finding.cost_ns
        assert finding.saving.basis != "unknown"
        assert 0 < finding.confidence <= 1


@pytest.mark.parametrize("case", [c for c in SPEAKING if c.rule != "PD003"], ids=str)
def test_without_steps_no_figure_is_of_a_step(case: Case) -> None:
    run = run_of(case)
    for finding in BY_RULE[case.rule]().analyze(run):
        if not any(rank.steps.count for rank in run.ranks):
            assert not re.search(r"\b(a|per) step\b", " ".join([finding.title, *(e.label for e in finding.evidence)]))


@pytest.mark.parametrize("case", [c for c in SPEAKING if "min_share" in BY_RULE[c.rule].defaults], ids=str)
def test_a_threshold_above_the_whole_silences_a_rule(case: Case) -> None:
    analyzer = BY_RULE[case.rule]
    report = engine.diagnose(run_of(case), [analyzer], {case.rule: {"min_share": 1e9}})
    assert report.findings == ()


# --- what the engine does with analyzers that misbehave -----------------------------------------------------------


class Crashing(RankAnalyzer):
    """Divides by zero after its first finding."""

    rule: ClassVar[str] = "XX001"
    name: ClassVar[str] = "crashing"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        yield self.finding(rank, title="half", cost_ns=1, advice="", saving=Saving(), claim=Claim())
        _ = 1 // 0


class Babbling(Analyzer):
    """Yields what is no finding."""

    rule: ClassVar[str] = "XX002"
    name: ClassVar[str] = "babbling"

    def analyze(self, run: Run) -> Iterator[Finding]:
        yield f"{len(run.ranks)} ranks"  # type: ignore[misc]


class Greedy(Analyzer):
    """Promises the whole step ten times over."""

    rule: ClassVar[str] = "XX003"
    name: ClassVar[str] = "greedy"

    def analyze(self, run: Run) -> Iterator[Finding]:
        for subject in "abc":
            yield self.finding(
                run.ranks[0],
                title=subject,
                cost_ns=10 * run.ranks[0].window_ns,
                advice="",
                saving=Saving(0, None, 10 * run.ranks[0].window_ns, "bounded"),
                claim=Claim(),
                subject=subject,
            )


class Demanding(Analyzer):
    """Needs what no rank has."""

    rule: ClassVar[str] = "XX004"
    name: ClassVar[str] = "demanding"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "moonlight"})

    def analyze(self, run: Run) -> Iterator[Finding]:
        raise AssertionError(f"it must not be asked about {run}")


def speaking_run() -> Run:
    return run_of(next(case for case in SPEAKING if case.rule == "PD101"))


@pytest.mark.parametrize(
    ("analyzer", "error"), [(Crashing, "ZeroDivisionError"), (Babbling, "TypeError: it yields a str")]
)
def test_a_crash_becomes_pd901_and_the_others_go_on(analyzer: type[Analyzer], error: str) -> None:
    report = engine.diagnose(speaking_run(), [analyzer, *ANALYZERS])
    fault = next(f for f in report.findings if f.rule == "PD901")
    assert analyzer.rule in fault.title
    assert error in fault.title
    assert (fault.severity, fault.cost_ns, fault.saving) == ("info", 0, Saving())
    statuses = {o.rule: (o.status, o.why) for o in report.outcomes}
    assert statuses[analyzer.rule][0] == "failed"
    assert error in (statuses[analyzer.rule][1] or "")
    assert statuses["PD101"] == ("ran", None)
    others = [f.to_dict() for f in report.findings if f.rule != "PD901"]
    assert others == [f.to_dict() for f in engine.diagnose(speaking_run(), ANALYZERS).findings] != []


def test_a_strangers_promises_are_capped_too() -> None:
    run = speaking_run()
    report = engine.diagnose(run, [Greedy])
    assert len(report.findings) == 3
    assert sum(f.saving.high_ns or 0 for f in report.findings) == run.ranks[0].window_ns


def test_what_an_analyzer_lacks_is_skipped_with_how_to_capture_it() -> None:
    cpu_only = Run((Rank(TraceBuilder(device=None).op("aten::mm", 0, 10).trace()),))
    why = {o.rule: (o.status, o.why) for o in engine.diagnose(cpu_only, [*ANALYZERS, Demanding]).outcomes}
    assert why["PD201"] == ("skipped", NEEDS["kernels"])
    assert why["PD401"][0] == "skipped"
    assert why["XX004"] == ("skipped", NEEDS["kernels"])
    assert why["PD101"] == ("ran", None)


def test_a_need_that_nobody_knows_is_named() -> None:
    report = engine.diagnose(speaking_run(), [Demanding])
    assert [(o.status, o.why) for o in report.outcomes if o.rule == "XX004"] == [
        ("skipped", "it needs 'moonlight', which is not known here")
    ]


def test_one_rank_is_told_to_bring_the_others() -> None:
    outcome = {o.rule: o for o in engine.diagnose(speaking_run(), ANALYZERS).outcomes}["PD401"]
    assert (outcome.status, outcome.why) == ("skipped", NEEDS["ranks"])


@pytest.mark.parametrize("need", NEEDS)
def test_every_need_says_what_to_do(need: str) -> None:
    fault, _, remedy = NEEDS[need].partition(": ")
    assert fault
    assert re.match(r"record|call|give", remedy)


def test_settings_for_an_unknown_rule_are_refused() -> None:
    with pytest.raises(UsageError, match="the rule 'XX999', which is not registered"):
        engine.check_settings({"XX999": {}}, ANALYZERS)


@pytest.mark.parametrize(("rule", "name"), [("pd1", "fine"), ("PD123", "Not Fine"), ("PD12", "fine")])
def test_a_rule_needs_a_proper_id_and_name(rule: str, name: str) -> None:
    with pytest.raises(TypeError, match="needs a rule like 'PD101' and a name like 'dataloader-stall'"):
        type("Odd", (Crashing,), {"rule": rule, "name": name})
