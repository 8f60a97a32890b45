"""What every callback does: one session from the beginning of training to its end, however training ends."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

from perfdoctor.capture.session import Session, job_rank, profile


class SessionCallback:
    """A mixin for a framework's callback class; it records the first training and no later one."""

    def __init__(self, out: str | Path | None = None, *, print_report: bool = True, **options: Any) -> None:
        """Prepare a session; nothing is recorded yet.

        Args:
            out: Capture folder; None makes `perfdoctor-<script>-<time>`. A job with several ranks should name it.
            print_report: Print the report when training has ended. A job with several ranks prints the command for it,
                because other ranks may still be saving.
            **options: As for `perfdoctor.profile`.

        Raises:
            UsageError: An option that does not exist, or a window of an impossible size.
        """
        super().__init__()
        self.session: Session = profile(out, **options)
        self._state = "new"
        self._prints_report = print_report

    def begin(self) -> None:
        """Begin to record, when training begins.

        Raises:
            CaptureError: The folder cannot be used.
        """
        if self._state == "new":
            self.session.__enter__()
            self._state = "open"
            # Not every framework calls its callbacks when training ends with an exception.
            atexit.register(self._save)

    def step(self) -> None:
        """End a training step."""
        if self._state == "open":
            self.session.end_step()

    def end(self, error: BaseException | None = None) -> None:
        """Save what was recorded and print the report, when training ends; safe to call again.

        Args:
            error: What ended the training, None where it came to its end. After an error no report is printed.
        """
        if self._save(error) and error is None and self._prints_report and not self._is_reported_by_run():
            self._print_report()

    def _save(self, error: BaseException | None = None) -> bool:
        """Save what was recorded; False where that was done before, or nothing was begun."""
        if self._state != "open":
            return False
        self._state = "closed"
        atexit.unregister(self._save)
        self.session.__exit__(type(error) if error is not None else None, error, None)
        return True

    def _is_reported_by_run(self) -> bool:
        """Whether the `perfdoctor run` around this program reports on the folder."""
        settings = os.environ.get("PERFDOCTOR_CAPTURE_SETTINGS")
        return settings is not None and json.loads(settings).get("folder") == str(self.session.folder)

    def _print_report(self) -> None:
        """Print the report, or why there is none; training has ended well, and a failure here is no failure of it."""
        rank, folder = job_rank(), self.session.folder
        if rank:
            return
        if rank == 0:
            sys.stderr.write(
                f"perfdoctor: recorded in {folder}; when all ranks have ended: perfdoctor analyze {folder}\n"
            )
            return
        try:
            report = self.session.report()
            sys.stdout.write("\n")
            report.print()
            sys.stderr.write(f"perfdoctor: recorded in {folder}\n")
        except Exception as error:
            sys.stderr.write(f"perfdoctor: the recording in {folder} was not reported: {error}\n")

    def report(self, **options: Any) -> Any:
        """The `Report` of what was recorded; options as for `perfdoctor.analyze`."""
        return self.session.report(**options)
