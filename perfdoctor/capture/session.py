"""Recording around the caller's loop, for programs whose steps cannot be found automatically.

A session runs the same recorder as an injected program, but the caller marks where a step ends. torch is imported when
a session begins, not with this module.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perfdoctor.capture.capture_folder import find_unused_path, has_traces, launcher_rank, list_ranks, make_folder
from perfdoctor.capture.capture_notes import notes_of_rank, read_facts
from perfdoctor.capture.capture_options import CaptureOptions, fit_windows
from perfdoctor.capture.command_line import to_file_name
from perfdoctor.capture.inject._perfdoctor_inject.tracebacks import remove_own_frames
from perfdoctor.capture.missing_torch import install_command
from perfdoctor.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder
    from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# The module that starts the recorder in a program under `perfdoctor run`; loaded in no other program.
INJECTED_MODULE = "_perfdoctor_inject.install_recorder"
NOT_BEGUN = "The session has not begun: enter it with `with perfdoctor.profile() as session`."
# The folders in which sessions of this process recorded: a cell that runs again may replace its own recording.
_own_folders: set[Path] = set()


class Session:
    """One recording: `with perfdoctor.profile("out") as session`, and `with session.step()` around each step.

    A step lasts from the end of the step before it to its own end, so that loading the next batch belongs to it.
    Both have a form as decorator: `@session.step()` makes each call of a function one step, and `@perfdoctor.profile()`
    records the first call of a function with a whole loop in it, whose steps are found as in `perfdoctor run`.

    Attributes:
        options: Windows and folder.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self._automatic = False
        self._folder: Path | None = None
        self._recorder: Recorder | None = None
        self._hooks: Hooks | None = None

    @property
    def folder(self) -> Path:
        """The capture folder.

        Raises:
            UsageError: The session has not begun.
        """
        if self._folder is None:
            raise UsageError(NOT_BEGUN)
        return self._folder

    def __enter__(self) -> Session:
        recorder_class, hooks_class = load_recorder()
        self._folder = open_session_folder(self.options)
        self._recorder = recorder_class(recorder_settings(self.options, self._folder), automatic=self._automatic)
        self._hooks = hooks_class(self._recorder)
        self._hooks.install()
        self._hooks.call_recorder(self._recorder.gradients.find_optimizers)
        if not self._automatic:
            self._hooks.call_recorder(self._recorder.begin)
        return self

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Record the first call of a function that holds a training loop, and find its steps automatically.

        Args:
            function: The function; its calls after the first are not recorded.

        Returns:
            The function, with this session as its attribute `session`.
        """

        @functools.wraps(function)
        def recorded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if self._recorder is not None:
                return function(*args, **kwargs)
            self._automatic = True
            try:
                with self:
                    return function(*args, **kwargs)
            except BaseException as error:
                remove_own_frames(error, __file__)
                raise

        recorded.session = self  # type: ignore[attr-defined]
        return recorded

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is None or self._hooks is None:
            return
        self._hooks.call_recorder(self._recorder.memory_watch.note_error, error)
        self._hooks.call_recorder(self._recorder.finish, "session" if kind is None else "exception")
        self._recorder.finished = True
        self._hooks.remove()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One training step; the next batch may be fetched inside or before it.

        As a decorator, `@session.step()`, it makes every call of a function one step.

        Raises:
            UsageError: The session has not begun.
        """
        if self._recorder is None:
            raise UsageError(NOT_BEGUN)
        yield
        self.end_step()

    def end_step(self) -> None:
        """End a step and begin the next one: for callbacks of a trainer, which cannot enter a `with` block.

        Raises:
            UsageError: The session has not begun.
        """
        if self._recorder is None or self._hooks is None:
            raise UsageError(NOT_BEGUN)
        if not self._recorder.finished:
            self._hooks.call_recorder(self._recorder.end_step)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks recorded so far; other processes of the job write to the same folder."""
        return list_ranks(self.folder)

    def report(self, **options: Any) -> Any:
        """Analyse what was recorded.

        Args:
            **options: Passed on to `perfdoctor.analyze`.

        Returns:
            The `Report`.

        Raises:
            CaptureError: No rank has a timing trace; the message says what to do.
        """
        if self.ranks and not has_traces(self.folder):
            raise CaptureError(" ".join(notes_of_rank(read_facts(self.folder, self.ranks[0]), self.options)))
        return analyze(self.folder, **options)


def profile(out: str | Path | None = None, **options: Any) -> Session:
    """Record the steps of your own loop.

    Args:
        out: Capture folder; None makes `perfdoctor-<script>-<time>` in the working directory. A cell of a notebook that
            runs again replaces its recording there; where another process has recorded, the folder gets a number.
        **options: Any other field of `CaptureOptions`: skip, base, warmup, timing, evidence, max_evidence_bytes,
            memory, force, ranks.

    Returns:
        A `Session`: enter it around the loop, or decorate a function with it that holds the loop.

    Raises:
        UsageError: An option that does not exist, or a window of an impossible size.
    """
    try:
        wanted = CaptureOptions(out=None if out is None else Path(out), **options)
    except TypeError as error:
        raise UsageError(f"profile() has no such option: {str(error).rpartition(' ')[2]}.") from error
    if wanted.nvtx_only or wanted.stop_after:
        raise UsageError("nvtx_only and stop_after are for whole programs: use `perfdoctor run`.")
    return Session(wanted)


def diagnose(fn: Callable[..., Any], *args: Any, steps: int = 20, **kwargs: Any) -> Any:
    """Profile a callable that makes one training step, and analyse it.

    Args:
        fn: Called `steps` times.
        *args: Arguments of `fn`.
        steps: Number of calls; the windows are fitted to it.
        **kwargs: Keyword arguments of `fn`.

    Returns:
        The `Report`.

    Raises:
        UsageError: Fewer than four steps, which leave no room to measure.
        CaptureError: torch is missing.
    """
    windows = fit_windows(steps)
    if windows is None:
        raise UsageError(f"diagnose() needs at least 4 steps to measure anything, not {steps}.")
    sizes = {name: getattr(windows, name) for name in ("skip", "base", "warmup", "timing", "evidence")}
    with tempfile.TemporaryDirectory(prefix="perfdoctor-", ignore_cleanup_errors=True) as folder:
        with profile(folder, **sizes) as session:
            for _ in range(steps):
                with session.step():
                    fn(*args, **kwargs)
        return analyze(session.folder)


def analyze(folder: Path, **options: Any) -> Any:
    """Call `perfdoctor.analyze`; imported at call time, because capture may import no later room of the pipe."""
    import perfdoctor

    public: Any = perfdoctor
    return public.analyze(folder, **options)


def load_recorder() -> tuple[type[Recorder], type[Hooks]]:
    """Import torch and the recorder, and return the recorder's classes.

    Raises:
        CaptureError: torch is missing.
    """
    # Without this, Kineto writes progress lines to stderr; Kineto reads the variable when it is first used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CaptureError(f"Recording needs PyTorch in this Python: {install_command()}") from error
    from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder
    from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks

    return Recorder, Hooks


def recorder_settings(options: CaptureOptions, folder: Path) -> Any:
    """The recorder's settings, passed through the same text as into an injected program."""
    from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import parse_settings

    return parse_settings(options.to_json(folder))


def open_session_folder(options: CaptureOptions) -> Path:
    """The capture folder of the `perfdoctor run` around this program if there is one, else a new folder.

    The recorder of that `perfdoctor run` stops, because the session takes its place.
    """
    injected = sys.modules.get(INJECTED_MODULE)
    outer_folder = injected.yield_to_session() if injected is not None else None
    if outer_folder is not None and options.out is None:
        return Path(outer_folder)
    script = to_file_name(Path(sys.argv[0]).stem) if sys.argv and sys.argv[0] else "session"
    rank, wanted, force = job_rank(), options.out, options.force
    if wanted is not None and rank is None and not force and is_interactive():
        wanted, force = choose_interactive_folder(wanted)
    folder = make_folder(wanted, script, force=force, rank=rank)
    _own_folders.add(folder.resolve())
    return folder


def is_interactive() -> bool:
    """Whether somebody types the code in a notebook or at a prompt, so that it may run again in this process."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)


def choose_interactive_folder(wanted: Path) -> tuple[Path, bool]:
    """The folder for code that is run again and again, and whether an earlier recording in it is replaced.

    Only what this process recorded is replaced. A folder that was there before, such as that of the notebook before
    its kernel was restarted, gets a number instead.
    """
    if not wanted.is_dir() or not any(wanted.iterdir()):
        return wanted, False
    if wanted.resolve() in _own_folders:
        sys.stderr.write(f"perfdoctor: {wanted} was recorded by this notebook or prompt before, and is replaced\n")
        return wanted, True
    unused = find_unused_path(str(wanted))
    sys.stderr.write(f"perfdoctor: {wanted} is not empty: this recording goes to {unused}; force=True replaces it\n")
    return unused, False


def job_rank() -> int | None:
    """Rank of this process when other processes of the job may write to the same folder, else None."""
    rank = launcher_rank()
    distributed = sys.modules.get("torch.distributed")
    if rank is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) if distributed.get_world_size() > 1 else None
    return rank
