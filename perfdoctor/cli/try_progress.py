"""What `perfdoctor try` shows on stderr while it runs: a bar on a terminal, a line for each run elsewhere."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from perfdoctor.reporters.clean_text import clean_line, shorten_end

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from perfdoctor.trials.program_run import ProgramRun
    from perfdoctor.trials.try_program import Listener, TrialState

WIDTH = 80
# The bar and the numbers of runs beside what it says.
BAR_WIDTH = 32


@contextmanager
def open_try_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Listener]:
    """What to tell of the runs: a bar where the stream is a terminal with cursor control, else lines.

    Args:
        quiet: Show nothing but warnings.
        stream: The stream instead of stderr.
    """
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield TryLines(stream, quiet=quiet)
        return
    bar = TryBar(stream)
    try:
        yield bar
    finally:
        bar.close()


class TryLines:
    """A line for each run that has ended."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._done = 0

    def say(self, text: str) -> None:
        """A sentence for the user."""
        if not self._quiet:
            self._write(text)

    def begin_run(self, label: str, state: TrialState) -> None:
        """A run begins: its line comes at its end."""

    def end_run(self, label: str, run: ProgramRun, state: TrialState) -> None:
        """A run has ended."""
        self._done += 1
        if not self._quiet:
            self._write(f"run {self._done}, {describe_run(label, run)}{describe_rest(state)}")

    def _write(self, text: str) -> None:
        lines = textwrap.wrap(
            f"perfdoctor: {clean_line(text)}",
            WIDTH,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()


class TryBar:
    """A bar: runs done of those expected, the best change so far, the time left."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._progress: Progress | None = None
        self._task: TaskID
        self._done = 0

    def say(self, text: str) -> None:
        """A sentence above the bar."""
        self._console.print(f"perfdoctor: {clean_line(text)}", markup=False, highlight=False)

    def begin_run(self, label: str, state: TrialState) -> None:
        """Show what runs now."""
        self._draw(label, state)

    def end_run(self, label: str, run: ProgramRun, state: TrialState) -> None:
        """Count a run."""
        self._done += 1
        if run.error is not None:
            self.say(describe_run(label, run))
        self._draw(label, state)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def _draw(self, label: str, state: TrialState) -> None:
        if self._progress is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("", total=None)
            self._progress.start()
        total = self._done + state.expected_runs
        text = shorten_end(f"{clean_line(label)}{describe_rest(state)}", max(self._console.width - BAR_WIDTH, 20))
        self._progress.update(self._task, description=text, completed=self._done, total=total)


def describe_run(label: str, run: ProgramRun) -> str:
    """What a run gave: "workers=2: 181 ms a step (7 s)"."""
    from perfdoctor.units import format_duration

    if run.error is not None:
        return f"{label}: broke, {run.error}"
    mean_ns = run.mean_step_ns
    step = f"{format_duration(mean_ns)} a step" if mean_ns else f"no timed step of {run.steps_made}"
    return f"{label}: {step} ({run.seconds:.0f} s)"


def describe_rest(state: TrialState) -> str:
    """The best change so far, and about how long the rest takes; "" before the rounds."""
    from perfdoctor.units import format_percent

    if not state.candidates:
        return ""
    best, left_s = state.best, state.expected_seconds
    text = ""
    if best is not None:
        text = f"; best so far {best.choice.label}, {format_percent(100 * (1 - best.median_ratio))} less"
    return f"{text}; about {left_s / 60:.0f} min left" if left_s >= 90 else f"{text}; about {left_s:.0f} s left"
