"""Rows of the report from what was measured: steps, memory, losses, and what the change would be in the code."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.answer_findings import promise_of
from perfdoctor.report.finding import Finding
from perfdoctor.report.trial_result import ALL, RatioRange, Trial, Verdict
from perfdoctor.savings.saving import SavingAlone, SavingPromise, scale_figures
from perfdoctor.trials.combine_winners import Combination
from perfdoctor.trials.program_run import ProgramRun, compare_losses
from perfdoctor.trials.run_log import Choice
from perfdoctor.trials.trial_rounds import Candidate, Pair, leave_out_disturbed
from perfdoctor.trials.trial_statistics import count_missing_pairs, estimate_ratio, same_within

# Losses of plain runs that differ by more come from other random numbers, not from rounding in another order.
OTHER_SEEDS = 1e-3
# Differences up to these are rounding, whatever the change: of float32 over some ten steps, and of what the plain
# program shows itself.
ROUNDING = 1e-5
ROUNDING_FACTOR = 10.0


def compare_plain_losses(plain: Sequence[ProgramRun]) -> float | None:
    """The largest relative difference of losses between plain runs; None where there are none to compare."""
    found = [compare_losses(each, plain[0]) for each in plain[1:]]
    return max((each for each in found if each is not None), default=None)


def make_trial(
    candidate: Candidate,
    combination: Combination,
    plain_loss_difference: float | None,
    promising: Iterable[Finding],
    recorded_step_ns: int | None = None,
) -> Trial:
    """The row of one candidate.

    Args:
        candidate: What was tried, decided.
        combination: What was combined of the winners.
        plain_loss_difference: What `compare_plain_losses` returned.
        promising: The findings that the trial answers.
        recorded_step_ns: The step of which they promise something; None where it is that of the trial.
    """
    choice, change = candidate.choice, candidate.choice.loaded.change
    findings = list(promising)
    difference = None
    if not change.is_what_if:
        difference = largest_loss_difference(candidate.pairs, plain_loss_difference)
    row = _measured_row(candidate.pairs)
    met = next((m for pair in candidate.pairs if (m := pair.changed.changes.get(change.name))), None)
    ratio = _ratio_of(candidate.pairs)
    factor = row["before_ns"] / recorded_step_ns if row["before_ns"] and recorded_step_ns else 1.0
    return Trial(
        change=change.name,
        setting=choice.setting,
        verdict=candidate.verdict or "undecided",
        ratio=ratio,
        loss_difference=difference,
        is_loss_expected=_is_expected(choice, difference, plain_loss_difference),
        why=candidate.why,
        detail=met.detail if met else "",
        fix=fix_of(choice),
        locations=tuple(SourceLocation(*place) for place in met.locations) if met else (),
        promised=_promise_of(findings, factor),
        rules=tuple(dict.fromkeys(finding.rule for finding in findings)),
        in_turn=_in_turn(candidate, combination, row.get("before_ns")),
        alters_numerics=change.alters_numerics,
        is_what_if=change.is_what_if,
        intended_change=change.intended_change,
        **row,
    )


def make_combined_trial(combination: Combination, plain_loss_difference: float | None, verdict: Verdict) -> Trial:
    """The row of all winners together.

    Args:
        combination: At least two winners that were kept, and their pairs.
        plain_loss_difference: What `compare_plain_losses` returned.
        verdict: As `judge_ratios` gives it.
    """
    choices = [each.choice for each in combination.kept]
    difference = largest_loss_difference(combination.pairs, plain_loss_difference)
    expected = [_is_expected(choice, difference, plain_loss_difference) for choice in choices]
    return Trial(
        change=ALL,
        setting=" ".join(choice.label for choice in choices),
        verdict=verdict,
        ratio=_ratio_of(combination.pairs),
        loss_difference=difference,
        is_loss_expected=None if None in expected else any(expected),
        alters_numerics=any(choice.loaded.change.alters_numerics for choice in choices),
        **_measured_row(combination.pairs),
    )


def fix_of(choice: Choice) -> str:
    """The code or variable that makes a change permanent; "" where the change fails to say."""
    try:
        return str(choice.loaded.change.fix(choice.setting))
    except Exception:  # a stranger's change may raise anything
        return ""


def _ratio_of(pairs: Sequence[Pair]) -> RatioRange | None:
    return estimate_ratio([pair.ratio for pair in leave_out_disturbed(pairs)]) if pairs else None


def _measured_row(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Steps and memory with the change and without it, by the pairs that count.

    The step with the change is the one without it times the ratio of the pairs: one estimate, and one figure.
    """
    ratio, pairs = _ratio_of(pairs), leave_out_disturbed(pairs)
    ratios = [pair.ratio for pair in pairs]
    before_ns = _median(pair.plain.usual_step_ns for pair in pairs)
    cpu_times = [(pair.changed.cpu_ns, pair.plain.cpu_ns) for pair in pairs]
    cpu_ratios = [a / b for a, b in cpu_times if a is not None and b]
    changed, plain = [pair.changed for pair in pairs], [pair.plain for pair in pairs]
    waits = [(a.skipped_ns, b.skipped_ns) for a, b in zip(changed, plain, strict=True)]
    return {
        "step_ns": None if before_ns is None or ratio is None else round(before_ns * ratio.median),
        "before_ns": before_ns,
        "same_within": same_within(ratios) if ratios else None,
        "missing_pairs": count_missing_pairs(ratios) if ratios else None,
        "cpu_ratio": statistics.median(cpu_ratios) if cpu_ratios else None,
        "peak_memory_bytes": _median(run.peak_memory_bytes for run in changed),
        "memory_before_bytes": _median(run.peak_memory_bytes for run in plain),
        "skipped_ns": _median(a - b for a, b in waits if a is not None and b is not None),
    }


def _median(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def largest_loss_difference(pairs: Sequence[Pair], plain_difference: float | None) -> float | None:
    """The largest relative difference of losses to the plain neighbours; None where seeds differ anyway."""
    if plain_difference is None or plain_difference > OTHER_SEEDS:
        return None
    found = [compare_losses(pair.changed, pair.plain) for pair in pairs]
    return max((each for each in found if each is not None), default=None)


def is_rounding(difference: float, plain_difference: float | None) -> bool:
    """Whether losses differ by rounding in another order, or by no more than those of the plain program by itself."""
    return difference <= max(ROUNDING, ROUNDING_FACTOR * (plain_difference or 0.0))


def _is_expected(choice: Choice, difference: float | None, plain_difference: float | None) -> bool | None:
    """Whether a change may make such a difference of losses; None where there is none beyond rounding."""
    if difference is None or is_rounding(difference, plain_difference):
        return None
    change = choice.loaded.change
    effect = change.effect_on_results.partition(";")[0].strip()
    return change.alters_numerics or effect not in ("", "none")


def _promise_of(findings: Sequence[Finding], factor: float) -> SavingPromise | None:
    """The promise of the finding that promises most: together they are not worth the sum.

    Of a step that is `factor` times as long as the recorded one: a promise is a share of it.
    """
    promises = [promise_of(finding.saving) for finding in findings]
    known = [SavingPromise(*scale_figures(each, factor), each.basis) for each in promises if each.basis != "unknown"]
    return max(known, key=lambda each: each.expected_ns or (each.high_ns or 0) / 2, default=None)


def _in_turn(candidate: Candidate, combination: Combination, before_ns: int | None) -> SavingAlone | None:
    """What a change gave on top of the better ones; nothing for one that was left out, None for one never tried so."""
    label = candidate.choice.label
    if label in combination.dropped:
        return SavingAlone(0, 0, 0)
    if len(combination.kept) < 2:
        return None
    ratio = combination.in_turn.get(label)
    if ratio is None or before_ns is None:
        return None
    # The ratio is of the step with the better changes.
    step_ns = float(before_ns)
    for each in combination.kept:
        if each is candidate:
            break
        step_ns *= combination.in_turn[each.choice.label].median
    low, expected, high = (max(round(step_ns * (1 - at)), 0) for at in (ratio.high, ratio.median, ratio.low))
    return SavingAlone(low, expected, high)
