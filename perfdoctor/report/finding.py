"""What an analyzer says: a Finding with its Evidence, SourceLocation and Saving, and the time that it lays claim to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.trace.tables.intervals import EMPTY, Intervals, total

if TYPE_CHECKING:
    from perfdoctor.savings.edits import Edit

Basis: TypeAlias = Literal["measured", "replayed", "bounded", "unknown"]
Severity: TypeAlias = Literal["info", "low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high")

# Shares of the step, from contracts.md: high >= 10 %, medium >= 3 %, low >= 1 %.
_SEVERITY_FROM: tuple[tuple[float, Severity], ...] = ((0.10, "high"), (0.03, "medium"), (0.01, "low"))

STEP_AFTER = "step after this fix and those above"
"""Label of the evidence that says how long a step takes after a fix and those before it in the report, in ns."""
STEP_BEFORE = "step before any fix, without the profiler"
"""Label of the evidence that says what step savings are of, in ns, where that is not the recorded one."""


def severity_of(share: float | None) -> Severity:
    """Severity of a cost that is `share` (0 to 1) of the step; unknown shares are info."""
    for least, severity in _SEVERITY_FROM:
        if share is not None and share >= least:
            return severity
    return "info"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen: `value` in `unit` ("ns", "%", "count", "bytes", "" for text); None means not known."""

    label: str
    value: float | int | str | None
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return {"label": self.label, "value": self.value, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Saving:
    """What a fix would save, in ns a step (or of the window when there are no steps), and how that was got.

    "measured": the fix was tried. "replayed": the trace was played again without the fault. "bounded": between what
    can be proven and what cannot be exceeded. "unknown": no number, all None.
    """

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: Basis = "unknown"

    def __post_init__(self) -> None:
        known = [v for v in (self.low_ns, self.expected_ns, self.high_ns) if v is not None]
        if known != sorted(known) or any(v < 0 for v in known):
            raise ValueError(f"a saving needs 0 <= low <= expected <= high, not {self}")
        if self.basis == "unknown" and known:
            raise ValueError("a saving with a number needs a basis")

    def capped(self, most_ns: int) -> Saving:
        """The same saving where no figure exceeds `most_ns`."""

        def cap(value: int | None) -> int | None:
            return None if value is None else min(value, most_ns)

        return Saving(cap(self.low_ns), cap(self.expected_ns), cap(self.high_ns), self.basis)

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return {"low_ns": self.low_ns, "expected_ns": self.expected_ns, "high_ns": self.high_ns, "basis": self.basis}


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The time of one rank that a finding wants to save: ranking sees to it that no nanosecond is promised twice.

    `intervals` lie in the analysed window of `rank`. `kernels` says that the time is kernel time, which becomes wall
    time only as far as the CPU waits for the GPU; idle time is wall time already. `elsewhere_ns` is claimed time that
    no other finding can claim any more, so that its place was forgotten.
    """

    intervals: Intervals = field(default_factory=lambda: EMPTY)
    kernels: bool = False
    rank: int | None = None
    exclusive_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Length of the claimed time."""
        return total(self.intervals) + self.exclusive_ns


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis. `cost_ns` and `saving` are per step when there are steps, else for the window.

    `rank` None means all ranks.

    `subject` is what it is about (an op, a kind of collective): the same rule on the same subject and place in
    several ranks is one finding. `edit` is what the fix changes in the trace of its rank, for a replay; `turn_ns` is
    what it is ordered by where that is not what it saves: a fix that another one makes worth while comes after it.
    """

    rule: str
    name: str
    title: str
    cost_ns: int
    share_of_step: float | None
    severity: Severity
    saving: Saving
    advice: str
    confidence: float = 1.0
    rank: int | None = None
    location: SourceLocation | None = None
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    references: tuple[str, ...] = ()
    claim: Claim = field(default_factory=Claim, repr=False, compare=False)
    subject: str = field(default="", repr=False)
    edit: Edit | None = field(default=None, repr=False, compare=False)
    order_key_ns: float | None = field(default=None, repr=False, compare=False)

    @property
    def expected_saving_ns(self) -> float:
        """What findings are ordered by, unless they have a turn.

        The expected saving, the middle of its range where only bounds are known, 0 where nothing is.
        """
        if self.saving.expected_ns is not None:
            return self.saving.expected_ns
        return ((self.saving.low_ns or 0) + (self.saving.high_ns or 0)) / 2

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema; the claim is not part of it."""
        return {
            "rule": self.rule,
            "name": self.name,
            "severity": self.severity,
            "confidence": self.confidence,
            "title": self.title,
            "rank": self.rank,
            "cost_ns": self.cost_ns,
            "share_of_step": self.share_of_step,
            "saving": self.saving.to_dict(),
            "location": asdict(self.location) if self.location else None,
            "evidence": [e.to_dict() for e in self.evidence],
            "advice": self.advice,
            "fix": self.fix,
            "references": list(self.references),
        }


def failed_rule_finding(rule: str, name: str, error: Exception, rank: int | None) -> Finding:
    """Finding PD901: a rule failed, and the others ran.

    Args:
        rule: The id of the rule that failed.
        name: Its name.
        error: Why it failed.
        rank: The rank on which it failed; None for all ranks.
    """
    return Finding(
        rule="PD901",
        name="analyzer-failed",
        title=f"{rule} {name} failed: {describe_error(error)}",
        cost_ns=0,
        share_of_step=None,
        severity="info",
        saving=Saving(),
        advice="The other rules ran. Please report this with the trace, if you can share it.",
        rank=rank,
        subject=rule,
    )


def describe_error(error: Exception) -> str:
    """The class and the message of an exception; the class alone where the message itself raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception of a third party
        return type(error).__name__
