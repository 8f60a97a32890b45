"""The rounds of trials: plain program and changes take turns until each change is decided, or the time is spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.trial_result import Verdict
from perfdoctor.trials.program_run import ProgramRun, compare_steps, find_lost_loss
from perfdoctor.trials.run_log import Arm, Choice, RunLog
from perfdoctor.trials.trial_statistics import estimate_ratio, judge_ratios

# So many changes share a plain run: the more, the further the last of them is from it in time.
MAX_BLOCK = 4
# Of the budget, this part is for measuring the winners together.
ROUNDS_SHARE = 0.75
# A run that had its core for less than this share of what the best run of its kind had was disturbed by other programs.
DISTURBED_SHARE = 0.8
# Pairs that are left out are made again, up to so many times as many pairs in all.
DISTURBED_FACTOR = 2
# A program that fails now and then gets so many chances.
MAX_PLAIN_FAILURES = 2


@frozen_dataclass
class Pair:
    """Two runs next to each other, and the ratio of their steps: below 1 where the changed one is faster."""

    changed: ProgramRun
    plain: ProgramRun
    ratio: float


@dataclass(slots=True)
class Candidate:
    """A change with a setting, and what is known of it so far.

    Attributes:
        choice: The change and its setting.
        pairs: Its runs with their plain neighbours.
        verdict: None until it is decided.
        why: The error, or why it does not apply.
        answers: The positions of the findings that it answers; None where that follows from where it was met.
    """

    choice: Choice
    pairs: list[Pair] = field(default_factory=list)
    verdict: Verdict | None = None
    why: str = ""
    answers: tuple[int, ...] | None = None

    @property
    def ratios(self) -> list[float]:
        """The ratios of the pairs that count, see `leave_out_disturbed`."""
        return [pair.ratio for pair in leave_out_disturbed(self.pairs)]

    @property
    def median_ratio(self) -> float:
        """The median of the pairs; 1 where there is none."""
        return estimate_ratio(self.ratios).median if self.pairs else 1.0

    def add_pair(self, changed: ProgramRun, plain: ProgramRun) -> None:
        """Add a run and its plain neighbour; one that broke decides at once."""
        self.verdict, self.why = find_failure(changed, self.choice.loaded.name)
        if self.verdict is not None:
            return
        lost = find_lost_loss(changed, plain)
        if lost is not None:
            self.verdict, self.why = "broke", f"the loss became {changed.losses[lost]} in step {lost}"
            return
        ratio = compare_steps(changed, plain)
        if ratio is None:
            self.verdict, self.why = "broke", f"{len(changed.step_ns)} of {len(plain.step_ns)} timed steps were made"
            return
        self.pairs.append(Pair(changed, plain, ratio))

    def judge(self, noise: float, max_pairs: int, *, final: bool = False) -> None:
        """Decide, where the pairs so far allow it; a repair need only have run."""
        if self.verdict is None and self.pairs and self.choice.loaded.change.intended_change == "results":
            self.verdict = "repair"
        if self.verdict is None:
            final = final or len(self.pairs) >= DISTURBED_FACTOR * max_pairs
            self.verdict = judge_ratios(self.ratios, noise, max_pairs, final=final)


def leave_out_disturbed(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of which both runs had their cores about as much as the best run of their kind.

    A change that makes the program's own threads wait for a core does so in every run, and stays. All pairs where more
    than half were disturbed: then that is how the machine is.
    """
    best_changed = max((pair.changed.core_share or 0.0 for pair in pairs), default=0.0)
    best_plain = max((pair.plain.core_share or 0.0 for pair in pairs), default=0.0)
    kept = [
        pair
        for pair in pairs
        if (pair.changed.core_share or 0.0) >= DISTURBED_SHARE * best_changed
        and (pair.plain.core_share or 0.0) >= DISTURBED_SHARE * best_plain
    ]
    return kept if 2 * len(kept) >= len(pairs) else list(pairs)


def find_failure(run: ProgramRun, name: str) -> tuple[Verdict | None, str]:
    """Whether a run with a change broke or the change does not apply, and why; (None, "") where it went well."""
    change = run.changes.get(name)
    if change is not None and change.error is not None:
        return "broke", change.error
    if run.error is not None:
        return "broke", run.error
    if change is not None and change.refused:
        return "not applicable", change.refused
    if not run.step_ns:
        return "broke", f"the program ended after {run.steps_made} steps"
    if change is None or not change.met:
        return "not applicable", "the program never reached what it changes"
    return None, ""


def run_rounds(candidates: Sequence[Candidate], log: RunLog, max_pairs: int) -> None:
    """Run plain program and candidates in turns until all are decided or the time is spent.

    Args:
        candidates: What to try, the most promising first; decided as pairs come in.
        log: Runs the program.
        max_pairs: Pairs of a candidate at most.
    """
    failures, number = 0, 0
    while any(each.verdict is None for each in candidates):
        undecided = [each for each in candidates if each.verdict is None]
        for position, block in enumerate(split_into_blocks(undecided)):
            if not log.has_time_for(len(block) + 1, ROUNDS_SHARE):
                return
            failures += run_block(block, f"round{number + 1}.{position + 1}", log, plain_first=number % 2 == 0)
            if failures >= MAX_PLAIN_FAILURES:
                return
            for each in candidates:  # the noise has one more plain run
                each.judge(log.noise, max_pairs)
        number += 1


def split_into_blocks(candidates: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Groups of about the same size, each at most `MAX_BLOCK`, for which one plain run is near enough."""
    count = -(-len(candidates) // MAX_BLOCK)
    for number in range(count):
        yield candidates[number * len(candidates) // count : (number + 1) * len(candidates) // count]


def run_block(block: Sequence[Candidate], key: str, log: RunLog, *, plain_first: bool) -> bool:
    """Run the plain program and a few candidates once; the other way round in every second round.

    Returns:
        Whether the plain run failed, so that there are no pairs.
    """
    arms: list[tuple[Candidate | None, Arm]] = [(None, ()), *((each, (each.choice,)) for each in block)]
    if not plain_first:
        arms.reverse()
    plain, waiting = None, list[tuple[Candidate, ProgramRun]]()
    for candidate, arm in arms:
        run = log.run(key, arm)
        if candidate is None:
            plain = run
        else:
            waiting.append((candidate, run))
        if plain is not None and plain.error is None:
            # At once, so that an interrupted block has its pairs.
            for each, changed in waiting:
                each.add_pair(changed, plain)
            waiting.clear()
    return plain is None or plain.error is not None
