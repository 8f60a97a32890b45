"""Fixes replayed one on top of the other: what each saves once those above it are done.

Savings of single fixes do not add up: two fixes may free the same wait, and one may be worth nothing until another is
done (faster kernels while the CPU is the bottleneck). So the fix that saves most comes first, then the one that saves
most after it, and so on; each is promised what it saves at its turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from perfdoctor.report.finding import STEP_AFTER, STEP_BEFORE, Evidence, Finding, Saving
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.what_if import LEAST_RELEASED, Replay, replay_of

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

# How far a fix gets on its way to its bound: at least, as expected, at best. Kernels reach half of what a roofline
# allows them, nearly always less than all.
_OF_BOUND = (0.0, 0.5, 1.0)
_OF_EXACT = (1.0, 1.0, 1.0)
_LOW, _EXPECTED, _HIGH = range(3)
# A fix is masked if by itself it saves under a quarter of what it saves in its turn, and that is worth a word.
_MASKED = 0.25
_WORTH_A_WORD = 0.01
# Nodes to settle, some 0.3 s: beyond it fixes keep the order of what they save alone.
_PATIENCE = 60_000_000


@dataclass(slots=True)
class _Order:
    """Fixes in the order in which they are worth most, and the step in ns after each."""

    replay: Replay
    fixes: dict[int, Edit]
    done: list[int] = field(default_factory=list)
    steps_ns: list[float] = field(default_factory=list)
    saved_ns: dict[int, list[float]] = field(default_factory=dict)  # of each fix, in each round that it waited

    def step_ns(self, fixes: Iterable[int], level: int = _EXPECTED) -> float:
        return self.replay.step_ns((e, _strengths(e)[level]) for e in (self.fixes[number] for number in fixes))

    def find(self) -> None:
        """Choose in each round the fix that saves most then."""
        now_ns = self.step_ns(())
        patience = _PATIENCE // max(len(self.replay.graph.lag_ns), 1)
        left = list(self.fixes)
        while left:
            if patience >= len(left) or not self.done:
                patience -= len(left)
                for number in left:
                    self.saved_ns.setdefault(number, []).append(now_ns - self.step_ns((*self.done, number)))
            best = max(left, key=lambda number: (self.saved_ns[number][-1], -number))
            left.remove(best)
            self.done.append(best)
            now_ns = self.step_ns(self.done)
            self.steps_ns.append(now_ns)

    def masked_by(self, number: int) -> int | None:
        """The fix without which this one saves next to nothing; None where it saves enough by itself."""
        saved = self.saved_ns[number]
        rises = [after - before for before, after in pairwise(saved)]
        if not rises or saved[-1] < _WORTH_A_WORD * self.replay.now_ns:
            return None
        return self.done[rises.index(max(rises))] if saved[0] < _MASKED * saved[-1] else None


def order_fixes_greedily(rank: Rank, findings: Iterable[Finding]) -> list[Finding]:
    """The findings of one rank, those whose fix can be replayed with what they save in their turn.

    Where the trace cannot be replayed their evidence says why, and the savings stay the bounds that they were. Edits
    are gone: rows of a trace mean nothing without it.
    """
    findings = list(findings)
    fixes = {number: finding.edit for number, finding in enumerate(findings) if finding.edit is not None}
    replay = replay_of(rank) if fixes else None
    if replay is None:
        return [replace(finding, edit=None) for finding in findings]
    if replay.gates.why is not None:
        return [_not_replayed(finding, replay.gates.why) for finding in findings]
    order = _Order(replay, fixes)
    order.find()
    told = dict(zip(order.done, _told(order, findings), strict=True))
    return [told.get(number, finding) for number, finding in enumerate(findings)]


def _not_replayed(finding: Finding, why: str) -> Finding:
    if finding.edit is None:
        return finding
    return replace(finding, edit=None, evidence=(*finding.evidence, Evidence("not replayed", why)))


def _strengths(edit: Edit) -> tuple[float, float, float]:
    return _OF_BOUND if edit.is_upper_bound else _OF_EXACT


def _told(order: _Order, findings: list[Finding]) -> Iterable[Finding]:
    """The findings whose fixes were replayed, in their order."""
    before = {level: order.step_ns((), level) for level in (_LOW, _EXPECTED, _HIGH)}
    trust = max(order.replay.gates.explained_wait_share, LEAST_RELEASED)
    turn_ns = float("inf")
    for place, number in enumerate(order.done):
        done = order.done[: place + 1]
        after = {level: order.step_ns(done, level) for level in (_LOW, _HIGH)} | {_EXPECTED: order.steps_ns[place]}
        saved = {level: max(before[level] - after[level], 0) for level in before}
        before = after
        # Waits that the replay does not free may be freed in truth, and the other way round.
        saved[_LOW], saved[_HIGH] = saved[_LOW] * trust, saved[_HIGH] / trust
        finding = findings[number]
        low, expected, high = sorted(round(saved[level]) for level in (_LOW, _EXPECTED, _HIGH))
        if not order.fixes[number].is_upper_bound:
            # Of a wait that vanishes the rule knows, too, what it is worth: of two pairs of recordings before and
            # after the fix, the replay came nearer in one and the rule in the other (docs/measuring.md).
            high = max(high, finding.saving.expected_ns or 0)
        most = finding.cost_ns if finding.saving.high_ns is None else min(finding.saving.high_ns, finding.cost_ns)
        turn_ns = min(turn_ns, expected, most)
        mask = order.masked_by(number)
        yield replace(
            finding,
            edit=None,
            order_key_ns=turn_ns - place * 1e-6,  # what saves alike keeps the order of the rounds
            saving=Saving(low, expected, high, "replayed").capped(most),
            evidence=(
                *finding.evidence,
                Evidence(STEP_AFTER, round(after[_EXPECTED]), "ns"),
                *([] if order.replay.profiled else [Evidence(STEP_BEFORE, order.replay.now_ns, "ns")]),
                *([] if mask is None else [_masked(findings[mask], order.saved_ns[number][0])]),
            ),
        )


def _masked(by: Finding, alone_ns: float) -> Evidence:
    return Evidence(f"saves by itself, masked until {by.rule} is fixed", round(max(alone_ns, 0)), "ns")
