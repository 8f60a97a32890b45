"""Law 10: numbers agree. One report has one step length; the figures of its sentences, parts and ladder are the same.

The text is read as a reader reads it: the figures are taken from its lines, and added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from all_cases import CASES
from real_traces import analyze_once
from recordings import list_recordings, name_recording

from perfdoctor import pipeline
from perfdoctor.analyzers import _loader_wait_parts, pd111_slow_collate
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report
from perfdoctor.reporters import verdict
from perfdoctor.reporters.finding_texts import describe_cost
from perfdoctor.reporters.report_facts import main_findings
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.testing.rule_cases import RuleCase

_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_DURATION = r"(\d[\d,]*(?:\.\d+)?) (ns|us|ms|s)\b"
# Three digits are printed: two figures of one length differ by a hundredth at most.
_ROUNDING = 0.011
_OF_LOADER = re.compile(rf"waits ({_DURATION}) of (?:each|the trace's) ({_DURATION})")
_LOADER_RULES = ("PD101", "PD111")
_BAR = re.compile(rf"[█▓▒░] (compute|bandwidth|communication|overhead) +{_DURATION}")


def length_in(text: str) -> float:
    """The first length in a piece of text, in ns."""
    found = re.search(_DURATION, text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * _NS[found[2]]


def agree(first_ns: float, second_ns: float, digits: float = _ROUNDING) -> bool:
    """Whether two printed lengths may be of one figure."""
    return abs(first_ns - second_ns) <= digits * max(first_ns, second_ns)


def find_contradictions(report: Report) -> list[str]:
    """The figures in the text of a report that contradict each other, a line each."""
    text = Terminal().render(report)
    head = " ".join(text.partition("\n\n")[0].splitlines())
    too_much = [
        f"{finding.rule} saves {finding.saving.high_ns} of {finding.cost_ns}"
        for finding in report.findings
        if (finding.saving.high_ns or 0) > max(finding.cost_ns, finding.saving.alone.high_ns or 0)
    ]
    lines = [*_in_lengths(text, head), *_in_parts(text), *_in_findings(text, head), *_in_ladder(report, text)]
    return [*lines, *_in_loaders(report, text), *too_much]


def _in_lengths(text: str, head: str) -> Iterator[str]:
    """The length of a step, in the head, over the parts, and where the ladder begins."""
    lines = text.splitlines()
    said = re.search(rf"(?:takes|covers|come back each time is) ({_DURATION})", head)
    now = next((line for line in lines if re.match(rf"now {_DURATION}", line)), None)
    where = next((line for line in lines if re.match(r"Where (a step's|the) .* (go|went)", line)), None)
    lengths = {text: length_in(text) for text in (said and said[1], now, where) if text}
    for first in lengths:
        for second in lengths:
            if not agree(lengths[first], lengths[second]) and "on average" not in head:
                yield f"{first!r} is not {second!r}"
    if now is not None:
        steps = [length_in(found[0]) for found in re.finditer(_DURATION, now)]
        if any(later > earlier * (1 + _ROUNDING) for earlier, later in pairwise(steps)):
            yield f"a ladder that rises: {now!r}"


def _in_parts(text: str) -> Iterator[str]:
    """The four buckets are the whole."""
    where = re.search(r"^Where (?:a step's|the) .*$", text, re.MULTILINE)
    buckets = {found[1]: float(found[2].replace(",", "")) * _NS[found[3]] for found in _BAR.finditer(text)}
    if where is not None and buckets:
        whole_ns = length_in(where[0])
        if not agree(sum(buckets.values()), whole_ns, 2 * _ROUNDING):
            yield f"{buckets} is not {where[0]!r}"


def _in_findings(text: str, head: str) -> Iterator[str]:
    """What a finding costs in its paragraph is what the head says of it, and the share is that of the step."""
    first = re.search(r"^1\. .*?^    costs (.*?)$", text, re.MULTILINE | re.DOTALL)
    of_first = re.search(rf"(?:First to fix|Worth a look): ({_DURATION})", head)
    if first is not None and of_first is not None and not agree(length_in(first[1]), length_in(of_first[1])):
        yield f"the head says {of_first[1]}, the finding {first[1]!r}"
    now = re.search(r"^now .*", text, re.MULTILINE)
    for cost in re.finditer(rf"^    costs ({_DURATION})[^(]*\((\d+(?:\.\d+)?)%\)", text, re.MULTILINE):
        share = float(cost[4]) / 100
        if now is not None and abs(length_in(cost[1]) / length_in(now[0]) - share) > 0.006 + _ROUNDING * share:
            yield f"{cost[0]!r} of {now[0]!r}"


def _in_ladder(report: Report, text: str) -> Iterator[str]:
    """The ladder holds the finding that stands first, and no head denies what stands below it."""
    shares = re.findall(r"^    costs [^(]*\((\d+(?:\.\d+)?)%\)", text, re.MULTILINE)
    costs = [float(share) for share in shares]
    if "nothing was found that costs 1%" in text and any(share >= 1 for share in costs):
        yield f"nothing costs 1%, and findings cost {costs}%"
    first = next(iter(main_findings(report)), None)
    now = re.search(r"^now .*", text, re.MULTILINE)
    if first is None or now is None:
        return
    lengths = [length_in(found[0]) for found in re.finditer(_DURATION, now[0])]
    expected_ns, high_ns = first.saving.expected_ns, first.saving.high_ns
    if expected_ns and (len(lengths) == 1 or lengths[1] > lengths[0] - expected_ns + _ROUNDING * lengths[0]):
        yield f"{first.rule} saves {expected_ns} ns, and is not in {now[0]!r}"
    if expected_ns is None and high_ns and not re.search(r"with PD\d+", now[0]):
        yield f"{first.rule} saves up to {high_ns} ns, and is not in {now[0]!r}"


def _in_loaders(report: Report, text: str) -> Iterator[str]:
    """What the loop waits is what the finding costs, its parts are no more, and what a fix leaves is the rest."""
    for finding in report.findings:
        said = _OF_LOADER.search(finding.title)
        if said is None:
            continue
        wait_ns, step_ns = length_in(said[1]), length_in(said[4])
        cost = describe_cost(report, finding)
        part = re.search(rf"({_DURATION}) +\S+ +(?:idle, )?waiting for the DataLoader", text)
        if len(report.account) == 1 and part is not None and wait_ns > (1 + _ROUNDING) * length_in(part[1]):
            yield f"{finding.title!r} beside {part[0]!r}"
        if not agree(length_in(cost), wait_ns):
            yield f"{finding.title!r} {cost}"
        if not agree(verdict.step_length_ns(report), step_ns):
            yield f"{finding.title!r} of a step of {verdict.step_length_ns(report)} ns"
        for found in re.findall(rf"({_DURATION}) of (?:it|that|the wait)\b", f"{finding.title} {finding.advice}"):
            if length_in(found[0]) > (1 + _ROUNDING) * wait_ns:
                yield f"{found[0]} of {wait_ns} ns in {finding.title!r} {finding.advice!r}"
        left, saved_ns = re.search(rf"; with .* about ({_DURATION})$", finding.title), finding.saving.alone.expected_ns
        left_ns = step_ns - (saved_ns or 0)
        if left is not None and saved_ns is not None and abs(left_ns - length_in(left[1])) > _ROUNDING * step_ns:
            yield f"{finding.title!r} saves {saved_ns} ns"


@pytest.mark.parametrize("case", [case for case in CASES if case.expected and case.rule in _LOADER_RULES], ids=str)
def test_the_figures_of_loaders_agree(case: RuleCase) -> None:
    assert find_contradictions(pipeline.diagnose_run(case.run(), load_analyzers())) == []


@pytest.mark.parametrize("wrong", ["own_ns", "cost_ns"])
def test_two_figures_for_one_wait_are_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if (case.rule, case.name) == ("PD111", "own-collate-function"))
    measure = _loader_wait_parts.measure_loader_wait

    def measure_otherwise(rank: Rank) -> _loader_wait_parts.LoaderWait:
        wait = measure(rank)
        return wait._replace(share=1.4) if wrong == "own_ns" else wait._replace(cost_ns=round(1.4 * wait.cost_ns))

    assert find_contradictions(pipeline.diagnose_run(case.run(), load_analyzers())) == []
    monkeypatch.setattr(pd111_slow_collate, "measure_loader_wait", measure_otherwise)
    assert find_contradictions(pipeline.diagnose_run(case.run(), load_analyzers()))


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_the_figures_of_a_report_agree(path: Path) -> None:
    assert find_contradictions(analyze_once(path)) == []


def test_without_the_law_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next((each for each in list_recordings() if each.name.startswith("t4-vgg16")), None)
    if path is None:
        pytest.skip("../shared is not mounted")
    report = analyze_once(path)
    assert find_contradictions(report) == []
    true_length_ns = verdict.step_length_ns(report)

    monkeypatch.setattr(verdict, "step_length_ns", lambda _: true_length_ns * 1.2)

    assert find_contradictions(report)
