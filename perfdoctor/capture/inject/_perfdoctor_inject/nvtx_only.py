"""The recorder of `--nvtx-only`: it finds the steps, marks them and their phases as NVTX ranges, and writes nothing."""

from __future__ import annotations

from typing import Any

from .messages import warn
from .recorder import Recorder


class NvtxOnlyRecorder(Recorder):
    """Ranges from the first step boundary to the end; no windows, no profiler, no files."""

    def end_step(self) -> None:
        """End a step and begin the next one."""
        self._bind_training_thread()
        if not self.step and not self._is_recorded_rank():
            self.finished = True
            return
        self.ranges.end_step()
        self.step += 1
        self.ranges.start(profiled=False)
        self.ranges.begin_step()

    def on_user_profiler_open(self, profile: Any) -> None:
        """Do nothing: no profiler of ours is in the way of the program's profiler."""

    def on_user_profiler_close(self, profile: Any) -> None:
        """Do nothing."""

    def give_up(self, error: BaseException) -> None:
        """Write one warning line after a failure of ours, and mark no more ranges."""
        if not self.finished:
            self.finished = True
            self.ranges.stop()
            warn(f"no more ranges from step {self.step} on; the program runs on: {error!r}")

    def finish(self, reason: str) -> None:
        """Stop listening; the ranges end with the process."""
        self.exit_reason, self.finished = reason, True
