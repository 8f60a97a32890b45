"""`perfdoctor try` as a function: diagnose, choose, measure in turns, combine the winners, and answer the findings."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from perfdoctor.capture.capture_folder import make_folder
from perfdoctor.capture.command_line import script_name
from perfdoctor.capture.process_group import raise_on_signals, signal_of
from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.installed_packages import find_version
from perfdoctor.report.answer_findings import answer_report
from perfdoctor.report.report import Report, StepSummary
from perfdoctor.report.trial_result import Trial, TrialSummary
from perfdoctor.reporters.write_report import save_report
from perfdoctor.trials import run_log
from perfdoctor.trials.choose_candidates import MAX_SETTINGS, choose_candidates, match_findings
from perfdoctor.trials.combine_winners import Combination, choose_winners, combine_winners
from perfdoctor.trials.diagnose_program import Diagnosis, diagnose_program, explain_failure
from perfdoctor.trials.load_changes import LoadedChange
from perfdoctor.trials.make_trials import OTHER_SEEDS, compare_plain_losses, make_combined_trial, make_trial
from perfdoctor.trials.program_run import ProgramRun
from perfdoctor.trials.quiet_machine import QuietWait
from perfdoctor.trials.run_log import RunLog, label_of
from perfdoctor.trials.run_trials import TrialProcess
from perfdoctor.trials.step_counts import MIN_TIMED_STEPS, StepCounts, count_steps, read_step_counts
from perfdoctor.trials.trial_rounds import MAX_BLOCK, Candidate, leave_out_disturbed, run_rounds
from perfdoctor.trials.trial_statistics import judge_ratios

# Of one change that was asked for by name this many settings are tried.
MAX_SETTINGS_ASKED = 8
# Plain against plain, before anything else: the noise that every change has to pass.
PLAIN_RUNS = 2
DEFAULT_PAIRS = 6
# From here on a few pairs say little.
LOUD_NOISE = 0.15
USUAL_PAIRS = 3
# What is said of a change that is left out, by what it alters on purpose.
_LEFT_OUT = {
    "": "alters numerics: {}; --allow-numerics",
    "results": "repairs results, which are others then: {}; --allow-changes",
    "files": "changes what the program writes or keeps: {}; --allow-changes",
}


class Listener(Protocol):
    """Who hears of the progress of the trials."""

    def say(self, text: str) -> None:
        """Something that the user should know now."""

    def begin_run(self, label: str, state: TrialState) -> None:
        """A run begins."""

    def end_run(self, label: str, run: ProgramRun, state: TrialState) -> None:
        """A run has ended."""


@frozen_dataclass
class TrySettings:
    """What the user chose.

    Attributes:
        wanted: The changes to choose from, each with its setting where one was asked for.
        asked: Whether they were asked for by name.
        only_advised: Try what a finding advises, and nothing else.
        diagnose: Record and analyse the program first.
        pairs: Pairs of a change at most.
        budget_s: Seconds in which to begin trials; None for no limit.
        allow_numerics: Whether changes that alter numerics take part in the combination.
        allow_changes: Whether those do that alter results or files on purpose.
        skip: Steps left alone at the start of each run; None chooses.
        base: Steps timed; None chooses.
        timeout_s: Seconds after which a run is ended; None chooses.
        quiet_s: Seconds to wait in all for other programs to leave the cores.
    """

    wanted: tuple[tuple[LoadedChange, str | None], ...]
    asked: bool = False
    only_advised: bool = True
    diagnose: bool = True
    pairs: int = DEFAULT_PAIRS
    budget_s: float | None = None
    allow_numerics: bool = False
    allow_changes: bool = False
    skip: int | None = None
    base: int | None = None
    timeout_s: float | None = None
    quiet_s: float = 0.0


@frozen_dataclass
class TrialKind:
    """What is tried: changes from outside, or edits of the source.

    Attributes:
        make_process: Makes what runs the program: command, folder, steps and limit in seconds, as `TrialProcess` does.
        choose: The candidates, and what cannot be tried here.
        keeps_results: Whether a measured candidate may be part of the combination without `--allow-numerics`.
        nothing: What to say where nothing is advised.
    """

    make_process: Callable[[Sequence[str], Path, StepCounts, float | None], TrialProcess]
    choose: Callable[[TrialState, TrySettings], tuple[list[Candidate], list[Trial]]]
    keeps_results: Callable[[Candidate, TrialState], bool]
    nothing: str


@dataclass(slots=True)
class TrialState:
    """What is known so far, filled as runs end, so that an interrupted `try` has its table.

    Attributes:
        kind: What is tried.
        diagnosis: The recording of the plain program, and its report.
        counts: The steps of each run.
        plain: The plain runs before the rounds.
        candidates: What is tried.
        refused: What cannot be tried here.
        combination: The winners together.
        log: All runs.
        pairs: Pairs of a change at most.
        quiet: The wait for other programs to leave the cores.
        notes: What else is to be said of a candidate, by its label.
        ended_by: The signal that has ended it early: Ctrl-C, or SIGTERM of a scheduler.
    """

    log: RunLog
    kind: TrialKind
    quiet: QuietWait = field(default_factory=lambda: QuietWait(0.0))
    pairs: int = DEFAULT_PAIRS
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    counts: StepCounts = field(default_factory=StepCounts)
    plain: list[ProgramRun] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[Trial] = field(default_factory=list)
    combination: Combination = field(default_factory=Combination)
    notes: dict[str, str] = field(default_factory=dict)
    ended_by: signal.Signals | None = None

    @property
    def best(self) -> Candidate | None:
        """The candidate with the shortest step so far; None before there is one that is shorter than the plain one."""
        measured = [each for each in self.candidates if each.pairs and each.verdict not in ("broke", "not applicable")]
        best = min(measured, key=lambda each: each.median_ratio, default=None)
        return best if best is not None and best.median_ratio < 1 else None

    @property
    def expected_runs(self) -> int:
        """About how many runs are still to come: three pairs decide most changes, and winners are combined then."""
        missing = [max(USUAL_PAIRS - len(each.pairs), 1) for each in self.candidates if each.verdict is None]
        plain = max(missing, default=0) * -(-len(missing) // MAX_BLOCK)
        winners = len({each.choice.loaded.name for each in self.candidates if each.verdict == "faster"})
        tried = len(self.combination.kept) + len(self.combination.dropped)
        return sum(missing) + plain + max(winners - max(tried, 1), 0) * 3 * USUAL_PAIRS

    @property
    def expected_seconds(self) -> float:
        """About how long these take, or what is left of the budget."""
        log = self.log
        left_s = self.expected_runs * log.seconds / max(len(log.runs), 1)
        return left_s if log.budget_s is None else min(left_s, max(log.budget_s - log.clock() + log.began_s, 0.0))


def make_trial_folder(command: Sequence[str], out: Path | None, kind: str = "try") -> Path:
    """Make the folder of the trials: `perfdoctor-<kind>-<script>-<time>`, or the one that the user names.

    Raises:
        CaptureError: It is not empty, or cannot be written.
    """
    return make_folder(out, f"{kind}-{script_name(command)}", force=False)


def try_program(
    command: Sequence[str],
    settings: TrySettings,
    folder: Path,
    listener: Listener,
    earlier: Mapping[str, Any] | None,
    kind: TrialKind | None = None,
) -> tuple[Report, signal.Signals | None]:
    """Try changes on a program, from outside without a `kind`; arguments and errors are those of `measure_program`.

    Returns:
        The report with its trials, also written to report.json in the folder, and the signal that has ended it early.
    """
    state = measure_program(command, settings, folder, listener, earlier, kind or FROM_OUTSIDE)
    report = make_report(state, settings)
    save_report(report, folder / "report.json")
    return report, state.ended_by


def measure_program(
    command: Sequence[str],
    settings: TrySettings,
    folder: Path,
    listener: Listener,
    earlier: Mapping[str, Any] | None,
    kind: TrialKind,
) -> TrialState:
    """Diagnose a program, choose what to try on it, and measure that in turns, and the winners together.

    Args:
        command: The command line, as `parse_target` returns it.
        settings: What to try, and how long.
        folder: Where everything is kept: it exists.
        listener: Hears of each run.
        earlier: What `run_log.read_state` returned, to go on with; None to begin.
        kind: What is tried.

    Raises:
        InputError: The program fails without any change, asks for input, makes too few steps, or is not seen to train.
        UsageError: It goes on with something else than it began with.
        KeyboardInterrupt, SystemExit: A signal has ended it before anything was measured.
    """
    identity = {
        "command": list(command),
        "changes": [f"{loaded.name}={setting or ''}" for loaded, setting in settings.wanted],
        "only what findings advise": settings.only_advised,
        "--skip": settings.skip,
        "--base": settings.base,
    }
    if earlier is not None:
        run_log.check_same(earlier["identity"], identity)
    process = kind.make_process(command, folder / "runs", StepCounts(), settings.timeout_s)
    state = TrialState(RunLog(process.run, folder / run_log.STATE_FILE, identity, settings.budget_s), kind)
    state.pairs = settings.pairs
    log = state.log
    wait = f"waiting for other programs to leave the cores, at most {settings.quiet_s:.0f} s in all (--wait 0 does not)"
    state.quiet = QuietWait(settings.quiet_s, lambda: listener.say(wait))
    log.wait = state.quiet.wait
    log.on_start = lambda label: listener.begin_run(label, state)
    log.on_end = lambda label, run: listener.end_run(label, run, state)
    if earlier is not None:
        log.runs.update(earlier["runs"])
        listener.say(f"continuing after {len(log.runs)} runs, which are not repeated")
    log.save()
    if settings.diagnose:
        if earlier is None:
            log.wait()
            listener.say("recording the program as it is, to see what to try")
        state.diagnosis = diagnose_program(command, folder, measures_forms=kind is not FROM_OUTSIDE)
    try:
        with raise_on_signals():
            measure_plain(state, process, settings, listener.say)
            choose(state, settings, listener.say)
            measure_changes(state, settings)
    except (KeyboardInterrupt, SystemExit) as ended:
        if not state.candidates:
            raise
        state.ended_by = signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal_of(ended)
    return state


def measure_plain(state: TrialState, process: TrialProcess, settings: TrySettings, say: Callable[[str], None]) -> None:
    """Run the plain program against itself: it makes its steps, and their noise is known.

    Raises:
        InputError: It fails, asks for input, makes too few steps, or is not seen to train.
    """
    step_ns, steps_made = read_step_counts(state.diagnosis.facts)
    process.counts = count_steps(step_ns, steps_made, settings.skip, settings.base)
    if step_ns is None and settings.base is None:
        sizing = check_plain(process.command, state.log.run("sizing", ()))
        made = None if sizing.steps_made >= process.counts.skip + process.counts.base else sizing.steps_made
        process.counts = count_steps(sizing.mean_step_ns, made, settings.skip, settings.base)
    for number in range(PLAIN_RUNS):
        run = check_plain(process.command, state.log.run(f"plain{number + 1}", ()))
        if run.steps_made < process.counts.skip + process.counts.base:
            # It ends by itself: what it has made is what all runs can make.
            process.counts = count_steps(run.mean_step_ns, run.steps_made, settings.skip, None)
        state.plain.append(run)
        process.plain_s = max(process.plain_s or 0.0, run.seconds)
    state.counts = process.counts
    for place in state.plain[0].saves:
        say(
            f"the program saves at {place.removeprefix(f'{Path.cwd()}/')}, in every trial and to where it always "
            "does: copy what must stay as it is, or let it look at PERFDOCTOR_TRIAL=1"
        )
    mean_ns = state.plain[-1].mean_step_ns or 0.0
    say(f"a step takes {mean_ns / 1e6:,.4g} ms; plain against plain differs by {100 * state.log.noise:.1f} %")


def check_plain(command: Sequence[str], run: ProgramRun) -> ProgramRun:
    """A plain run that can be compared with.

    Raises:
        InputError: It cannot.
    """
    if run.timed_out:
        raise InputError(f"the program without any change {run.error}: give more time with --timeout.")
    if run.error is not None:
        raise InputError(explain_failure(command, run.exit_code, run.error))
    if not run.ranks or not run.steps_made:
        raise InputError(
            "no training step was seen in the program (no backward, no optimizer step), so that nothing can be timed: "
            "perfdoctor run says why."
        )
    if len(run.step_ns) < MIN_TIMED_STEPS:
        raise InputError(
            f"the program ended after {run.steps_made} steps, before enough were timed: let it run longer, or give "
            "a smaller --skip."
        )
    return run


def choose(state: TrialState, settings: TrySettings, say: Callable[[str], None]) -> None:
    """Choose what to try, and say it.

    Raises:
        InputError: There is nothing to try.
    """
    state.candidates, state.refused = state.kind.choose(state, settings)
    if not state.candidates and settings.only_advised:
        say(state.kind.nothing)
    elif state.candidates:
        say(f"trying {', '.join(each.choice.label for each in state.candidates)}")


def choose_changes(state: TrialState, settings: TrySettings) -> tuple[list[Candidate], list[Trial]]:
    """The changes to try from outside, and those that cannot be tried."""
    choices, refused = choose_candidates(
        settings.wanted,
        state.diagnosis.facts,
        plain_findings(state),
        only_advised=settings.only_advised,
        max_settings=MAX_SETTINGS_ASKED if settings.asked else MAX_SETTINGS,
    )
    return [Candidate(choice) for choice in choices], refused


FROM_OUTSIDE = TrialKind(
    TrialProcess,
    choose_changes,
    lambda candidate, _state: not candidate.choice.loaded.change.alters_numerics,
    "no finding advises a change that can be tried from outside; --all tries every one that applies",
)


def plain_findings(state: TrialState) -> list[dict[str, Any]]:
    """The findings of the diagnosis as in the JSON report."""
    report = state.diagnosis.report
    return [] if report is None else report.to_dict()["findings"]


def measure_changes(state: TrialState, settings: TrySettings) -> None:
    """Measure each change in turns with the plain program, and the winners together."""
    run_rounds(state.candidates, state.log, settings.pairs)
    for each in state.candidates:
        if each.pairs:
            each.judge(state.log.noise, settings.pairs, final=True)
    winners = choose_winners([each for each in state.candidates if may_combine(each, state, settings)])
    combine_winners(state.combination, winners, state.log, settings.pairs)


def may_combine(candidate: Candidate, state: TrialState, settings: TrySettings) -> bool:
    """Whether a measured candidate may be part of the combination, as far as results and files go."""
    if candidate.choice.loaded.change.intended_change:
        return settings.allow_changes
    return settings.allow_numerics or state.kind.keeps_results(candidate, state)


def make_report(state: TrialState, settings: TrySettings) -> Report:
    """The report of the diagnosis with the trials in it and its findings answered."""
    findings = plain_findings(state)
    base = state.diagnosis.report or empty_report(state)
    plain_difference = compare_plain_losses(state.plain)
    answered: dict[int, list[Trial]] = {}
    trials = []
    for each in state.candidates:
        if not each.pairs and each.verdict is None:
            continue  # its turn never came
        each.judge(state.log.noise, settings.pairs, final=True)
        met = next((pair.changed.changes.get(each.choice.loaded.name) for pair in each.pairs), None)
        positions = each.answers
        if positions is None:
            positions = match_findings(each.choice, met.locations if met else (), findings)
        promising = [base.findings[n] for n in positions]
        recorded_ns = base.steps.mean_ns or base.steps.median_ns
        trial = make_trial(each, state.combination, plain_difference, promising, recorded_ns)
        trials.append(trial)
        for position in positions:
            answered.setdefault(position, []).append(trial)
    if len(state.combination.kept) > 1 and state.combination.pairs:
        ratios = [pair.ratio for pair in leave_out_disturbed(state.combination.pairs)]
        verdict = judge_ratios(ratios, state.log.noise, settings.pairs, final=True) or "undecided"
        trials.append(make_combined_trial(state.combination, plain_difference, verdict))
    report = replace(answer_report(base, answered), trials=(*trials, *state.refused))
    return replace(report, trial_summary=summarize(state, settings, plain_difference))


def empty_report(state: TrialState) -> Report:
    """A report without a recording: the step of the plain program is all that is known."""
    step_ns = state.log.plain_step_ns
    steps = StepSummary(count=state.counts.base, source="annotated", median_ns=step_ns, mean_ns=step_ns)
    here = str(Path.cwd())
    return Report(find_version(), (), steps if step_ns else StepSummary(), (), (), (), (), program_folders=(here,))


def summarize(state: TrialState, settings: TrySettings, plain_difference: float | None) -> TrialSummary:
    """What the trials have in common, and what the reader should know of them."""
    return TrialSummary(
        noise=state.log.noise,
        step_ns=state.log.plain_step_ns,
        runs=len(state.log.runs),
        seconds=state.log.seconds,
        timed_steps=state.counts.base,
        ranks=max((run.ranks for run in state.plain), default=1),
        notes=tuple(list_notes(state, settings, plain_difference)),
    )


def list_notes(state: TrialState, settings: TrySettings, plain_difference: float | None) -> list[str]:
    """Sentences on what the table does not show."""
    notes = [f"The diagnosis: {note}" for note in state.diagnosis.notes]
    notes += filter(None, [state.quiet.note])
    notes += state.notes.values()
    if state.log.noise > LOUD_NOISE:
        notes.append(
            f"Plain against plain differs by {100 * state.log.noise:.0f} %, so that only larger effects are seen: "
            "other programs use the machine, or the program's steps differ; try again when it is quiet."
        )
    if plain_difference is not None and plain_difference > OTHER_SEEDS:
        notes.append(
            "Losses cannot be compared: they differ between runs of the plain program, although the seeds of Python, "
            "NumPy and torch are set alike; let the program take its seed from its arguments."
        )
    waiting = [each.choice.label for each in state.candidates if each.verdict is None and not each.pairs]
    if waiting:
        notes.append(f"Not tried, because time ran out: {', '.join(waiting)}; --resume continues.")
    combination = state.combination
    notes += [f"Not combined: {label}, because {why}." for label, why in combination.dropped.items()]
    if combination.untried:
        labels = label_of(tuple(each.choice for each in combination.untried))
        notes.append(f"Not combined, because time ran out: {labels}.")
    left_out = [each.choice for each in choose_winners(state.candidates) if not may_combine(each, state, settings)]
    for change, why in _LEFT_OUT.items():
        of_change = [each for each in left_out if each.loaded.change.intended_change == change]
        those = [each.label for each in of_change if each.label not in state.notes]
        if those:
            notes.append(f"Not combined, because it {why.format(', '.join(those))} takes it in.")
    return notes
