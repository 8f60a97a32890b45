"""What to do where the Python that runs perfdoctor has no torch: another Python has it, or it can be installed here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path


def explain_missing_torch(program: Sequence[str] = ("train.py",)) -> str | None:
    """A sentence without full stop for a Python without torch; None where torch is installed.

    `program` is what one would type behind the interpreter.
    """
    if find_spec("torch") is not None:
        return None
    other = next(find_pythons_with_torch(), None)
    run = shlex.join(["perfdoctor", "run", "--", str(other or "/path/to/python"), *program])
    where = "in the Python that has it" if other is None else "in this environment's Python, which has it"
    install = f"; or install it: {install_command()}" if find_spec("pip") is not None else ""
    return f"the Python that runs perfdoctor ({sys.executable}) has no torch: run the program {where}, {run}{install}"


def install_command() -> str:
    """What installs torch into the environment of this Python."""
    return f"{shlex.quote(sys.executable)} -m pip install torch"


def find_pythons_with_torch() -> Iterator[Path]:
    """The interpreters of the active environment, and of the first `python` on PATH, where torch lies beside them."""
    prefixes = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    found = [Path(prefix) / "bin" / "python" for prefix in prefixes if prefix]
    on_path = shutil.which("python") or shutil.which("python3")
    found += [Path(on_path)] if on_path else []
    for python in found:
        prefix = python.parent.parent
        if prefix != Path(sys.prefix) and any(prefix.glob("lib/python3*/site-packages/torch/__init__.py")):
            yield python
