"""The order of fixes: each is worth what it saves once the fixes before it are done.

What a cause costs is the step less its replay without that cause alone. Savings of single fixes do not add up. Two
fixes can end the same wait, and one can be worth nothing until another is done (faster kernels while the CPU is the
bottleneck). So the fix that saves most comes first, then the one that saves most after it, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.edits import Edit, busiest_ns, remove_cause
from perfdoctor.savings.what_if import MIN_EXPLAINED_WAIT, EditedReplay, Replay

# The strength of a fix of which only an upper bound is known: at least, in the middle, at most. The middle decides the
# order of fixes; it is no promise.
_STRENGTHS_OF_BOUND = (0.0, 0.5, 1.0)
_LEVELS = _LOW, _EXPECTED, _HIGH = range(3)
# A fix is masked if alone it saves less than a quarter of what it saves after others, where that is 1 % of the step. It
# is covered if it is the other way round, and next to nothing is left of what it saves alone: said from a tenth of the
# worth of a low finding on.
MASKED_SHARE = 0.25
_MIN_MASKED_SHARE = 0.01
MIN_COVERED_SHARE = 0.001
# Nodes of all replays together, which take some 0.3 s. Beyond that the savings of the last round decide. Besides the
# replays of the rounds a fix takes up to five: alone at least, at most, and without its cause; in its turn two.
_MAX_NODES = 60_000_000
_REPLAYS_OF_FIX = 5


class SavingRange(NamedTuple):
    """What a fix saves of a step, in ns: at least, as expected, at most."""

    low_ns: int
    expected_ns: int
    high_ns: int


@frozen_dataclass
class OrderedFix:
    """One fix, with what it saves alone and after all fixes before it.

    Attributes:
        number: The fix, by its number among the edits.
        in_turn: What it saves of a step after all fixes before it.
        alone: What it saves of a step with no other fix done.
        limit_ns: The most that any fix could save in its turn: the step then, but for the time of the busiest resource
            that work was moved to.
        cost_ns: What its cause costs: the step less its replay without the cause, alone.
        masked_by: The fix without which this one saves next to nothing; None where it saves enough alone.
        covered_by: The fix after which this one saves next to nothing; None where enough is left for it.
        needed_by: A fix that saves more and cannot be made before this one; None where there is none.
    """

    number: int
    in_turn: SavingRange
    alone: SavingRange
    limit_ns: int
    cost_ns: int
    masked_by: int | None
    covered_by: int | None
    needed_by: int | None = None


def order_fixes_greedily(
    replay: Replay, edits: Mapping[int, Edit], confidence: Mapping[int, float] | None = None
) -> list[OrderedFix]:
    """The fixes in the order of what they save, each after those before it, and after those that it is blocked by.

    Args:
        replay: The replay of the rank.
        edits: What each fix changes, by the number of the fix.
        confidence: By the number of the fix how sure its cause is, 0 to 1. A fix of which only a bound is known counts
            so much less. None where all are sure.
    """
    order = _GreedyOrder(replay, edits, confidence or {})
    order.find()
    fixed = [
        [each for each in order.numbers[: index + 1] if each not in order.left_out]
        for index in range(len(order.numbers))
    ]
    # Level by level, so that each replay begins with the edits of the one before it.
    steps_ns = {level: [order.step_ns(each, level) for each in fixed] for level in (_LOW, _HIGH)}
    steps_ns[_EXPECTED] = order.steps_ns
    before = dict.fromkeys(_LEVELS, order.baseline_ns)
    fixes = []
    for index, number in enumerate(order.numbers):
        after = {level: steps_ns[level][index] for level in _LEVELS}
        saved = {level: before[level] - after[level] for level in _LEVELS}
        limit_ns = order.limit_ns(before[_EXPECTED], fixed[index])
        before = after
        fixes.append(
            OrderedFix(
                number,
                in_turn=_make_range(replay, saved, limit_ns),
                alone=_make_range(
                    replay,
                    {level: order.alone_ns(number, level) for level in _LEVELS},
                    order.limit_ns(order.baseline_ns, (number,)),
                ),
                limit_ns=limit_ns,
                cost_ns=round(max(order.cost_ns(number), 0)),
                masked_by=order.masking_fix(number),
                covered_by=order.covering_fix(number, saved[_EXPECTED]),
                needed_by=order.needed_by.get(number),
            )
        )
    return fixes


def _make_range(replay: Replay, saved_ns: Mapping[int, float], limit_ns: int) -> SavingRange:
    """What a fix saves, by level, as a range that ends at `limit_ns`.

    The replay may end too few of the CPU's waits, or too many: the share that it explains widens the range. What is
    expected of all fixes adds up to one replay of them; a fix may save more where those before it do less.
    """
    trust = max(replay.gates.explained_wait_share, MIN_EXPLAINED_WAIT)
    low, expected, high = (max(saved_ns[level], 0) for level in _LEVELS)
    levels = (low * trust, expected, high / trust)
    return SavingRange(*(min(round(ns), limit_ns) for ns in (min(levels), expected, max(levels))))


@dataclass(slots=True)
class _GreedyOrder:
    """The greedy order of fixes while it is found, one fix a round.

    Attributes:
        replay: The replay of the rank.
        edits: What each fix changes, by the number of the fix.
        confidence: How sure the cause of each is, 0 to 1; 1 where it is not there.
        numbers: The fixes chosen so far, in their order.
        left_out: Those of them that make the step longer by now, as they move work to a resource that is busy longer.
        steps_ns: For each of them how long a step takes after it.
        saved_ns: For each fix what it would save next, in every round until it is chosen.
        needed_by: For each fix that came before its turn the one that cannot be made before it.
        baseline_ns: How long a step takes without any fix.
        _replays: Replays after what fixes change at some level, one of which may be what it changes at another.
        _variants: For each fix and level the number of what it changes there; nothing where that is nothing.
    """

    replay: Replay
    edits: Mapping[int, Edit]
    confidence: Mapping[int, float] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)
    steps_ns: list[float] = field(default_factory=list)
    saved_ns: dict[int, list[float]] = field(default_factory=dict)
    needed_by: dict[int, int] = field(default_factory=dict)
    baseline_ns: float = field(init=False)
    _replays: EditedReplay = field(init=False)
    _variants: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        at_levels = {(n, level): _edit_at(edit, level) for n, edit in self.edits.items() for level in _LEVELS}
        variants = {each: number for number, each in enumerate(dict.fromkeys(at_levels.values()))}
        self._replays = EditedReplay(self.replay, tuple(variants))
        self._variants = {key: variants[each] for key, each in at_levels.items() if each[1]}
        self.baseline_ns = self.step_ns(())

    def step_ns(self, fixes: Iterable[int], level: int = _EXPECTED) -> float:
        """How long a step takes after some fixes: after the least, the expected or the most that they can do."""
        variants = (self._variants.get((number, level)) for number in fixes)
        return self._replays.step_ns([number for number in variants if number is not None])

    def alone_ns(self, number: int, level: int) -> float:
        """What a fix saves with no other fix done: the least, the expected or the most that it can do."""
        return self.baseline_ns - self.step_ns((number,), level)

    def cost_ns(self, number: int) -> float:
        """What a cause costs: the step less its replay without the cause, alone."""
        edit = self.edits[number]
        most = edit.cause or edit.at_most or edit
        if edit.cause is None and not most.moved and not any(each.remaining_share for each in most.removed_cpu_time):
            return self.alone_ns(number, _HIGH)
        return self.baseline_ns - self.replay.step_ns([(remove_cause(edit), 1.0)])

    def limit_ns(self, before_ns: float, fixes: Iterable[int]) -> int:
        """The most by which a step can get shorter: all but what the busiest resource takes that work was moved to."""
        return round(max(before_ns - busiest_ns(_edit_at(self.edits[number], _EXPECTED) for number in fixes), 0))

    def find(self) -> None:
        """Choose in each round the fix that saves most after those chosen before it."""
        before_ns = self.baseline_ns
        replays_left = _MAX_NODES // max(len(self.replay.graph.nodes), 1) - _REPLAYS_OF_FIX * len(self.edits)
        candidates = list(self.edits)
        while candidates:
            done = [number for number in self.numbers if number not in self.left_out]
            if replays_left >= len(candidates) or not self.numbers:
                replays_left -= len(candidates)
                for number in candidates:
                    self.saved_ns.setdefault(number, []).append(before_ns - self.step_ns((*done, number)))
            best = self._find_best(candidates)
            needed = [number for number in candidates if self.edits[number].unblocks(self.edits[best])]
            if needed and best not in needed:
                blocked, best = best, self._find_best(needed)
                self.needed_by[best] = blocked
            candidates.remove(best)
            self.numbers.append(best)
            after_ns = self.step_ns((*done, best))
            if after_ns > before_ns and self.edits[best].moved:
                self.left_out.add(best)
            else:
                before_ns = after_ns
            self.steps_ns.append(before_ns)

    def _find_best(self, candidates: Iterable[int]) -> int:
        """The fix that would save most next."""
        return max(candidates, key=lambda number: (self._worth_ns(number), self.saved_ns[number][0], -number))

    def _worth_ns(self, number: int) -> float:
        """What a fix would save next; less where only a bound is known and the cause is not sure."""
        edit = self.edits[number]
        is_bound = edit.is_upper_bound and edit.at_least is None
        return self.saved_ns[number][-1] * (self.confidence.get(number, 1.0) if is_bound else 1.0)

    def masking_fix(self, number: int) -> int | None:
        """The fix without which this one saves next to nothing; None where it saves enough alone."""
        saved = self.saved_ns[number]
        rises = [after - before for before, after in pairwise(saved)]
        if not rises or saved[-1] < _MIN_MASKED_SHARE * self.replay.baseline_step_ns:
            return None
        return self.numbers[rises.index(max(rises))] if saved[0] < MASKED_SHARE * saved[-1] else None

    def covering_fix(self, number: int, in_turn_ns: float) -> int | None:
        """The fix after which this one saves next to nothing; None where enough is left for it.

        Args:
            number: The fix.
            in_turn_ns: What it saves after all fixes before it.
        """
        saved = self.saved_ns[number]
        position = self.numbers.index(number)
        if saved[0] < MIN_COVERED_SHARE * self.replay.baseline_step_ns or in_turn_ns >= MASKED_SHARE * saved[0]:
            return None
        falls = [before - after for before, after in pairwise((*saved[:position], in_turn_ns))]
        return self.numbers[falls.index(max(falls))] if falls else None


def _edit_at(edit: Edit, level: int) -> tuple[Edit, float]:
    """What an edit changes at a level, and its strength: a variant of the edit, else a part of an upper bound."""
    variant = (edit.at_least, None, edit.at_most)[level]
    if variant is not None:
        return variant, 1.0
    return edit, _STRENGTHS_OF_BOUND[level] if edit.is_upper_bound else 1.0
