"""Finding: what a rule reports, with evidence, location, saving, and the time that the fix would free (its claim).

A Finding is checked where it is made, so that nothing malformed goes further, whoever wrote the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.recurrence import Recurrence
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.memory_edits import MemoryEdit
from perfdoctor.places.place import PlaceName
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.value_limits import Share

Severity: TypeAlias = Literal["info", "low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high")
FindingKey: TypeAlias = tuple[str, str, str]
"""Rule, subject and location: findings that agree in these are merged."""

# Shares of the step, as reports promise them to CI: high >= 10 %, medium >= 3 %, low >= 1 %.
_SEVERITY_FROM: tuple[tuple[float, Severity], ...] = ((0.10, "high"), (0.03, "medium"), (0.01, "low"))

SOURCE_LINE = "source-line"
"""Id of the evidence that holds the text of the line at the location."""
STEP_AFTER = "step-after-fixes"
"""Id of the evidence that holds the length of a step in ns after a fix and all fixes above it in the report."""
USED_AT = "used-at"
"""Id of the evidence that names the line where a thing is used; the location is where it is made."""
CALLED_AT = "called-at"
"""Id of the evidence that names the line where a module is called which the finding is about."""
HOT_PATH = "hot-path"
"""Id of the evidence that names what the CPU did, from the outermost name to the deepest, with ` > ` between."""
RANKS = "ranks"
"""Id of the evidence that lists the ranks with a finding, as ranges."""
ONCE = "Once in this trace: "
"""How the title of a finding begins that `occurs_once`."""


ENGINE_RULE = "PD901"
"""The rule of findings that say that another rule failed."""


def severity_of(share: float | None) -> Severity:
    """Severity of a fix that is worth `share` (0 to 1) of the step; unknown shares are info."""
    for min_share, severity in _SEVERITY_FROM:
        if share is not None and share >= min_share:
            return severity
    return "info"


def end_of_severity(severity: Severity) -> float:
    """The share of the step from which a fix is more severe than `severity`; inf for the most."""
    more = SEVERITIES[SEVERITIES.index(severity) + 1 :]
    return min((min_share for min_share, each in _SEVERITY_FROM if each in more), default=float("inf"))


@frozen_dataclass
class Evidence:
    """One observation.

    Attributes:
        label: What was observed, for people; `per {unit}` becomes "per step", or "in the recording" without steps.
        value: The observation; None where it is not known.
        unit: "ns", "%", "count", "bytes", or "" for text.
        id: What code finds it by, such as `USED_AT`; None where no code asks for it.
    """

    label: str
    value: float | int | str | None
    unit: str = ""
    id: str | None = None


@frozen_dataclass
class Action:
    """One thing that a fix does to a program, for code: `perfdoctor try` measures the change of that name.

    A fix that does several things at once has several actions, and no single change answers it.

    Attributes:
        id: The name of a change of `perfdoctor try`, such as "workers", or of an edit of a line that several rules
            may ask for, such as "make-on-device".
        value: Its setting, such as 4; several where any of them does; None where there is nothing to choose.
    """

    id: str
    value: int | str | tuple[str, ...] | None = None


@frozen_dataclass(eq=False)
class FindingScope:
    """The limits that a finding on one rank has to fit into.

    Attributes:
        step_ns: Length of a step, or of the window without steps: no cost is larger.
        window: The analysed time: no claim lies outside of it. None where it is not known.
        gpu_items, calls: Lengths of the tables whose rows an edit may name; None where they are not known.
    """

    step_ns: int
    window: Intervals | None = None
    gpu_items: int | None = None
    calls: int | None = None


@frozen_dataclass
class Finding:
    """One diagnosis. `cost_ns` and `saving` are per step when there are steps, else per window.

    Attributes:
        rule, name: Id and name of the rule.
        severity: By what the fix is worth alone, once the finding is priced; before that the highest that it may get.
        confidence: From 0 to 1.
        title: One sentence.
        rank: The rank; None means all ranks.
        cost_ns: Time that the fault costs.
        share_of_step: The cost as a share (0 to 1); None where the window is empty.
        saving: Time that the fix saves.
        location: The line of the user's code; None where it is not known.
        evidence: What was observed.
        advice, fix: What to do, in words and as code or a command.
        actions: What the fix does, for code. Findings of a rank with one line and the same actions are one. Empty where
            neither a change of a running program does it nor another rule sees the same.
        references: Web addresses to read more.
        claim: The time that the fix would free.
        subject: What the finding is about (an op, a kind of collective): with rule and location its identity, for
            merging ranks, comparisons and baselines.
        topics: More of what it is about, as the field guide asks for it, such as "convolution".
        edit: What the fix changes in the trace of the rank, for a replay.
        memory_edit: What the fix changes in the allocations of a device, for a new sum.
        saved_bytes: How much lower the peak of memory is after the fix; None where the finding is not about memory.
        order_key_ns: What the finding is ordered by instead of its saving. It lets a fix that pays only after another
            fix come after that one.
        scope: The limits of the finding; None where they are not known.
        recurrence: In how many steps it occurs, and what it costs there; None where it was not counted.
        seen_in: Numbers of the steps of the whole run in which it occurs, for its chart; empty where not known.
        occurs_once: Whether it is about a single event of the trace, as its title says.
        covered_by: The position in the report of the finding whose fix makes this one pointless; None for the others.
        covering_key: The `key` of that finding, while the order of findings is not known.
        makes_results_wrong: Whether the fault makes results wrong, not slow: it is high whatever it costs, and first.
        places: The places that hold the time it claims, the largest first; empty where it claims none.
        is_symptom: Whether it is what something else brings about, such as page faults: what is said of the line that
            does stands above it, and covers it.
        has_table_price: Whether what remains was measured elsewhere, on other sizes: what was measured here on nearly
            all of its time stands above it, and covers it.
        covers: Of a finding about several ranks: the `key` of each finding on its `rank` that is reported inside it.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A number is not finite, the cost exceeds the step, the claim exceeds the window, or the edit names
            rows of another trace.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("rule", "name", "severity", "confidence", "title", "rank", "cost_ns", "share_of_step", "recurrence"),
        *("saving", "saved_bytes", "covered_by", "location", "evidence", "advice", "fix", "references", "subject"),
        *("occurs_once", "actions"),
    )

    rule: str
    name: str
    title: str
    cost_ns: int
    share_of_step: Share | None
    severity: Severity
    saving: Saving
    advice: str
    confidence: Share = 1.0
    rank: int | None = None
    location: SourceLocation | None = None
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    references: tuple[str, ...] = ()
    claim: Claim = field(default_factory=Claim, repr=False, compare=False)
    actions: tuple[Action, ...] = field(default=(), repr=False)
    subject: str = field(default="", repr=False)
    topics: tuple[str, ...] = field(default=(), repr=False)
    edit: Edit | None = field(default=None, repr=False, compare=False)
    order_key_ns: float | None = field(default=None, repr=False, compare=False)
    scope: FindingScope | None = field(default=None, repr=False, compare=False)
    memory_edit: MemoryEdit | None = field(default=None, repr=False, compare=False)
    saved_bytes: SavedBytes | None = None
    recurrence: Recurrence | None = None
    seen_in: tuple[int, ...] = field(default=(), repr=False, compare=False)
    occurs_once: bool = False
    covered_by: int | None = None
    covering_key: FindingKey | None = field(default=None, repr=False, compare=False)
    makes_results_wrong: bool = field(default=False, repr=False)
    is_symptom: bool = field(default=False, repr=False, compare=False)
    has_table_price: bool = field(default=False, repr=False, compare=False)
    covers: tuple[FindingKey, ...] = field(default=(), repr=False, compare=False)
    places: tuple[PlaceName, ...] = field(default=(), repr=False, compare=False)

    @property
    def key(self) -> FindingKey:
        """Rule, subject and location."""
        return self.rule, self.subject, str(self.location)

    def find_evidence(self, key: str) -> float | int | str | None:
        """The value of the evidence with an id; None where there is none, or where its value is not known."""
        return next((each.value for each in self.evidence if each.id == key), None)

    @property
    def comes_back(self) -> bool:
        """Whether it costs time in steps to come, too."""
        return bool(self.cost_ns) and not self.is_one_off and not self.occurs_once

    @property
    def is_one_off(self) -> bool:
        """Whether it occurs in fewer than half of the steps, so that the median step does not have it."""
        return self.recurrence is not None and 2 * self.recurrence.steps < self.recurrence.of

    def __post_init__(self) -> None:
        for name, kinds in _TYPES.items():
            _require_type(name, getattr(self, name), *kinds)
        for name, maximum in (("confidence", 1), ("share_of_step", 1), ("order_key_ns", math.inf)):
            _require_number(name, getattr(self, name), maximum=maximum)
        for name, (what, kind) in _TYPES_WITHIN.items():
            _require_type(name, getattr(self, name), tuple)
            for each in getattr(self, name):
                _require_type(what, each, kind)
        for key in (self.covering_key, *self.covers):
            _check_key(key)
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity is one of {', '.join(SEVERITIES)}, not {self.severity!r}")
        if self.cost_ns < 0:
            raise ValueError(f"cost_ns cannot be {self.cost_ns}")
        _check_actions(self.actions)
        _check_location(self.location)
        _check_evidence(self.evidence)
        _check_claim(self.claim)
        if self.edit is not None:
            self.edit.check()
        if self.scope is not None:
            self._check_scope(self.scope)

    def _check_scope(self, scope: FindingScope) -> None:
        if self.cost_ns > scope.step_ns:
            raise ValueError(f"cost_ns is {self.cost_ns}, more than the {scope.step_ns} of the whole step")
        if scope.window is not None and len(iv.subtract(self.claim.intervals, scope.window)):
            raise ValueError("the claim holds time outside of the analysed window")
        for edit in self.edit.variants() if self.edit is not None else ():
            _require_rows_of("items", len(edit.items.table), len(edit.items), scope.gpu_items)
            for calls in (edit.dropped_calls, edit.unblocked_calls, edit.blocked_by):
                _require_rows_of("calls", len(calls.table), len(calls), scope.calls)


def describe_error(error: Exception) -> str:
    """The type and message of an exception; the type alone where printing it raises another one."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a stranger's exception may do anything when it is printed
        return type(error).__name__


def finding_of_failure(rule: str, name: str, error: Exception, rank: int | None = None) -> Finding:
    """Finding PD901: a rule failed, or its result is malformed, while the other rules ran.

    `error` is what the rule raised, or what is wrong with its result; `rank` is None where it analysed several.
    """
    return Finding(
        rule=ENGINE_RULE,
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


_TYPES: Mapping[str, tuple[type | None, ...]] = {
    **dict.fromkeys(("rule", "name", "title", "advice", "subject", "severity"), (str,)),
    **dict.fromkeys(("makes_results_wrong", "occurs_once", "is_symptom", "has_table_price"), (bool,)),
    **dict.fromkeys(("rank", "covered_by"), (int, None)),
    "covers": (tuple,),
    "cost_ns": (int,),
    "confidence": (int, float),
    "fix": (str, None),
    "saving": (Saving,),
    "recurrence": (Recurrence, None),
    "memory_edit": (MemoryEdit, None),
    "saved_bytes": (SavedBytes, None),
    "edit": (Edit, None),
}
_TYPES_WITHIN: Mapping[str, tuple[str, type]] = {
    "references": ("each of the references", str),
    "topics": ("each of the topics", str),
    "places": ("each of the places", PlaceName),
    "seen_in": ("a step of seen_in", int),
}
"""The values of a finding that are tuples: what is in them, and its type."""


def _require_type(name: str, value: object, *kinds: type | None) -> None:
    """Check that a value is of one of these types; a bool counts as an int nowhere."""
    allowed = tuple(type(None) if kind is None else kind for kind in kinds)
    if isinstance(value, allowed) and (bool in kinds or not isinstance(value, bool)):
        _require_64_bits(name, value)
        return
    wanted = " or ".join("None" if kind is None else kind.__name__ for kind in kinds)
    raise TypeError(f"{name} of a finding must be {wanted}, not {type(value).__name__}")


def _require_64_bits(name: str, value: object) -> None:
    """Check that an integer fits into int64, as readers of JSON and numpy columns need."""
    if isinstance(value, int) and value.bit_length() > 63:
        raise ValueError(f"{name} of a finding has {value.bit_length()} bits, more than the 64 of an integer")


def _require_number(name: str, value: Any, *, maximum: float = math.inf) -> None:
    """Check that a value is None or a finite number of at most `maximum`; a limited one is not negative."""
    if value is None:
        return
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise TypeError(f"{name} of a finding must be a number, not {type(value).__name__}")
    number: Any = value  # mypy knows no order of numpy's numbers
    if not abs(number) < math.inf or (maximum < math.inf and not 0 <= number <= maximum):
        raise ValueError(f"{name} of a finding cannot be {value}")
    _require_64_bits(name, value)


def _check_key(key: object) -> None:
    _require_type("covering_key", key, tuple, None)
    parts = key if isinstance(key, tuple) else ("", "", "")
    if len(parts) != 3:  # rule, subject, location
        raise TypeError(f"covering_key of a finding must be the key of another one, not {len(parts)} parts")
    for part in parts:
        _require_type("a part of covering_key", part, str)


def _check_actions(actions: tuple[Action, ...]) -> None:
    _require_type("actions", actions, tuple)
    for action in actions:
        _require_type("an action", action, Action)
        _require_type("the id of an action", action.id, str)
        for value in action.value if isinstance(action.value, tuple) else (action.value,):
            _require_type("the value of an action", value, int, str, None)


def _check_location(location: object) -> None:
    _require_type("location", location, SourceLocation, None)
    if isinstance(location, SourceLocation):
        _require_type("the file of the location", location.file, str)
        _require_type("the line of the location", location.line, int, None)
        _require_type("the function of the location", location.function, str, None)


def _check_evidence(evidence: object) -> None:
    _require_type("evidence", evidence, tuple)
    assert isinstance(evidence, tuple)
    for each in evidence:
        _require_type("a piece of evidence", each, Evidence)
        _require_type("the label of evidence", each.label, str)
        _require_type("the unit of evidence", each.unit, str)
        _require_type("the id of evidence", each.id, str, None)
        if not isinstance(each.value, str):
            _require_number(f"the value of evidence '{each.label}'", each.value)


def _check_claim(claim: object) -> None:
    _require_type("claim", claim, Claim)
    assert isinstance(claim, Claim)
    intervals: Any = claim.intervals
    if not isinstance(intervals, np.ndarray) or intervals.dtype != np.int64 or intervals.shape[1:] != (2,):
        raise TypeError("the intervals of a claim must be an int64 array of shape (n, 2)")
    edges = intervals.ravel()
    if (np.diff(edges) < 0).any() or (intervals[:, 0] >= intervals[:, 1]).any():
        raise ValueError("the intervals of a claim must be sorted, disjoint and not empty")
    _require_type("kernels of the claim", claim.kernels, bool)
    _require_type("the rank of the claim", claim.rank, int, None)
    _require_type("unshared_ns of the claim", claim.unshared_ns, int)


def _require_rows_of(what: str, table: int, rows: int, expected: int | None) -> None:
    if rows and expected is not None and table != expected:
        raise ValueError(f"the edit is about {what} of a table of {table} rows, and the rank's has {expected}")
