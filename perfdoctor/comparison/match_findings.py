"""Findings that were fixed, are new or still there, and what was promised for the fixed ones against what came."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from perfdoctor.analysis.step_noise import StepDifference
from perfdoctor.comparison.seen_finding import Promised, SeenFinding
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import SEVERITIES
from perfdoctor.value_limits import Signed

FindingStatus: TypeAlias = Literal["fixed", "smaller", "still there", "new"]
Outcome: TypeAlias = Literal["kept", "less", "more", "unknown"]

# A finding that costs less than this share of what it did before counts as fixed for the most part.
_SMALLER_SHARE = 0.5
ALL_TOGETHER = "all together"
"""The rule of the promise of several findings that went together."""


@frozen_dataclass
class FindingChange:
    """A finding before and after.

    Attributes:
        rule, name, title, severity: Those after where it is still there, else those before.
        status: "fixed": only before. "new": only after. "smaller": it costs less than half. "still there".
        file, line, function: Its location, after where it is there; None where it has none.
        before_cost_ns, after_cost_ns: Its cost a step; None on the side that lacks it.
    """

    rule: str
    name: str
    title: str
    severity: Annotated[str, ("enum", SEVERITIES)]
    status: FindingStatus
    file: str | None
    line: int | None
    function: str | None
    before_cost_ns: int | None
    after_cost_ns: int | None


@frozen_dataclass
class Promise:
    """What the fix of a finding was said to save in a step against what came.

    Where several findings went, the step shows only what came of them together: that is a promise of its own, with the
    rule `ALL_TOGETHER`, and nothing came of each by itself that could be known.

    Attributes:
        rule, name: Of the finding.
        promised: What was promised: alone if it is the only one that went, else in its turn.
        came_ns: How much shorter the median step became; None where only the others together are known.
        low_ns, high_ns: Between these it lies, with the noise.
        outcome: "kept" where that range meets what was promised, "less", "more", or "unknown".
    """

    rule: str
    name: str
    promised: Promised
    came_ns: Signed | None = None
    low_ns: Signed | None = None
    high_ns: Signed | None = None
    outcome: Outcome = "unknown"


Pair: TypeAlias = tuple[SeenFinding | None, SeenFinding | None]

# Findings of one rule are the same if they agree in one of these, asked in this order. Lines move when a program is
# edited, and so do folders.
_Key: TypeAlias = Callable[[SeenFinding], Hashable | None]
_SAME: tuple[_Key, ...] = (
    lambda f: (f.subject, f.file, f.line, f.function),
    lambda f: (f.subject, f.file_name, f.source) if f.source else None,
    lambda f: (f.subject, f.file_name, f.function) if f.file else None,
    lambda f: (f.kind, f.file_name, f.function) if f.file else None,
    lambda f: (f.file_name, f.function) if f.file else None,
    lambda f: (f.subject, f.file_name) if f.subject else None,
    lambda f: f.kind,
    lambda f: f.file_name,
)
SAME_CODE: tuple[_Key, ...] = (
    *_SAME[:4],
    lambda f: (f.file_name, f.source) if f.source else None,
    lambda f: f.kind if f.file is None else None,
)
"""The stricter sense of the same: about one thing in the same code, by the text of its line or by its function."""


def match_findings(before: Sequence[SeenFinding], after: Sequence[SeenFinding]) -> tuple[FindingChange, ...]:
    """The findings that went, came and stayed: fixed ones first, then new ones, then the others.

    Of each kind those that make results wrong stand first, the others by their cost.
    """
    statuses = ("fixed", "smaller", "new", "still there")

    def order(change: FindingChange) -> tuple[int, bool, int, str]:
        cost_ns = change.after_cost_ns or change.before_cost_ns or 0
        # All other findings of high severity cost time.
        is_about_results = change.severity == "high" and not cost_ns
        return statuses.index(change.status), not is_about_results, -cost_ns, change.rule

    return tuple(sorted((_describe_change(*pair) for pair in pair_findings(before, after)), key=order))


def pair_findings(
    before: Sequence[SeenFinding], after: Sequence[SeenFinding], keys: Sequence[_Key] = _SAME
) -> list[Pair]:
    """Each finding with the same one of the other side, or None; the same is what agrees in one of `keys`."""
    pairs: list[Pair] = []
    gone, come = list(before), list(after)

    def pair(old: SeenFinding, found: SeenFinding | None) -> None:
        if found is not None:
            pairs.append((old, found))
            gone.remove(old)
            come.remove(found)

    # Where one side does not say what its findings are about, titles have to do on both.
    by_title = any(each.subject is None for each in (*before, *after))
    seen = {id(each): replace(each, subject=None) if by_title else each for each in (*before, *after)}
    for same in keys:
        for old in list(gone):
            key = same(seen[id(old)])
            alike = (new for new in come if new.rule == old.rule and key is not None and same(seen[id(new)]) == key)
            pair(old, next(alike, None))
    for old in list(gone):
        # Of the same rule without a place on one side: a capture knows lines that a bare trace does not.
        lacking = (new for new in come if new.rule == old.rule and None in (old.file, new.file))
        pair(old, next((new for new in lacking if keys is _SAME or seen[id(old)].kind == seen[id(new)].kind), None))
    return [*pairs, *((old, None) for old in gone), *((None, new) for new in come)]


def _is_smaller(old: SeenFinding, new: SeenFinding) -> bool:
    return new.cost_ns < _SMALLER_SHARE * old.cost_ns


def _describe_change(old: SeenFinding | None, new: SeenFinding | None) -> FindingChange:
    shown = new or old
    assert shown is not None
    if old is None or new is None:
        status: FindingStatus = "new" if old is None else "fixed"
    else:
        status = "smaller" if _is_smaller(old, new) else "still there"
    return FindingChange(
        **{name: getattr(shown, name) for name in ("rule", "name", "title", "severity", "file", "line", "function")},
        status=status,
        before_cost_ns=None if old is None else old.cost_ns,
        after_cost_ns=None if new is None else new.cost_ns,
    )


def check_promises(
    before: Sequence[SeenFinding], after: Sequence[SeenFinding], step: StepDifference
) -> tuple[Promise, ...]:
    """For each finding that went, or costs less than half, what was promised; and what came of them together."""
    went = _find_promises(before, after)
    if len(went) == 1:
        finding, promised = went[0]
        alone = finding.promised_alone if finding.promised_alone.is_known else promised
        return (_check_promise(finding.rule, finding.name, alone, step),)
    if not went:
        return ()
    each = tuple(Promise(finding.rule, finding.name, promised) for finding, promised in went)
    promises = [promised for _, promised in went]
    together = Promised(
        sum(promised.low_ns or 0 for promised in promises),
        sum(map(_expected_ns, promises)),
        sum(map(_max_saving_ns, promises)),
        "sum",
    )
    return (_check_promise(ALL_TOGETHER, f"{len(went)} findings", together, step), *each)


def _find_promises(before: Sequence[SeenFinding], after: Sequence[SeenFinding]) -> list[tuple[SeenFinding, Promised]]:
    """The findings that went, or cost less than half, with what was promised; without those that others cover.

    Of one that is covered by a finding which is still there, the promise is what its fix gives alone.
    """
    gone = {
        id(old)
        for old, new in pair_findings(before, after)
        if old is not None and not old.is_one_off and (new is None or _is_smaller(old, new))
    }
    found = []
    for finding in before:
        covering = None if finding.covered_by is None else before[finding.covered_by]
        if id(finding) not in gone or (covering is not None and id(covering) in gone):
            continue
        promised = finding.promised if covering is None else finding.promised_alone
        if promised.is_known:
            found.append((finding, promised))
    return found


def _expected_ns(promised: Promised) -> int:
    """What is expected, else the middle of the range."""
    if promised.expected_ns is not None:
        return promised.expected_ns
    return ((promised.low_ns or 0) + (promised.high_ns or 0)) // 2


def _max_saving_ns(promised: Promised) -> int:
    return promised.high_ns if promised.high_ns is not None else _expected_ns(promised)


def _check_promise(rule: str, name: str, promised: Promised, step: StepDifference) -> Promise:
    if step.difference_ns is None:
        return Promise(rule, name, promised)
    came_ns = -step.difference_ns
    if step.low_ns is None or step.high_ns is None:
        return Promise(rule, name, promised, came_ns)
    low_ns, high_ns = -step.high_ns, -step.low_ns
    min_ns = promised.low_ns if promised.low_ns is not None else 0
    outcome: Outcome = "less" if high_ns < min_ns else "more" if low_ns > _max_saving_ns(promised) else "kept"
    return Promise(rule, name, promised, came_ns, low_ns, high_ns, outcome)
