"""Starts the program for each trial, with its changes and settings, and reads what it left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoctor.capture import launch
from perfdoctor.capture.capture_folder import find_unused_path
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange, TrialOptions
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trials.program_run import ProgramRun, read_program_run
from perfdoctor.trials.run_log import Arm
from perfdoctor.trials.step_counts import StepCounts

LOG_FILE = "log.txt"
# A run that takes longer than the plain program by this factor hangs. What compiles in the first steps may take the
# seconds on top, however short the program is.
HANG_FACTOR = 5.0
HANG_EXTRA_S = 60.0
# Until the plain program has run once, nobody knows how long it takes.
FIRST_RUN_TIMEOUT_S = 3600.0
SEED = 0


@frozen_dataclass
class Start:
    """How a program is started for one run.

    Attributes:
        command: The command line.
        environment: Variables to set for it.
        changes: What is changed in it from outside.
        cwd: The folder in which it runs; None for that of this process.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    changes: tuple[TrialChange, ...]
    cwd: Path | None = None


@dataclass(slots=True)
class TrialProcess:
    """Runs the program of a command line, each time in a folder of its own.

    Attributes:
        command: The command line.
        folder: Where the folders of the runs are made.
        counts: The steps of each run.
        timeout_s: Seconds after which a run is ended; None for `HANG_FACTOR` times the plain program.
        plain_s: How long the plain program takes; None until that is known.
    """

    command: Sequence[str]
    folder: Path
    counts: StepCounts
    timeout_s: float | None = None
    plain_s: float | None = None

    def run(self, name: str, arm: Arm) -> ProgramRun:
        """Run the program once with the changes of an arm.

        Raises:
            CaptureError: The program cannot be started, or the folder cannot be written.
        """
        folder = find_unused_path(str(self.folder / re.sub(r"[^\w.=+-]+", "-", name)))
        start = self.prepare(arm)
        options = CaptureOptions(
            out=folder,
            skip=self.counts.skip,
            base=self.counts.base,
            trial=TrialOptions(seed=SEED, changes=start.changes),
        )
        ended = launch.run_trial(
            start.command, options, start.environment, self._limit_s(), log=folder / LOG_FILE, cwd=start.cwd
        )
        return read_program_run(
            folder, ended.exit_code, ended.seconds, timed_out=ended.timed_out, stderr_tail=ended.stderr_tail
        )

    def prepare(self, arm: Arm) -> Start:
        """What to start for an arm: the program as it is, with the changes made in it from outside."""
        environment: dict[str, str] = {}
        for choice in arm:
            environment |= choice.loaded.change.environment(choice.setting)
        changes = tuple(
            TrialChange(choice.loaded.name, choice.loaded.file, choice.loaded.class_name, choice.setting)
            for choice in arm
        )
        return Start(tuple(self.command), environment, changes)

    def _limit_s(self) -> float:
        if self.timeout_s is not None:
            return self.timeout_s
        if self.plain_s is None:
            return FIRST_RUN_TIMEOUT_S
        return max(HANG_FACTOR * self.plain_s, self.plain_s + HANG_EXTRA_S)
