"""Loaded by every Python that a recorded program starts: waits for torch, then hands over. Standard library only.

It must cost next to nothing (a Python that never imports torch pays one small file), must never raise, and must leave
the interpreter as it would have been: the folder leaves sys.path again, and the sitecustomize that this one shadows
(Debian, coverage, conda) is run in its place.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing would cost more than the rest of this file
if TYPE_CHECKING:
    from typing import Any

MARKS = "PERFDOCTOR_CAPTURE_MARKS"
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_perfdoctor_inject"
# Interpreters that can never be a training rank. Spawned and forked workers can, and are told apart later.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker", "compile_worker")


def mark(kind: str) -> None:
    """Leave an empty file that tells the parent how far this process came: `<pid>.python` or `<pid>.torch`."""
    path = os.path.join(os.environ[MARKS], f"{os.getpid()}.{kind}")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def start() -> None:
    """Load the recorder by its path, under a name of its own, so that no later change of sys.path can hide it."""
    import importlib.util

    path = os.path.join(HERE, PACKAGE)
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(path, "__init__.py"), submodule_search_locations=[path]
    )
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    importlib.import_module(PACKAGE + ".entry").install()


def complain(error: BaseException) -> None:
    """One warning line; the program goes on without us."""
    try:  # noqa: SIM105 - contextlib would cost an import at every start of a Python
        sys.stderr.write(f"perfdoctor: nothing is recorded in process {os.getpid()}: {error!r}\n")
    except Exception:
        pass


class TorchFinder:
    """One-shot finder on sys.meta_path: lets the ordinary machinery import torch, then starts the recorder."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """The spec of torch with a loader that calls `start` afterwards; None for any other module."""
        if name != "torch" or path is not None:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec("torch")
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_then_start(module: Any) -> None:
            execute(module)
            try:
                mark("torch")
                start()
            except Exception as error:
                complain(error)

        spec.loader.exec_module = execute_then_start
        return spec


def arm() -> None:
    """Install the finder, unless this is a helper process, recording is turned off, or the parent is gone."""
    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0") or not os.path.isdir(os.environ.get(MARKS, "")):
        return
    command = " ".join(getattr(sys, "orig_argv", [])[:6])
    if any(helper in command for helper in HELPERS):
        return
    mark("python")
    sys.meta_path.insert(0, TorchFinder())


def step_aside() -> None:
    """Take this folder off sys.path and run the sitecustomize that would have been found without it."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    import _frozen_importlib
    import _frozen_importlib_external

    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        arm()
    except Exception as failure:
        complain(failure)
    step_aside()
