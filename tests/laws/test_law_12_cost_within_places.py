"""Law 12: a finding's cost is part of the time of its places, on every recording."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from real_traces import analyze_once
from recordings import list_recordings, name_recording

from perfdoctor.report.report import Report

pytestmark = pytest.mark.corpus
# A replay without these frees more than the time that they take: what they delay comes earlier, too.
_FREES_MORE = {
    ("traces/a100-sam-bf16.json.gz", "PD102"),
    ("traces/v100-bare-list-workers0.json.gz", "PD304"),
    ("traces/v100-legacy-workers0.json.gz", "PD304"),
    ("traces/v100-torchrec-4ranks", "PD102"),
}
_ROUNDING = 1.02


def find_too_dear(report: Report) -> set[str]:
    """The rules of findings that cost more than their places take on any one rank."""
    rules = set()
    for number, finding in enumerate(report.findings):
        ns_of = Counter[int | None]()
        for place in report.places:
            if number in place.findings:
                ns_of[place.rank] += place.ns
        if finding.cost_ns > _ROUNDING * max(ns_of.values(), default=0) + 1000:
            rules.add(finding.rule)
    return rules


@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_a_finding_costs_no_more_than_its_places_take(path: Path) -> None:
    known = {rule for name, rule in _FREES_MORE if name == name_recording(path)}
    assert find_too_dear(analyze_once(path)) <= known
