"""The entry point for sitecustomize.py: installs the recorder in a program, once torch is imported."""

from __future__ import annotations

from typing import Any

from .attached_recorder import AttachedRecorder
from .control_socket import ControlSocket
from .exit_handlers import ExitHandlers
from .messages import warn
from .recorder import Recorder
from .recorder_settings import RecorderSettings, settings_from_environment
from .torch_hooks import Hooks

_active: tuple[Recorder, Hooks] | None = None


class NvtxOnlyRecorder(Recorder):
    """The recorder of `--nvtx-only`: steps and their phases as NVTX ranges; no windows, no profiler, no files."""

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


def install() -> None:
    """Install hooks and exit handlers in this process; without settings in the environment, do nothing."""
    global _active
    settings = settings_from_environment()
    if settings is None or _active is not None:
        return
    recorder = make_recorder(settings)
    if settings.watch:
        recorder.control = ControlSocket(settings, AttachedRecorder)
    hooks = Hooks(recorder)
    _active = recorder, hooks
    try:
        hooks.install()
    except Exception as error:
        hooks.remove()
        recorder.finished = True
        warn(f"nothing is recorded, because this torch is unlike those known: {error!r}")
        return
    ExitHandlers(recorder).install()
    hooks.call_recorder(recorder.start)


def make_recorder(settings: RecorderSettings) -> Recorder:
    """The recorder that the settings ask for."""
    if settings.trial is not None:
        from .trial_recorder import TrialRecorder

        return TrialRecorder(settings)
    return NvtxOnlyRecorder(settings) if settings.nvtx_only else Recorder(settings)


def is_recording() -> bool:
    """Whether a recorder of `perfdoctor run` is at work in this process."""
    return _active is not None and not _active[0].finished


def yield_to_session() -> str | None:
    """Stop the injected recorder, because the program has begun a session of its own.

    Returns:
        The capture folder, which the session may use; None when no recorder was installed, or when the recorder has
        already written steps to the folder.
    """
    if _active is None:
        return None
    recorder, hooks = _active
    has_written = recorder.folder is not None
    recorder.finish("session")
    hooks.remove()
    return None if has_written else recorder.settings.folder
