"""The recording with which `try` begins: what the findings promise, how long a step is, how many steps there are."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import Report, analyze_traces
from perfdoctor.capture import launch
from perfdoctor.capture.capture_folder import has_traces
from perfdoctor.capture.capture_notes import read_facts
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.errors import InputError, PerfdoctorError
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.fleet.discover import find_traces
from perfdoctor.forms import DEFAULT_BUDGET_S
from perfdoctor.forms.measure_forms import measure_capture
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trials.program_run import find_error

DIAGNOSIS_FOLDER = "diagnosis"
DIAGNOSIS_LOG = "diagnosis-log.txt"
_INTERRUPTED = 128 + signal.SIGINT
# How the recording of a run ends that was ended with `try` itself, before all windows were there.
_ENDED_EARLY = ("running", "SIGTERM")


@frozen_dataclass
class Diagnosis:
    """What a recording of the plain program says.

    Attributes:
        report: Its report; None where there is none.
        facts: Those of rank 0; false where there is none.
        notes: What is missing, in sentences.
    """

    report: Report | None = None
    facts: CapturedFacts = NO_FACTS
    notes: tuple[str, ...] = ()


def diagnose_program(command: Sequence[str], folder: Path, *, measures_forms: bool = False) -> Diagnosis:
    """Record the program as `perfdoctor run --stop-after` does, and analyse it; an earlier whole one is kept.

    Args:
        command: The command line.
        folder: The folder of the trials; the recording goes to a folder in it.
        measures_forms: Whether cheaper forms are measured after it, for edits of the source.

    Raises:
        InputError: The program fails, without any change.
        KeyboardInterrupt: The user has interrupted the program.
    """
    capture, notes = folder / DIAGNOSIS_FOLDER, list[str]()
    if not has_traces(capture) or (read_facts(capture, 0) or NO_FACTS).exit in _ENDED_EARLY:
        log = folder / DIAGNOSIS_LOG
        ended = launch.run(command, CaptureOptions(out=capture, force=True, stop_after=True), log=log)
        if ended.exit_code == _INTERRUPTED:
            raise KeyboardInterrupt
        if ended.exit_code:
            raise InputError(explain_failure(command, ended.exit_code, launch.read_tail(launch.error_log_of(log))))
        notes += ended.notes
        if measures_forms and ended.ranks:
            with contextlib.suppress(PerfdoctorError):  # the edits of other findings do not wait for it
                measure_capture(capture, min(ended.ranks), DEFAULT_BUDGET_S, ended.python)
    if not has_traces(capture):
        return Diagnosis(facts=read_facts(capture, 0) or NO_FACTS, notes=tuple(notes))
    try:
        report = analyze_traces(find_traces([capture]), AnalysisOptions(charts=True))  # a page may be wanted in the end
    except PerfdoctorError as error:
        return Diagnosis(facts=read_facts(capture, 0) or NO_FACTS, notes=(*notes, f"the diagnosis failed: {error}"))
    return Diagnosis(report, read_facts(capture, 0) or NO_FACTS, tuple(notes))


def explain_failure(command: Sequence[str], exit_code: int, stderr_tail: str) -> str:
    """Why nothing can be tried: the program fails by itself, or waits for somebody to type."""
    error = find_error(stderr_tail)
    if error is not None and error.startswith("EOFError"):
        return (
            "the program asks for input, and nobody answers in a trial: give it what it asks for as an argument, "
            "a file or a variable."
        )
    name = next((word for word in command if word.endswith(".py")), command[-1])
    why = error or f"exit code {exit_code}"
    return f"the program fails without any change ({why}): let {name} run by itself first."
