"""RuleCase: the traces of one or more ranks, and the findings that a rule must report on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing.trace_builder import TraceBuilder

Traces: TypeAlias = "TraceBuilder | list[TraceBuilder]"


@dataclass(frozen=True)
class ExpectedFinding:
    """What a finding must report; times are in ns per step.

    Attributes:
        severity, cost_ns: The exact values.
        saving: The exact low, expected and high saving as the rule gives it, without a replay, capped by the waits
            of the CPU where it claims time of kernels; None leaves it unchecked.
        location: Such as "train.py:12"; None where there must be none.
        title, advice, fix: Parts of these texts.
        rank, confidence: The exact values; None leaves them unchecked.
        evidence: The exact values of some pieces of evidence by their labels.
        saved_bytes: The exact bytes by which the peak gets lower: low, expected, high; None leaves it unchecked.
    """

    severity: str
    cost_ns: int
    saving: tuple[int | None, int | None, int | None] | None = None
    location: str | None = None
    title: str = ""
    advice: str = ""
    fix: str = ""
    rank: int | None = None
    confidence: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    saved_bytes: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class RuleCase:
    """One case of a rule.

    Attributes:
        rule: The rule's id.
        name: The name of the case, in words.
        build: Returns the trace, or a list of traces, one per rank.
        expected: The findings, the costliest first; empty where the rule must stay quiet.
        facts: What a capture recorded beside the trace, as facts.json has it; a list has those of each rank.
        via_file: Whether to test the case also by a file and `perfdoctor.analyze`.
    """

    rule: str
    name: str
    build: Callable[[], Traces]
    expected: tuple[ExpectedFinding, ...] = ()
    facts: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    via_file: bool = False

    def traces(self) -> list[TraceBuilder]:
        """The traces, one per rank."""
        built = self.build()
        return built if isinstance(built, list) else [built]

    def run(self) -> Run:
        """The ranks of the case, as a rule sees them."""
        traces = [builder.trace() for builder in self.traces()]
        facts = self.facts_of_ranks(len(traces))
        return Run(tuple(Rank(trace, facts=own) for trace, own in zip(traces, facts, strict=True)))

    def facts_of_ranks(self, count: int | None = None) -> list[CapturedFacts]:
        """The facts of each rank, of which there are `count`, if that is known; false where nothing was captured."""
        if self.facts is None or isinstance(self.facts, Mapping):
            return [CapturedFacts.parse(self.facts)] * (len(self.traces()) if count is None else count)
        return [CapturedFacts.parse(own) for own in self.facts]

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"
