"""Recording around the caller's own loop, for programs whose steps nothing else could find.

The same recorder as in an injected program, told where a step ends. torch is imported when a session begins, not with
this module.
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

from perfdoctor.capture.folder import has_traces, launched_rank, make_folder, recorded_ranks
from perfdoctor.capture.inject._perfdoctor_inject.tracebacks import leave_no_frame
from perfdoctor.capture.notes import rank_notes, read_facts
from perfdoctor.capture.options import CaptureOptions, fit_windows
from perfdoctor.capture.target import slug
from perfdoctor.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from perfdoctor.capture.inject._perfdoctor_inject.hooks import Hooks
    from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

INJECTED = "_perfdoctor_inject.entry"


class Session:
    """One recording: `with perfdoctor.profile("out") as session`, and `with session.step()` around each step.

    A step reaches from the end of the one before it to its own end, so that loading the next batch belongs to it.
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
            raise UsageError("The session has not begun: enter it with `with perfdoctor.profile() as session`.")
        return self._folder

    def __enter__(self) -> Session:
        recorder_class, hooks_class = load_recorder()
        self._folder = folder_for(self.options)
        self._recorder = recorder_class(settings_for(self.options, self._folder), automatic=self._automatic)
        self._hooks = hooks_class(self._recorder)
        self._hooks.install()
        if not self._automatic:
            self._hooks.tell(self._recorder.begin)
        return self

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Record the first call of a function that holds a training loop; its steps are found by themselves.

        Args:
            function: Called as ever; calls after the first are not recorded.

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
                leave_no_frame(error, __file__)
                raise

        recorded.session = self  # type: ignore[attr-defined]
        return recorded

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is None or self._hooks is None:
            return
        self._hooks.tell(self._recorder.finish, "session" if kind is None else "exception")
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
            raise UsageError("The session has not begun: enter it with `with perfdoctor.profile() as session`.")
        yield
        self.end_step()

    def end_step(self) -> None:
        """A step is over, and the next begins: for callbacks, which a loop tells of its steps.

        Raises:
            UsageError: The session has not begun.
        """
        if self._recorder is None or self._hooks is None:
            raise UsageError("The session has not begun: enter it with `with perfdoctor.profile() as session`.")
        if not self._recorder.finished:
            self._hooks.tell(self._recorder.boundary)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks recorded so far; other processes of the job write to the same folder."""
        return recorded_ranks(self.folder)

    def report(self, **options: Any) -> Any:
        """Analyse what was recorded.

        Args:
            **options: Passed on to `perfdoctor.analyze`.

        Returns:
            The `Report`.

        Raises:
            CaptureError: No rank came to its timing window; it says what to do.
        """
        if self.ranks and not has_traces(self.folder):
            raise CaptureError(" ".join(rank_notes(read_facts(self.folder, self.ranks[0]), self.options)))
        return analyze(self.folder, **options)


def profile(out: str | Path | None = None, **options: Any) -> Session:
    """Record the steps of an own loop.

    Args:
        out: Capture folder; None makes `perfdoctor-<script>-<time>` in the working directory.
        **options: Any other field of `CaptureOptions`: skip, base, warmup, timing, evidence, force, ranks.

    Returns:
        A `Session` to enter, or to decorate a function with that holds the loop.

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
        *args: Its arguments.
        steps: Number of calls; the windows are fitted to it.
        **kwargs: Its keyword arguments.

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
    """`perfdoctor.analyze`, looked up when it is called: capture stands in front of the pipe and imports none of it."""
    import perfdoctor

    public: Any = perfdoctor
    return public.analyze(folder, **options)


def load_recorder() -> tuple[type[Recorder], type[Hooks]]:
    """The recorder's classes, importing torch.

    Raises:
        CaptureError: torch is missing.
    """
    # Kineto would write progress lines to stderr; it reads this when it is first used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CaptureError(
            f"Recording needs PyTorch in this Python ({sys.executable}): pip install 'perfdoctor[torch]'."
        ) from error
    from perfdoctor.capture.inject._perfdoctor_inject.hooks import Hooks
    from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder

    return Recorder, Hooks


def settings_for(options: CaptureOptions, folder: Path) -> Any:
    """The recorder's settings, by the same way as into an injected program."""
    from perfdoctor.capture.inject._perfdoctor_inject.settings import parse

    return parse(options.to_json(folder))


def folder_for(options: CaptureOptions) -> Path:
    """The session's folder: that of the `perfdoctor run` around this program, if any, else one of its own."""
    injected = sys.modules.get(INJECTED)
    outer = injected.stand_down() if injected is not None else None
    if outer is not None and options.out is None:
        return Path(outer)
    script = slug(Path(sys.argv[0]).stem) if sys.argv and sys.argv[0] else "session"
    return make_folder(options.out, script, force=options.force, rank=own_rank())


def own_rank() -> int | None:
    """Our rank when other processes of the job may write to the same folder, else None."""
    rank = launched_rank()
    distributed = sys.modules.get("torch.distributed")
    if rank is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) if distributed.get_world_size() > 1 else None
    return rank
