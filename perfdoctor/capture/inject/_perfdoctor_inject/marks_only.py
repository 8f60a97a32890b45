"""What `--nvtx-only` leaves of the recorder: it finds the steps, marks them and their phases, and writes nothing."""

from __future__ import annotations

from typing import Any

from .output import warn
from .recorder import Recorder


class MarksOnly(Recorder):
    """Ranges from the first boundary to the end; no windows, no profiler, no files."""

    def boundary(self) -> None:
        """A step ends and the next begins."""
        self._bind()
        if not self.step and not self._is_chosen():
            self.finished = True
            return
        self.ranges.step_ends()
        self.step += 1
        self.ranges.on(profiled=False)
        self.ranges.step_begins()

    def user_profiler_opens(self, profile: Any) -> None:
        """The program's own profiler is in nobody's way."""

    def user_profiler_closes(self, profile: Any) -> None:
        """Nor is its end."""

    def give_up(self, error: BaseException) -> None:
        """A failure of ours: one warning line, and no more ranges."""
        if not self.finished:
            self.finished = True
            self.ranges.off()
            warn(f"no more ranges from step {self.step} on; the program runs on: {error!r}")

    def finish(self, why: str) -> None:
        """The process ends: so do its ranges, by themselves."""
        self.why, self.finished = why, True
