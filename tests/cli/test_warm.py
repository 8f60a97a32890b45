"""`perfdoctor check --warm` compiles the reader into the user's cache folder; then nothing waits for a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perfdoctor as package
from perfdoctor.testing import TraceBuilder

pytest.importorskip("numba")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a user with an empty cache folder, and a copy of the package in which no machine code can be kept."""
    copy = tmp_path / "site" / "perfdoctor"
    shutil.copytree(Path(package.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # Root may write to any folder, but nobody into a file.
    (copy / "trace" / "scanner" / "__pycache__").write_bytes(b"")
    variables = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    return os.environ | variables | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path / "cache")}


def python(environment: dict[str, str], *arguments: object) -> str:
    """What a Python says that is started far from the package."""
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=environment["HOME"]
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return " ".join(ended.stdout.split())


def test_check_compiles_ahead_into_the_cache_folder_and_reading_does_not(
    environment: dict[str, str], tmp_path: Path
) -> None:
    assert not list(tmp_path.rglob("*.bin"))
    assert "the compiled reader is kept in" in python(environment, "-m", "perfdoctor", "check", "--warm")
    kept = list(tmp_path.rglob("*.bin"))
    assert kept

    builder = TraceBuilder()
    for i in range(30_000):
        builder.op(f"aten::op{i % 97}", i * 10, 5, shapes=[[i % 64, 3], [3, 5]])
    trace = builder.write(tmp_path / "t.json")
    program = """
import sys
from perfdoctor import read
from perfdoctor.trace.scanner import scanner_code as native
trace = read(sys.argv[1])
print(len(trace.ops), trace.warnings, native.is_loaded(), "numba" in sys.modules)
"""
    assert python(environment, "-c", program, trace) == "30000 () True False"
    assert list(tmp_path.rglob("*.bin")) == kept
