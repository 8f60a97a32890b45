"""The order of fixes: each is worth what it saves once those before it are done.

Savings of single fixes do not add up: two fixes may free the same wait, and one may be worth nothing until another is
done (faster kernels while the CPU is the bottleneck). So the fix that saves most comes first, then the one that saves
most after it, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from perfdoctor.savings.edits import Edit
from perfdoctor.savings.what_if import LEAST_EXPLAINED_WAIT, Replay

# How far a fix gets on its way to its upper bound: at least, as expected, at best. Kernels reach half of what a
# roofline allows them, nearly always less than all.
_STRENGTHS_OF_BOUND = (0.0, 0.5, 1.0)
_STRENGTHS_OF_EXACT = (1.0, 1.0, 1.0)
_LOW, _EXPECTED, _HIGH = range(3)
# A fix is masked if by itself it saves under a quarter of what it saves in its turn, if that is 1 % of the step.
_MASKED_SHARE = 0.25
_LEAST_MASKED_SHARE = 0.01
# Nodes of all replays together, some 0.3 s: beyond it fixes keep the order of what they save alone.
_MOST_NODES = 60_000_000


@dataclass(frozen=True, slots=True)
class OrderedFix:
    """One fix in its turn.

    Attributes:
        number: Which fix it is.
        low_ns, expected_ns, high_ns: What it saves of a step in its turn.
        step_after_ns: The step after it and all fixes before it, as expected.
        masked_by: The fix without which this one saves next to nothing; None where it saves enough by itself.
        alone_ns: What it saves by itself, as expected.
    """

    number: int
    low_ns: int
    expected_ns: int
    high_ns: int
    step_after_ns: int
    masked_by: int | None
    alone_ns: float


def order_fixes_greedily(replay: Replay, edits: Mapping[int, Edit]) -> list[OrderedFix]:
    """The fixes (by any number) in the order in which they are worth most, each with what it saves in its turn."""
    order = _GreedyOrder(replay, edits)
    order.find()
    before = {level: order.step_ns((), level) for level in (_LOW, _EXPECTED, _HIGH)}
    # Waits that the replay does not end may end in truth, and the other way round.
    trust = max(replay.gates.explained_wait_share, LEAST_EXPLAINED_WAIT)
    fixes = []
    for turn, number in enumerate(order.done):
        done = order.done[: turn + 1]
        after = {level: order.step_ns(done, level) for level in (_LOW, _HIGH)} | {_EXPECTED: order.steps_ns[turn]}
        saved = {level: max(before[level] - after[level], 0) for level in before}
        before = after
        saved[_LOW], saved[_HIGH] = saved[_LOW] * trust, saved[_HIGH] / trust
        low, expected, high = sorted(round(saved[level]) for level in (_LOW, _EXPECTED, _HIGH))
        alone_ns = order.saved_ns[number][0]
        fixes.append(
            OrderedFix(number, low, expected, high, round(after[_EXPECTED]), order.masked_by(number), alone_ns)
        )
    return fixes


@dataclass(slots=True)
class _GreedyOrder:
    """Fixes in the order in which they are worth most, and the step in ns after each."""

    replay: Replay
    edits: Mapping[int, Edit]
    done: list[int] = field(default_factory=list)
    steps_ns: list[float] = field(default_factory=list)
    saved_ns: dict[int, list[float]] = field(default_factory=dict)  # of each fix, in each round that it waited

    def step_ns(self, fixes: Iterable[int], level: int = _EXPECTED) -> float:
        edits = (self.edits[number] for number in fixes)
        return self.replay.step_ns((edit, _strengths(edit)[level]) for edit in edits)

    def find(self) -> None:
        """Choose in each round the fix that saves most then."""
        now_ns = self.step_ns(())
        replays_left = _MOST_NODES // max(len(self.replay.graph.lag_ns), 1)
        waiting = list(self.edits)
        while waiting:
            if replays_left >= len(waiting) or not self.done:
                replays_left -= len(waiting)
                for number in waiting:
                    self.saved_ns.setdefault(number, []).append(now_ns - self.step_ns((*self.done, number)))
            best = max(waiting, key=lambda number: (self.saved_ns[number][-1], -number))
            waiting.remove(best)
            self.done.append(best)
            now_ns = self.step_ns(self.done)
            self.steps_ns.append(now_ns)

    def masked_by(self, number: int) -> int | None:
        """The fix without which this one saves next to nothing; None where it saves enough by itself."""
        saved = self.saved_ns[number]
        rises = [after - before for before, after in pairwise(saved)]
        if not rises or saved[-1] < _LEAST_MASKED_SHARE * self.replay.now_ns:
            return None
        return self.done[rises.index(max(rises))] if saved[0] < _MASKED_SHARE * saved[-1] else None


def _strengths(edit: Edit) -> tuple[float, float, float]:
    return _STRENGTHS_OF_BOUND if edit.is_upper_bound else _STRENGTHS_OF_EXACT
