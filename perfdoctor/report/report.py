"""Report: the one value that every reporter renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.analysis.timeline.timeline import Timeline
from perfdoctor.report.finding import Finding
from perfdoctor.report.to_plain import to_plain

StepSource: TypeAlias = Literal["annotated", "inferred", "none"]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One trace file in the report.

    `base_ns` plus a time of the trace is nanoseconds since the epoch. It is not part of the schema: it aligns what was
    recorded beside the trace by another clock.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("path", "rank", "world_size", "device", "vendor", "complete", "events", "span_ns", "warnings"),
    )

    path: str
    rank: int | None
    world_size: int | None
    device: str | None
    vendor: str | None
    complete: bool
    events: int
    span_ns: int
    warnings: tuple[str, ...] = ()
    base_ns: int = 0


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The steps of a trace: the median and the variation (standard deviation over mean); None without steps.

    `unprofiled_ns` is the median step of a capture before anything was recorded, None when nobody timed it. It is for
    reports that people read and not part of the schema: findings carry it as evidence.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = ("count", "source", "median_ns", "variation")

    count: int = 0
    source: StepSource = "none"
    median_ns: int | None = None
    variation: float | None = None
    unprofiled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule: ran, skipped (`why` says what to capture) or failed (`why` is the error)."""

    SCHEMA: ClassVar[tuple[str, ...]] = ("rule", "status", "why", "seconds")

    rule: str
    status: Literal["ran", "skipped", "failed"]
    why: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an analysis: the findings in order, and a timeline and an account for each rank.

    `timeline` and `account` are in the order of `traces`. Ranks that could not be analysed stand at the end of `traces`
    and have neither. `late_ns` says by rank how much later than the second-latest it comes to the collectives of a
    step. It is empty where nobody waits or collectives could not be matched, and not part of the schema.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("schema", "version", "traces", "steps", "timeline", "account", "findings", "outcomes"),
    )

    schema: ClassVar[str] = "perfdoctor.report/1"

    version: str
    traces: tuple[TraceSummary, ...]
    steps: StepSummary
    timeline: tuple[Timeline, ...]
    account: tuple[Account, ...]
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]
    late_ns: Mapping[int | None, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[TraceSummary, ...]:
        """The ranks that could not be analysed; their warnings say why."""
        return self.traces[len(self.timeline) :]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data by schema perfdoctor.report/1: times in int64 ns, None for unknown."""
        plain: dict[str, Any] = to_plain(self)
        return plain
