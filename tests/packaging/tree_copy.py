"""A copy of what a build reads, so that no test builds in the checkout."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from build_backend.core_library import load_core_sources

ROOT = Path(__file__).resolve().parents[2]
SCANNER = Path("perfdoctor", "trace", "scanner")

HOOK = "import sys; from build_backend import hooks; print(getattr(hooks, sys.argv[1])(*sys.argv[2:]))"


def copy_tree(to: Path, *, whole: bool = True) -> Path:
    """The checkout's packages, build backend and the files that they are built with, without what was built before.

    Args:
        to: The folder that is made.
        whole: Otherwise of the package only what reads traces, with a library that says what it was built from and
            does nothing else: to pack 700 modules and to compile all of the library takes seconds each.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.dylib", "*.dll")
    packages = ("perfdoctor", "analyzers") if whole else ("perfdoctor/trace",)
    for name in (*packages, "build_backend"):
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=ignored)
    (to / "analyzers").mkdir(exist_ok=True)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "perfdoctor/__init__.py"):
        shutil.copy(ROOT / name, to / name)
    for source in () if whole else (to / SCANNER / "core").glob("*.c"):
        if source.name != "version.c":
            source.unlink()
    return to


def run_hook(tree: Path, hook: str, *arguments: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A hook of the build backend, called as pip calls it: in a process of its own, in the tree."""
    # Not imported: once the standard library's distutils is, setuptools refuses.
    if find_spec("setuptools") is None:
        pytest.skip("setuptools, which builds packages, is not installed")
    command = [sys.executable, "-c", HOOK, hook, *map(str, arguments)]
    inherited = {key: value for key, value in os.environ.items() if key not in ("PERFDOCTOR_LIBRARY", "CC")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tree,
        env=inherited | {"PYTHONPATH": str(tree)} | environment,
    )


def built_from(library: Path) -> str:
    """The hash of the sources that a library says it was built from."""
    function = ctypes.CDLL(str(library)).perfdoctor_sources
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()


def hash_sources(tree: Path) -> str:
    """The hash of a tree's sources."""
    text: str = load_core_sources().hash_sources(tree / SCANNER / "core")
    return text
