"""Trials as texts: the table of what was measured, what to change for it, and what was promised. No layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfdoctor.report.report import Report
from perfdoctor.report.trial_result import ALL, Trial
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.format_values import format_location, format_promise
from perfdoctor.units import (
    UNKNOWN,
    format_count,
    format_duration,
    format_minutes,
    format_percent,
    format_range,
    format_share,
    format_size,
)

TRIAL_COLUMNS = ("change", "step", "of it", "range", "pairs", "memory", "loss", "verdict")
_LARGE_MEMORY_SHARE = 0.1
# Nobody makes so many pairs of runs for one change.
MANY_PAIRS = 50
# First steps that are this much longer: a reader then wants to know about the compilation.
_LONG_START_NS = 1_000_000_000
INTENDED = {
    "results": "it repairs results, so that they differ on purpose",
    "files": "it changes what is written or kept",
}
"""What is said of a change that alters something on purpose."""


class TrialRow(NamedTuple):
    """A row of the table: every cell as text, in the order of `TRIAL_COLUMNS`."""

    change: str
    step: str
    ratio: str
    between: str
    pairs: str
    memory: str
    loss: str
    verdict: str


class WhatToChange(NamedTuple):
    """One winner: where, which code, and what it gave."""

    title: str
    fix: str
    lines: tuple[str, ...]


def describe_trials(report: Report) -> str:
    """How the trials were measured, in a sentence or two."""
    summary = report.trial_summary
    if summary is None:
        return f"{format_count(len(report.trials), 'trial')}, in turns with the plain program."
    of_ranks = f", each as long as in the latest of {summary.ranks} ranks" if summary.ranks > 1 else ""
    return (
        f"The plain step takes {format_duration(summary.step_ns)}, and plain against plain differs by "
        f"{format_percent(100 * summary.noise)}. {format_count(summary.runs, 'run')} of "
        f"{format_count(summary.timed_steps, 'timed step')}{of_ranks}, in {format_minutes(summary.seconds)}."
    )


def verdict_of_trials(report: Report) -> str:
    """The trials in one sentence: what makes the step shorter, and by how much."""
    together = next((each for each in report.trials if each.change == ALL), None)
    winners = sorted(_winners(report), key=lambda each: -(each.saved_ns or 0))
    if together is not None and together.verdict == "faster":
        return f"Together {clean_line(together.setting)} make{_describe_gain(together)}"
    if winners:
        return f"{clean_line(winners[0].label)} makes{_describe_gain(winners[0])}"
    repairs = [clean_line(each.label) for each in report.trials if each.verdict == "repair"]
    if repairs:
        return f"{_join(repairs, 'and')} repair{'s' * (len(repairs) == 1)} results; no change makes the step shorter."
    undecided = [clean_line(each.label) for each in report.trials if each.verdict == "undecided"]
    if undecided:
        return f"It is not clear yet whether {_join(undecided)} makes the step shorter."
    if any(each.is_measured for each in report.trials):
        return "None of the changes makes the step shorter."
    return "No change could be measured."


def trial_rows(report: Report) -> list[TrialRow]:
    """The rows of what was measured, in the order of the report."""
    return [_row(each) for each in report.trials if each.is_measured]


def unmeasured_lines(report: Report) -> list[str]:
    """What broke or does not apply, each with its reason."""
    return [
        f"{clean_line(each.label)} {'is ' if each.verdict == 'not applicable' else ''}{each.verdict}"
        f"{f': {clean_line(each.why)}' if each.why else ''}"
        for each in report.trials
        if not each.is_measured
    ]


def what_to_change(report: Report) -> list[WhatToChange]:
    """Repairs, and the winners, best first, with what makes them permanent; of one change the best setting."""
    best: dict[str, Trial] = {each.label: each for each in report.trials if each.verdict == "repair"}
    for trial in sorted(_winners(report), key=lambda each: -(each.saved_ns or 0)):
        best.setdefault(trial.change, trial)
    return [_describe_winner(trial) for trial in best.values()]


def promise_lines(report: Report) -> list[str]:
    """For each trial that does what findings advise: promised against measured."""
    lines = []
    for trial in report.trials:
        if trial.promised is not None and trial.is_measured:
            rules = ", ".join(trial.rules)
            lines.append(
                f"{clean_line(trial.label)} ({rules}): promised {format_promise(trial.promised)}, "
                f"measured {_format_saved(trial)}"
            )
    return lines


def trial_notes(report: Report) -> Iterator[str]:
    """What the reader should know beside the table: losses, memory, compilation, and the notes of the trials."""
    for trial in report.trials:
        label = clean_line(trial.label)
        if trial.verdict == "undecided" and trial.ratio is not None:
            yield _describe_undecided(trial)
        if trial.is_loss_expected is not None:
            expected = "as such a change may" if trial.is_loss_expected else "which it should not: look at the results"
            yield f"{label} changes the loss by {format_losses(trial)}, {expected}."
        before_bytes, after_bytes = trial.memory_before_bytes or 0, trial.peak_memory_bytes or 0
        if before_bytes and abs(after_bytes - before_bytes) > _LARGE_MEMORY_SHARE * before_bytes:
            way = "more" if after_bytes > before_bytes else "less"
            peaks = _format_change(format_size(before_bytes), format_size(after_bytes))
            yield f"{label} takes {format_size(abs(after_bytes - before_bytes))} {way} memory at the peak: {peaks}."
        if (trial.skipped_ns or 0) > _LONG_START_NS and trial.is_measured:
            yield f"{label} takes {format_duration(trial.skipped_ns)} longer to start (compiling, starting workers)."
        if trial.is_what_if:
            yield f"{label} gives wrong results: it shows what a change of the program could give, and is none."
    if report.trial_summary is not None:
        yield from map(clean_line, report.trial_summary.notes)


def _winners(report: Report) -> list[Trial]:
    return [each for each in report.trials if each.verdict == "faster" and each.change != ALL and not each.is_what_if]


def _describe_gain(trial: Trial) -> str:
    share = 1 - trial.ratio.median if trial.ratio else None
    steps = f"{format_duration(trial.before_ns)} -> {format_duration(trial.step_ns)}"
    return f" the step {format_share(share)} shorter: {steps}."


def _row(trial: Trial) -> TrialRow:
    ratio = trial.ratio
    assert ratio is not None
    return TrialRow(
        clean_line(ALL if trial.change == ALL else trial.label),
        _format_change(format_duration(trial.before_ns), format_duration(trial.step_ns)),
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        str(ratio.pairs),
        UNKNOWN if trial.peak_memory_bytes is None else format_size(trial.peak_memory_bytes),
        format_losses(trial),
        describe_verdict(trial),
    )


def describe_verdict(trial: Trial) -> str:
    """The verdict in words: "faster", "same within 3%", "cannot tell yet"."""
    if trial.verdict == "same" and trial.same_within is not None:
        return f"same within {max(math.ceil(100 * trial.same_within), 1)}%"
    return "cannot tell yet" if trial.verdict == "undecided" else trial.verdict


def _join(names: Sequence[str], word: str = "or") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _describe_undecided(trial: Trial) -> str:
    """How many more pairs would decide, and what the CPU time says meanwhile."""
    missing = trial.missing_pairs or 1
    many = f"more than {MANY_PAIRS}" if missing > MANY_PAIRS else f"about {missing}"
    sentence = (
        f"{clean_line(trial.label)} is not decided yet: {many} more {'pair' if missing == 1 else 'pairs'} would do"
    )
    if missing <= MANY_PAIRS:
        sentence += f" (--pairs {trial.pairs + missing} --resume)"
    if trial.cpu_ratio is not None:
        sentence += f"; its process takes {trial.cpu_ratio:.2f} of the CPU time"
    return f"{sentence}."


def _format_change(before: str, after: str) -> str:
    """Two figures with their unit once where they share it: "231 -> 180 ms"."""
    number, _, unit = before.partition(" ")
    return f"{number} -> {after}" if unit and after.endswith(f" {unit}") else f"{before} -> {after}"


def format_losses(trial: Trial) -> str:
    """The largest relative difference of losses: "same", "3e-07", or n/a where they cannot be compared."""
    if trial.loss_difference is None:
        return UNKNOWN
    return "same" if trial.loss_difference == 0 else f"{trial.loss_difference:.0e}"


def _describe_winner(trial: Trial) -> WhatToChange:
    places = ", ".join(format_location(place) for place in trial.locations)
    title = f"{clean_line(trial.label)}{f', at {places}' if places else ''}"
    gave = INTENDED["results"] if trial.verdict == "repair" else f"alone {_format_saved(trial)}"
    if trial.in_turn is not None:
        gave += f"; in turn {format_duration(trial.in_turn.expected_ns)}"
    lines = [gave]
    if trial.intended_change == "files":
        lines.append(INTENDED["files"])
    if trial.alters_numerics:
        lines.append("it alters numerics: compare the results of a whole training")
    return WhatToChange(title, clean_line(trial.fix), tuple(lines))


def _format_saved(trial: Trial) -> str:
    """What a trial saved of the step: "51.2 ms (48.0 to 53.1 ms)", or "nothing (6.1 ms slower)"."""
    saved, low, high = trial.saved_ns or 0, trial.low_ns or 0, trial.high_ns or 0
    if trial.verdict == "faster":
        return f"{format_duration(saved)} ({format_range(low, high)})" if low < high else format_duration(saved)
    if trial.verdict == "slower":
        return f"nothing ({format_duration(-saved)} slower)"
    ratio = trial.ratio
    seen = f"; {ratio.low:.2f} to {ratio.high:.2f} of the step" if ratio is not None and ratio.pairs > 1 else ""
    return f"{'nothing' if trial.verdict == 'same' else 'not decided'}{seen}"
