"""What a case of a rule is: the traces of one or more ranks, and what the rule must say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from perfdoctor.rank import Rank
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing.trace_builder import TraceBuilder

Traces: TypeAlias = "TraceBuilder | list[TraceBuilder]"


@dataclass(frozen=True)
class ExpectedFinding:
    """What a finding must say; times in ns a step.

    Attributes:
        severity, cost_ns: Both exactly.
        saving: Low, expected and high exactly; None leaves it unchecked. It is what the rule says itself, not a replay.
        location: "train.py:12"; None where there must be none.
        title, advice, fix: Texts that the finding's must hold.
        rank, confidence: Exactly; None leaves them unchecked.
        evidence: By label the value that a piece of evidence must have.
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


@dataclass(frozen=True)
class RuleCase:
    """One case of a rule.

    Attributes:
        rule: The rule's id.
        name: What the case is called.
        build: Makes the trace, or a list of traces, a rank each.
        expected: What the rule must find, the costliest first; empty where it must keep quiet.
        facts: What a capture recorded beside the trace.
        via_file: Whether the case is also to be read from a file through `perfdoctor.analyze`.
    """

    rule: str
    name: str
    build: Callable[[], Traces]
    expected: tuple[ExpectedFinding, ...] = ()
    facts: Mapping[str, Any] | None = None
    via_file: bool = False

    def traces(self) -> list[TraceBuilder]:
        """The traces, a rank each."""
        built = self.build()
        return built if isinstance(built, list) else [built]

    def run(self) -> Run:
        """The ranks as a rule sees them."""
        return Run(tuple(Rank(trace.trace(), facts=self.facts) for trace in self.traces()))

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"
