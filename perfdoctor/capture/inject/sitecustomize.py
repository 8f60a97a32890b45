"""Loaded by every Python that a recorded program starts: waits for torch, then installs the recorder.

Standard library only. This file must cost next to nothing, because Pythons that never import torch load it, too. It
must never raise. And it must leave the interpreter as it would have been: the folder is removed from sys.path again,
and the sitecustomize that this one hides (Debian, coverage, conda) is run afterwards.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing would cost more than the rest of this file
if TYPE_CHECKING:
    from typing import Any

MARKER_VARIABLE = "PERFDOCTOR_CAPTURE_MARKS"
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_perfdoctor_inject"
# Interpreters that can never be a training rank. Spawned and forked workers can be one; the recorder decides later.
HELPER_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker", "compile_worker")


def leave_marker(kind: str) -> None:
    """Write an empty file that shows the parent how far this process came: `<pid>.python` or `<pid>.torch`."""
    path = os.path.join(os.environ[MARKER_VARIABLE], f"{os.getpid()}.{kind}")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def import_recorder(module: str) -> Any:
    """A module of the recorder's package, loaded by its path, under a name that no later sys.path can hide."""
    import importlib.util

    if PACKAGE in sys.modules:
        return importlib.import_module(f"{PACKAGE}.{module}")

    path = os.path.join(OWN_FOLDER, PACKAGE)
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(path, "__init__.py"), submodule_search_locations=[path]
    )
    if spec is None or spec.loader is None:
        raise ImportError(path)
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.{module}")


def warn_of(error: BaseException) -> None:
    """Write one warning line to stderr; the program runs on without being recorded."""
    try:  # noqa: SIM105 - contextlib would cost an import at every start of a Python
        sys.stderr.write(f"perfdoctor: nothing is recorded in process {os.getpid()}: {error!r}\n")
    except Exception:
        pass


class TorchFinder:
    """A finder on sys.meta_path, used once: lets Python import torch as usual, then starts the recorder."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """The spec of torch with a loader that starts the recorder afterwards; None for any other module."""
        if name != "torch" or path is not None:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec("torch")
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        exec_torch = spec.loader.exec_module

        def exec_torch_and_start(module: Any) -> None:
            exec_torch(module)
            try:
                leave_marker("torch")
                import_recorder("install_recorder").install()
            except Exception as error:
                warn_of(error)

        spec.loader.exec_module = exec_torch_and_start
        return spec


def install_finder() -> None:
    """Install the finder, except in a helper process, with recording turned off, or after the parent has ended."""
    has_parent = os.path.isdir(os.environ.get(MARKER_VARIABLE, ""))
    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0") or not has_parent:
        return
    command = " ".join(getattr(sys, "orig_argv", [])[:6])
    if any(helper in command for helper in HELPER_PROCESSES):
        return
    leave_marker("python")
    sys.meta_path.insert(0, TorchFinder())


def run_hidden_sitecustomize() -> None:
    """Remove this folder from sys.path and run the sitecustomize that Python would have found without it."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != OWN_FOLDER]
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
        install_finder()
    except Exception as failure:
        warn_of(failure)
    run_hidden_sitecustomize()
