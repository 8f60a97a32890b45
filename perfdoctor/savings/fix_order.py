"""The order of fixes: each is worth what it saves once the fixes before it are done.

Savings of single fixes do not add up. Two fixes can end the same wait, and one can be worth nothing until another is
done (faster kernels while the CPU is the bottleneck). So the fix that saves most comes first, then the one that saves
most after it, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from perfdoctor.savings.edits import Edit
from perfdoctor.savings.what_if import MIN_EXPLAINED_WAIT, Replay

# The strength of a fix of which only an upper bound is known: at least, in the middle, at most. The middle decides the
# order of fixes; it is no promise.
_STRENGTHS_OF_BOUND = (0.0, 0.5, 1.0)
_LOW, _EXPECTED, _HIGH = range(3)
# A fix is masked if alone it saves less than a quarter of what it saves after others, where that is 1 % of the step.
_MASKED_SHARE = 0.25
_MIN_MASKED_SHARE = 0.01
# Nodes of all replays together, which take some 0.3 s. Beyond that the savings of the last round decide.
_MAX_NODES = 60_000_000


@dataclass(frozen=True, slots=True)
class OrderedFix:
    """One fix, with what it saves after all fixes before it.

    Attributes:
        number: The fix, by its number among the edits.
        low_ns, expected_ns, high_ns: What it saves of a step after all fixes before it.
        step_after_ns: How long a step is expected to take after it and all fixes before it.
        masked_by: The fix without which this one saves next to nothing; None where it saves enough alone.
        alone_ns: What it is expected to save alone.
    """

    number: int
    low_ns: int
    expected_ns: int
    high_ns: int
    step_after_ns: int
    masked_by: int | None
    alone_ns: float


def order_fixes_greedily(replay: Replay, edits: Mapping[int, Edit]) -> list[OrderedFix]:
    """The fixes in the order of what they save, each after those before it.

    Args:
        replay: The replay of the rank.
        edits: What each fix changes, by the number of the fix.
    """
    order = _GreedyOrder(replay, edits)
    order.find()
    before = {level: order.step_ns((), level) for level in (_LOW, _EXPECTED, _HIGH)}
    # The replay may end too few of the CPU's waits, or too many: the share that it explains widens the range.
    trust = max(replay.gates.explained_wait_share, MIN_EXPLAINED_WAIT)
    fixes = []
    for index, number in enumerate(order.numbers):
        fixed = order.numbers[: index + 1]
        after = {level: order.step_ns(fixed, level) for level in (_LOW, _HIGH)} | {_EXPECTED: order.steps_ns[index]}
        saved = {level: max(before[level] - after[level], 0) for level in before}
        before = after
        saved[_LOW], saved[_HIGH] = saved[_LOW] * trust, saved[_HIGH] / trust
        low, expected, high = sorted(round(saved[level]) for level in (_LOW, _EXPECTED, _HIGH))
        masked_by, alone_ns = order.masking_fix(number), order.saved_ns[number][0]
        fixes.append(OrderedFix(number, low, expected, high, round(after[_EXPECTED]), masked_by, alone_ns))
    return fixes


@dataclass(slots=True)
class _GreedyOrder:
    """The greedy order of fixes while it is found, one fix a round.

    Attributes:
        replay: The replay of the rank.
        edits: What each fix changes, by the number of the fix.
        numbers: The fixes chosen so far, in their order.
        steps_ns: For each of them how long a step takes after it.
        saved_ns: For each fix what it would save next, in every round until it is chosen.
    """

    replay: Replay
    edits: Mapping[int, Edit]
    numbers: list[int] = field(default_factory=list)
    steps_ns: list[float] = field(default_factory=list)
    saved_ns: dict[int, list[float]] = field(default_factory=dict)

    def step_ns(self, fixes: Iterable[int], level: int = _EXPECTED) -> float:
        """How long a step takes after some fixes: after the least, the expected or the most that they can do."""
        return self.replay.step_ns(_edit_at(self.edits[number], level) for number in fixes)

    def find(self) -> None:
        """Choose in each round the fix that saves most after those chosen before it."""
        before_ns = self.step_ns(())
        replays_left = _MAX_NODES // max(len(self.replay.graph.nodes), 1)
        candidates = list(self.edits)
        while candidates:
            if replays_left >= len(candidates) or not self.numbers:
                replays_left -= len(candidates)
                for number in candidates:
                    self.saved_ns.setdefault(number, []).append(before_ns - self.step_ns((*self.numbers, number)))
            best = max(candidates, key=lambda number: (self.saved_ns[number][-1], -number))
            candidates.remove(best)
            self.numbers.append(best)
            before_ns = self.step_ns(self.numbers)
            self.steps_ns.append(before_ns)

    def masking_fix(self, number: int) -> int | None:
        """The fix without which this one saves next to nothing; None where it saves enough alone."""
        saved = self.saved_ns[number]
        rises = [after - before for before, after in pairwise(saved)]
        if not rises or saved[-1] < _MIN_MASKED_SHARE * self.replay.baseline_step_ns:
            return None
        return self.numbers[rises.index(max(rises))] if saved[0] < _MASKED_SHARE * saved[-1] else None


def _edit_at(edit: Edit, level: int) -> tuple[Edit, float]:
    """What an edit changes at a level, and its strength: a variant of the edit, else a part of an upper bound."""
    variant = (edit.at_least, None, edit.at_most)[level]
    if variant is not None:
        return variant, 1.0
    return edit, _STRENGTHS_OF_BOUND[level] if edit.is_upper_bound else 1.0
