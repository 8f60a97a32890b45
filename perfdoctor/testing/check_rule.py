"""Checks that every rule must pass, built-in or not, for use in tests.

`check_rule(MyRule, CASES)` checks the contract (a manual page, known requirements, no failure on tiny or malformed
traces) and the table of cases, in which as many cases fire as stay quiet. The other functions check a part each, for
tests with one line per case. All of them raise AssertionError with a message about the fault.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from perfdoctor import pipeline
from perfdoctor.analysis_options import AnalysisOptions, Settings
from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.report.to_plain import to_plain
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, Run
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.savings.saving import Saving
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase
from perfdoctor.testing.trace_builder import TraceBuilder
from perfdoctor.trace import parse
from perfdoctor.trace.vocabulary import PROFILER_STEP, SINGLE_PROCESS_LOADER, dataloader_next_name, optimizer_step_name

HEADINGS = (
    "What it finds",
    "Why it costs time",
    "How it is measured",
    "How to fix",
    "When it is wrong",
    "Needs",
    "References",
)
"""The headings of the manual page of a rule, which is its docstring."""

_GEMM = "ampere_sgemm_128x64_nn"
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_LOADER = dataloader_next_name(SINGLE_PROCESS_LOADER)
_WITHOUT_TABLES = AnalysisOptions(tables=())  # a fifth of the time of a small trace
# Values that no profiler writes as an argument of an event.
MALFORMED_ARGUMENTS: tuple[object, ...] = (0, 0.5, True, "x", {}, [], [[]], [0], [[2**62, 2**62]], -(2**62), 2**62)


def check_rule(rule: type[Analyzer], cases: Sequence[RuleCase]) -> None:
    """Check the contract of a rule and all its cases.

    Raises:
        AssertionError: The rule breaks the contract, a case does not come out as expected, or the cases that fire and
            those that stay quiet are not equal in number.
    """
    check_contract(rule)
    for case in cases:
        run = case.run()
        check_case(rule, case, run)
        check_laws(rule, case, run)
    counts = Counter(bool(case.expected) for case in cases)
    _require(
        counts[True] == counts[False] > 0,
        f"{rule.rule} has {counts[True]} cases that fire and {counts[False]} that stay quiet; it needs as many of both",
    )
    repeated = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    _require(not repeated, f"several cases of {rule.rule} are called {repeated}")


def check_contract(rule: type[Analyzer]) -> None:
    """Check what needs no cases: the declaration of a rule, and that it fails on no tiny or malformed trace."""
    check_declaration(rule)
    for name in build_tiny_traces():
        check_tiny_trace([rule], name)
    for value in MALFORMED_ARGUMENTS:
        check_malformed_arguments([rule], value)


def check_declaration(rule: type[Analyzer]) -> None:
    """Check the manual page, the requirements, the references and the thresholds of a rule."""
    page = rule.read_manual()
    headings = tuple(re.findall(r"^([A-Z][\w ]+):$", page, re.MULTILINE))
    _require(headings == HEADINGS, f"the manual of {rule.__name__} needs the headings {HEADINGS}, not {headings}")
    summary, _, _ = page.partition("\n\n")
    _require(summary.endswith("."), f"the manual of {rule.__name__} must begin with a sentence")
    sections = re.split(r"^[A-Z][\w ]+:$", page, flags=re.MULTILINE)[1:]
    _require(all(section.split() for section in sections), f"a section of {rule.__name__}'s manual is empty")
    unknown = rule.needs - REQUIREMENTS.keys()
    _require(not unknown, f"{rule.rule} needs {sorted(unknown)}, which no trace has; known are {sorted(REQUIREMENTS)}")
    links = all(url.startswith("https://") for url in rule.references)
    _require(bool(rule.references) and links, f"{rule.rule} needs references, all of them https:// addresses")
    try:
        rule(MappingProxyType({"no_such_threshold": 0.5}))
    except UsageError:
        return
    raise AssertionError(f"{rule.rule} takes a threshold that it does not have")


def build_tiny_traces() -> dict[str, list[TraceBuilder]]:
    """Runs of next to nothing by name, each a list of traces, one per rank."""
    skewed = TraceBuilder()
    for at in range(0, 100, 10):
        skewed.kernel(_GEMM, at, 5, launch_us=at + 3)
    called, framed = TraceBuilder(device=None), TraceBuilder(device=None)
    called.call("cudaMalloc", 5, 10)
    framed.frame("train.py(3): main", 0, 50)
    return {
        "one kernel": [TraceBuilder().kernel(_GEMM, 5, 10)],
        "one kernel without length": [TraceBuilder().kernel(_GEMM, 5, 0)],
        "one linked kernel": [TraceBuilder().kernel(_GEMM, 5, 10, launch_us=0)],
        "one copy": [TraceBuilder().memcpy("HtoD", 5, 10)],
        "one op": [TraceBuilder(device=None).op("aten::mm", 5, 10)],
        "one range": [TraceBuilder(device=None).range(_LOADER, 5, 10)],
        "one step": [TraceBuilder().step(5, 10)],
        "one empty step": [TraceBuilder().step(5, 0)],
        "one call": [called],
        "one frame": [framed],
        "GPU only": [TraceBuilder().kernel(_GEMM, 5, 10).kernel(_ALL_REDUCE, 50, 10)],
        "CPU only": [TraceBuilder(device=None).step(0, 99).op("aten::mm", 5, 10).range(_LOADER, 20, 50)],
        "steps after all work": [TraceBuilder().kernel(_GEMM, 5, 10, launch_us=0).step(100, 50)],
        "skewed clocks": [skewed],
        "two ranks of one kernel": [TraceBuilder(rank=rank).kernel(_ALL_REDUCE, 5, 10) for rank in (0, 1)],
        "a rank without a GPU": [build_healthy_trace(), TraceBuilder(device=None, rank=1).op("aten::mm", 5, 10)],
    }


def build_healthy_trace(steps: int = 3) -> TraceBuilder:
    """A healthy trace: launches run ahead, copies are pinned, and steps end with a wait just when the GPU is done."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 2)
        trace.memcpy("HtoD", at + 4, 9, launch_us=at + 2, pinned=True)
        for row in range(9):
            trace.op("aten::mm", at + 10 + 20 * row, 15, shapes=[[512, 512], [512, 512]])
            name = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
            trace.kernel(name, at + 13 + 109 * row, 109, launch_us=at + 10.5 + (19 * row if row else 0))
        trace.range(optimizer_step_name("AdamW"), at + 200, 60)
        trace.call("cudaStreamSynchronize", at + 300, 694)
    return trace


def check_tiny_trace(rules: Iterable[type[Analyzer]], name: str) -> None:
    """Check that no rule fails on one of `build_tiny_traces`."""
    _check_no_failure(
        rules, Run(tuple(Rank(trace.trace()) for trace in build_tiny_traces()[name])), f"the trace '{name}'"
    )


def check_malformed_arguments(rules: Iterable[type[Analyzer]], value: object) -> None:
    """Check that no rule fails on a trace in which all arguments of all events have this value."""
    file = build_healthy_trace().to_dict()
    for event in file["traceEvents"]:
        event["args"] = dict.fromkeys((*event["args"], "Input Strides", "Concrete Inputs"), value)
        event["name"] += "9" * 5000 if re.search(PROFILER_STEP, event["name"]) else ""
    _check_no_failure(rules, Run((Rank(parse(orjson.dumps(file), "x")),)), f"arguments {value!r}")


def _check_no_failure(rules: Iterable[type[Analyzer]], run: Run, what: str) -> None:
    rules = tuple(rules)
    outcomes = {outcome.rule: outcome for outcome in pipeline.diagnose_run(run, rules).outcomes}
    failed = [f"{rule.rule}: {outcomes[rule.rule].why}" for rule in rules if outcomes[rule.rule].status == "failed"]
    _require(not failed, f"rules fail on {what}: {failed}")


def findings_of_rule(rule: type[Analyzer], run: Run, settings: Settings | None = None) -> list[Finding]:
    """The findings of one rule on some ranks, before pricing; `settings` are thresholds, as for `analyze`."""
    return _ask(rule, _data_for(rule, run), settings)


def _data_for(rule: type[Analyzer], run: Run) -> Run | Fleet:
    """What a rule is asked about: ranks, or their summaries where it compares those."""
    if not issubclass(rule, FleetAnalyzer):
        return run
    return Fleet(tuple(pipeline.summarize_rank(rank, options=_WITHOUT_TABLES) for rank in run.ranks))


def _ask(rule: type[Analyzer], data: Run | Fleet, settings: Settings | None = None) -> list[Finding]:
    findings, outcome = pipeline.run_rule(rule, data, settings)
    _require(outcome.status != "failed", f"{rule.rule} failed: {outcome.why}")
    return findings


def check_case(rule: type[Analyzer], case: RuleCase, run: Run | None = None) -> None:
    """Check that the rule finds exactly what the case expects; `run` are its ranks, where they exist already."""
    report = pipeline.diagnose_run(run or case.run(), [_without_edits(rule)], _WITHOUT_TABLES)
    outcome = next(outcome for outcome in report.outcomes if outcome.rule == rule.rule)
    _require(outcome.status != "failed", f"{case}: the rule failed: {outcome.why}")
    _require(outcome.status == "ran" or not case.expected, f"{case}: the rule was skipped: {outcome.why}")
    titles = [f"{finding.rule} {finding.title}" for finding in report.findings]
    wanted = "keep quiet" if not case.expected else f"say {len(case.expected)} things"
    _require(len(titles) == len(case.expected), f"{case}: the rule must {wanted}, and says {titles}")
    for finding, expected in zip(report.findings, case.expected, strict=True):
        check_promise(finding, f"{case}: ")
        check_finding(finding, expected, f"{case}: ")


def _without_edits(rule: type[Analyzer]) -> type[Analyzer]:
    """The same rule without edits: its savings are then its own and not those of a replay."""

    class WithoutEdits(rule):  # type: ignore[misc, valid-type]
        def finding(self, *args: Any, **named: Any) -> Finding:
            found: Finding = super().finding(*args, **named)
            return replace(found, edit=None)

    return WithoutEdits


def check_promise(finding: Finding, prefix: str = "") -> None:
    """Check that a priced finding whose fix was neither tried nor replayed promises nothing for certain.

    It may save nothing, and its bound alone makes it no more than medium; a fault that costs no time, such as wrong
    results or a process that was killed, may be high.
    """
    saving = finding.saving
    if saving.basis in ("bounded", "unknown"):
        _require(not saving.low_ns and not saving.alone.low_ns, f"{prefix}a bound is no promise: {saving}")
        by_bound = finding.severity == "high" and finding.cost_ns and not finding.makes_results_wrong
        _require(not by_bound, f"{prefix}high by a bound alone: {saving}")


def check_finding(finding: Finding, expected: ExpectedFinding, prefix: str = "") -> None:
    """Check that a finding is as expected; a message of failure begins with `prefix`."""
    saving = finding.saving
    evidence = {each.label: each.value for each in finding.evidence}
    _require_equal(f"{prefix}severity", finding.severity, expected.severity)
    _require_equal(f"{prefix}cost_ns", finding.cost_ns, expected.cost_ns)
    if expected.saving is not None:
        _require_equal(f"{prefix}saving", (saving.low_ns, saving.expected_ns, saving.high_ns), expected.saving)
    if expected.saved_bytes is not None:
        saved = finding.saved_bytes
        found = None if saved is None else (saved.low, saved.expected, saved.high)
        _require_equal(f"{prefix}saved_bytes", found, expected.saved_bytes)
    texts = {"title": finding.title, "advice": finding.advice, "fix": finding.fix or ""}
    for name, text in texts.items():
        wanted = getattr(expected, name)
        _require(wanted in text, f"{prefix}{name}: '{wanted}' is not in '{text}'")
    _require_equal(f"{prefix}location", str(finding.location) if finding.location else None, expected.location)
    for name in ("rank", "confidence"):
        if getattr(expected, name) is not None:
            _require_equal(f"{prefix}{name}", getattr(finding, name), getattr(expected, name))
    for label, value in expected.evidence.items():
        _require(label in evidence, f"{prefix}there is no evidence '{label}', only {sorted(evidence)}")
        _require_equal(f"{prefix}evidence '{label}'", evidence[label], value)


def check_laws(
    rule: type[Analyzer], case: RuleCase, run: Run | None = None, *, has_figures_of_run: bool = False
) -> None:
    """Check the laws that hold for a rule on any trace; `run` are the ranks of the case, where they exist already.

    The rule is deterministic and does not change the trace. Its claims lie in the window and cover its costs. In a
    trace without steps no figure is called one of a step. Figures of the whole captured run (`has_figures_of_run`) may
    be of steps that are not in the trace, and claims need not cover them. With a threshold `min_share` above 1 it finds
    nothing.
    """
    run = run or case.run()
    before = [[column.copy() for column in _columns(rank)] for rank in run.ranks]
    data = _data_for(rule, run)
    first, second = _ask(rule, data), _ask(rule, data)
    _require(to_plain(first) == to_plain(second), f"{case}: asked twice, the rule says different things")
    for rank, columns in zip(run.ranks, before, strict=True):
        same = all(np.array_equal(now, then) for now, then in zip(_columns(rank), columns, strict=True))
        _require(same, f"{case}: the rule changes the trace")
    for finding in first:
        if finding.saving != Saving():  # a finding that promises nothing need not claim anything
            _check_claim(finding, run, case, has_figures_of_run=has_figures_of_run)
        if not has_figures_of_run and not any(rank.steps.count for rank in run.ranks):
            text = " ".join([finding.title, *(each.label for each in finding.evidence)])
            of_step = re.search(r"\b(a|per) step\b", text)
            _require(not of_step, f"{case}: a figure is called one of a step, and there are none: {text}")
    if "min_share" in rule.defaults:
        found = _ask(rule, data, {rule.rule: {"min_share": 1e9}})
        _require(not found, f"{case}: with a min_share above the whole the rule still speaks")


def _check_claim(finding: Finding, run: Run, case: RuleCase, *, has_figures_of_run: bool) -> None:
    rank = next(rank for rank in run.ranks if rank.rank == finding.claim.rank)
    claimed, window = finding.claim.intervals, rank.window
    if len(claimed):
        inside = bool(claimed[0, 0] >= window[0, 0] and claimed[-1, 1] <= window[-1, 1])
    else:
        inside = has_figures_of_run
    _require(inside, f"{case}: the claim is empty or reaches beyond the window")
    if not has_figures_of_run:
        _require_equal(f"{case}: the claimed time a step", rank.per_step(finding.claim.total_ns), finding.cost_ns)
    known = ("bounded", "measured") if rank.facts.forms else ("bounded",)
    _require(finding.saving.basis in known, f"{case}: a rule tries no fix and replays none, it knows bounds")
    _require(0 < finding.confidence <= 1, f"{case}: the confidence is {finding.confidence}")


def _columns(rank: Rank) -> list[np.ndarray[Any, Any]]:
    return [getattr(table, name) for table in rank.raw_trace.tables for name in ("start_ns", "end_ns", "name")]


def _require_equal(what: str, value: object, wanted: object) -> None:
    _require(value == wanted, f"{what}: {value!r} instead of {wanted!r}")


def _require(condition: bool, message: str) -> None:
    """Raise AssertionError. A plain assert would vanish under ``python -O`` and have no message outside of tests."""
    if not condition:
        raise AssertionError(message)
