"""Installations as users make them, with pip and its isolation: without a compiler, and without a network as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tree_copy import SCANNER, built_from, copy_tree, hash_sources

from build_backend.compilers import ZIG, is_served
from build_backend.core_library import load_core_sources
from build_backend.targets import find_zig_target

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="Windows finds programs without PATH"), pytest.mark.process]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Python of a fresh environment."""
    made = subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no environment with pip can be made here")
    return tmp_path / "bare" / "bin" / "python"


def install(python: Path, tree: Path, **environment: str) -> str:
    """The output of an editable installation of the tree alone, with no program on PATH."""
    (tree.parent / "empty").mkdir()
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("CC", "PYTHONPATH", "PERFDOCTOR_LIBRARY")
    }
    command = [str(python), "-m", "pip", "install", "--verbose", "--no-deps", "--editable", str(tree)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=inherited | {"PATH": str(tree.parent / "empty")} | environment,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.skipif(not os.environ.get("PERFDOCTOR_TEST_DOWNLOADS"), reason="zig is 100 MB; nox downloads it")
def test_a_machine_without_a_compiler_builds_with_zig(bare: Path, tmp_path: Path) -> None:
    if find_zig_target() is None or not is_served(ZIG):
        pytest.skip(f"{ZIG} is not served here")
    tree = copy_tree(tmp_path / "tree", whole=False)
    printed = install(bare, tree)
    assert "without its C library" not in printed
    library = tree / SCANNER / load_core_sources().library_name()
    assert built_from(library) == hash_sources(tree)


def test_without_a_compiler_and_zig_the_installation_says_so_and_succeeds(bare: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    command = [str(bare), "-m", "pip", "download", "--no-deps", "--dest", str(served), "setuptools>=77"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("setuptools is not served here")
    tree = copy_tree(tmp_path / "tree", whole=False)
    printed = install(bare, tree, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(served), PIP_CONFIG_FILE=os.devnull)
    (line,) = [line for line in printed.splitlines() if "without its C library" in line]
    assert "no C compiler works here" in line
    assert not (tree / SCANNER / load_core_sources().library_name()).exists()
