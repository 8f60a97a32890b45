"""What every callback does: one session from the beginning of training to its end, however training ends."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from perfdoctor.capture.session import Session, profile


class SessionCallback:
    """A mixin for a framework's callback class; it records the first training and no later one."""

    def __init__(self, out: str | Path | None = None, **options: Any) -> None:
        """Prepare a session; nothing is recorded yet.

        Args:
            out: Capture folder; None makes `perfdoctor-<script>-<time>`. A job with several ranks should name it.
            **options: As for `perfdoctor.profile`.

        Raises:
            UsageError: An option that does not exist, or a window of an impossible size.
        """
        super().__init__()
        self.session: Session = profile(out, **options)
        self._state = "new"

    def begin(self) -> None:
        """Begin to record, when training begins.

        Raises:
            CaptureError: The folder cannot be used.
        """
        if self._state == "new":
            self.session.__enter__()
            self._state = "open"
            # Not every framework calls its callbacks when training ends with an exception.
            atexit.register(self.end)

    def step(self) -> None:
        """End a training step."""
        if self._state == "open":
            self.session.end_step()

    def end(self, error: BaseException | None = None) -> None:
        """Save what was recorded, when training ends; safe to call again."""
        if self._state == "open":
            self._state = "closed"
            atexit.unregister(self.end)
            self.session.__exit__(type(error) if error is not None else None, error, None)

    def report(self, **options: Any) -> Any:
        """The `Report` of what was recorded; options as for `perfdoctor.analyze`."""
        return self.session.report(**options)
