"""Law 10: numbers agree. One report has one step length; the figures of its sentences, parts and ladder are the same.

The text is read as a reader reads it: the figures are taken from its lines, and added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from real_traces import analyze_once
from recordings import list_recordings, name_recording

from perfdoctor.report.report import Report
from perfdoctor.reporters import verdict
from perfdoctor.reporters.terminal import Terminal

_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_DURATION = r"(\d[\d,]*(?:\.\d+)?) (ns|us|ms|s)\b"
# Three digits are printed: two figures of one length differ by a hundredth at most.
_ROUNDING = 0.011
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
    return [*_in_lengths(text, head), *_in_parts(text), *_in_findings(text, head), *too_much]


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
    of_first = re.search(rf"First to fix: ({_DURATION})", head)
    if first is not None and of_first is not None and not agree(length_in(first[1]), length_in(of_first[1])):
        yield f"the head says {of_first[1]}, the finding {first[1]!r}"
    now = re.search(r"^now .*", text, re.MULTILINE)
    for cost in re.finditer(rf"^    costs ({_DURATION})[^(]*\((\d+(?:\.\d+)?)%\)", text, re.MULTILINE):
        share = float(cost[4]) / 100
        if now is not None and abs(length_in(cost[1]) / length_in(now[0]) - share) > 0.006 + _ROUNDING * share:
            yield f"{cost[0]!r} of {now[0]!r}"


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
