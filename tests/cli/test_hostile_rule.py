"""A rule whose finding cannot be printed costs neither the report nor the exit code."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving


class Unprintable:
    """Raises when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __format__ = __str__  # type: ignore[assignment]


class HostileRule(RankAnalyzer):
    """Yields a finding with evidence that cannot be printed."""

    rule = "XX001"
    name = "hostile"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        evidence = (Evidence("number", Unprintable()),)  # type: ignore[arg-type]
        yield self.finding(
            rank, title="hostile", cost_ns=1, advice="none", saving=Saving(), claim=Claim(), evidence=evidence
        )


@pytest.mark.parametrize("options", [[], ["-q"], ["-v"], ["--json"]])
def test_the_report_comes_and_names_the_rule(perfdoctor, stalled, monkeypatch, options):
    rules = (*registry.list_rules(), registry.list_rule(HostileRule))
    monkeypatch.setattr(registry, "list_rules", lambda: rules)
    ended = perfdoctor("analyze", stalled, *options, "-o", "r.md", "-o", "r.txt", "-o", "r.json", "-o", "a.json.gz")
    assert ended.code == 0
    for text in (ended.out, *(Path(f"r.{suffix}").read_text(encoding="utf-8") for suffix in ("md", "txt", "json"))):
        assert "PD101" in text
        assert "PD901" in text
        assert "XX001 hostile failed: " in " ".join(text.split())
    events = json.loads(gzip.decompress(Path("a.json.gz").read_bytes()))["traceEvents"]
    assert "1. PD101 dataloader-stall" in {e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_a_gate_names_the_rule_that_failed(perfdoctor, busy, monkeypatch):
    rules = (*registry.list_rules(), registry.list_rule(HostileRule))
    monkeypatch.setattr(registry, "list_rules", lambda: rules)
    ended = perfdoctor("analyze", "-q", busy, "--fail-on", "high")
    assert ended.code == 1
    assert ended.line.endswith("--fail-on high could not be judged: XX001 failed")
