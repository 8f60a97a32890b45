"""The winners together: the best first, and each next one is kept where it makes the step shorter still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfdoctor.report.trial_result import RatioRange
from perfdoctor.trials.program_run import ProgramRun, compare_steps, find_lost_loss
from perfdoctor.trials.run_log import Arm, RunLog
from perfdoctor.trials.trial_rounds import Candidate, Pair, find_failure
from perfdoctor.trials.trial_statistics import estimate_ratio, judge_ratios


@dataclass(slots=True)
class Combination:
    """The winners that are worth it together.

    Attributes:
        kept: In the order in which they were added.
        in_turn: By label, what each kept one gave on top of those before it, as a ratio of steps; the first one alone.
        dropped: Winners that gave nothing more, or broke, by label, with the reason.
        untried: Winners for which no time was left.
        pairs: All kept ones together against the plain program.
    """

    kept: list[Candidate] = field(default_factory=list)
    in_turn: dict[str, RatioRange] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    untried: list[Candidate] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)


def choose_winners(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of some candidates those to combine: repairs, then of each change the setting with the shortest step, best first.

    A what-if is never one.
    """
    best: dict[str, Candidate] = {}
    for each in sorted(candidates, key=lambda each: (each.verdict != "repair", each.median_ratio)):
        change = each.choice.loaded.change
        if each.verdict in ("faster", "repair") and not change.is_what_if:
            best.setdefault(change.name, each)
    return list(best.values())


def combine_winners(combination: Combination, winners: Sequence[Candidate], log: RunLog, max_pairs: int) -> None:
    """Add the winners to a combination one by one, as far as each makes the step shorter, or repairs results.

    The plain program, what is kept so far, and that with the next winner take turns. So each round gives two pairs: the
    next winner in its turn, and all together.

    Args:
        combination: An empty one, filled as runs end, so that an interrupted one is good, too.
        winners: What `choose_winners` returned.
        log: Runs the program.
        max_pairs: Pairs for each winner at most.
    """
    for winner in winners:
        if not combination.kept:
            combination.kept.append(winner)
            combination.in_turn[winner.choice.label] = estimate_ratio(winner.ratios)
            combination.pairs = list(winner.pairs)
        elif not _try_next(combination, winner, log, max_pairs):
            combination.untried.append(winner)


def _try_next(combination: Combination, winner: Candidate, log: RunLog, max_pairs: int) -> bool:
    """Measure one more winner on top of those kept, and keep it or not; False where no time is left for it."""
    arms: list[Arm] = [(), _arm_of(combination.kept), _arm_of([*combination.kept, winner])]
    ratios: list[float] = []
    with_next: list[Pair] = []
    verdict = None
    while verdict is None:
        if not log.has_time_for(len(arms)):
            verdict = judge_ratios(ratios, log.noise, max_pairs, final=True)
            break
        key = f"together{len(combination.kept) + len(combination.dropped)}.{len(ratios) + 1}"
        if len(ratios) % 2 == 0:
            plain, before, after = [log.run(key, arm) for arm in arms]
        else:
            after, before, plain = [log.run(key, arm) for arm in reversed(arms)]
        why = _find_trouble(after, before, winner)
        ratio = compare_steps(after, before) if why is None else None
        if ratio is None:
            combination.dropped[winner.choice.label] = why or "its steps could not be compared"
            return True
        ratios.append(ratio)
        _add_pair(combination.pairs, before, plain)
        _add_pair(with_next, after, plain)
        verdict = judge_ratios(ratios, log.noise, max_pairs)
    if verdict is None:
        return False
    if verdict == "faster" or winner.verdict == "repair":
        combination.kept.append(winner)
        combination.in_turn[winner.choice.label] = estimate_ratio(ratios)
        combination.pairs = with_next
    else:
        combination.dropped[winner.choice.label] = (
            "it makes the others slower"
            if verdict == "slower"
            else "it adds nothing to the others"
            if verdict == "same"
            else "what it adds to the others is not clear yet"
        )
    return True


def _arm_of(candidates: Sequence[Candidate]) -> Arm:
    return tuple(each.choice for each in candidates)


def _find_trouble(run: ProgramRun, before: ProgramRun, winner: Candidate) -> str | None:
    """Why a run with one more change cannot be compared; None where it can."""
    verdict, why = find_failure(run, winner.choice.loaded.name)
    if verdict == "broke":
        return f"it broke on top of the others: {why}"
    if verdict is not None:
        return "it does not apply on top of the others"
    if before.error is not None:
        return f"the others broke: {before.error}"
    if find_lost_loss(run, before) is not None:
        return "the loss became NaN or infinite on top of the others"
    return None


def _add_pair(pairs: list[Pair], changed: ProgramRun, plain: ProgramRun) -> None:
    ratio = compare_steps(changed, plain) if plain.error is None and changed.error is None else None
    if ratio is not None:
        pairs.append(Pair(changed, plain, ratio))
