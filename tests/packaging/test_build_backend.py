"""The build backend: which compiler it takes, what it asks for, and that no failure of a compiler ends a build."""

from __future__ import annotations

import os
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tree_copy import ROOT, SCANNER, built_from, copy_tree, hash_sources, run_hook

from build_backend import compilers
from build_backend.compilers import ZIG, Compiler, CompilerError, find_system_compiler, is_served, run_compiler
from build_backend.core_library import load_core_sources
from build_backend.targets import TARGETS, find_zig_target
from build_backend.wheel_checks import check_record

pytestmark = pytest.mark.process

WITHOUT_LIBRARY = "warning: perfdoctor is built without its C library and will read with Python: "


@pytest.fixture(scope="session")
def system_compiler() -> Compiler:
    found = find_system_compiler()
    if found is None:
        pytest.skip("no C compiler works here")
    return found


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder as the only one on PATH."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda _: None)
    return empty


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# --- which compiler ---------------------------------------------------------------------------------------------------


def test_the_compiler_that_cc_names_comes_first(system_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{system_compiler.command[0]} -DCHOSEN='two words'")
    chosen = find_system_compiler()
    assert chosen is not None
    assert chosen.command == (system_compiler.command[0], "-DCHOSEN=two words")


@pytest.mark.skipif(os.name == "nt", reason="programs of sh")
@pytest.mark.parametrize(
    "does",
    [
        "exit 1",
        "exit 0",  # and writes nothing
        'while [ "$1" != -o ]; do shift; done; echo "no library" > "$2"',  # as for another processor
    ],
)
def test_a_compiler_whose_library_python_cannot_load_is_none(
    no_compiler: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(write_program(no_compiler / "cc", does)))
    assert find_system_compiler() is None


def test_a_failure_is_one_sentence_with_the_line_of_the_compiler(system_compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) {\n    return undeclared;\n}\n", encoding="utf-8")
    with pytest.raises(CompilerError, match=r"failed: .*broken\.c:2.*undeclared") as caught:
        run_compiler(system_compiler, [source], tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(CompilerError, match="could not be run"):
        run_compiler(Compiler((str(tmp_path / "absent"),), sys.platform, "any"), [source], tmp_path / "out")


# --- what a build asks for --------------------------------------------------------------------------------------------


def test_zig_is_asked_for_where_nothing_else_works_and_it_can_be_had(
    no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_zig_target() is None:
        pytest.skip("zig builds nothing for this platform")
    assert list(no_compiler.iterdir()) == []
    for served, asked in ((True, [ZIG]), (False, [])):
        monkeypatch.setattr(compilers, "is_served", lambda _, served=served: served)
        assert compilers.zig_requirements() == asked
    monkeypatch.setattr(compilers, "is_served", lambda _: True)
    monkeypatch.setenv("PERFDOCTOR_LIBRARY", "off")
    assert compilers.zig_requirements() == []
    monkeypatch.delenv("PERFDOCTOR_LIBRARY")
    monkeypatch.setattr(compilers, "find_zig_target", lambda: None)
    assert compilers.zig_requirements() == []


def test_zig_is_not_asked_for_beside_a_compiler(system_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", system_compiler.command[0])
    monkeypatch.setattr(compilers, "is_served", lambda _: True)
    assert compilers.zig_requirements() == []


def test_pip_says_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip", reason="pip is not installed")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert not is_served("some-package==1.2")
    (tmp_path / "some_package-1.2-py3-none-any.whl").touch()
    assert is_served("some-package==1.2")
    assert not is_served("some-package==1.3")
    # For another platform.
    (tmp_path / "some_package-1.3-py3-none-plan9_mips.whl").touch()
    assert not is_served("some-package==1.3")


@pytest.mark.parametrize(
    ("platform", "machine", "libc", "expected"),
    [
        ("linux", "x86_64", "glibc", ("glibc", "x86_64")),
        ("linux", "aarch64", "", ("musl", "aarch64")),
        ("darwin", "arm64", "", ("macos", "aarch64")),
        ("win32", "AMD64", "", ("windows", "x86_64")),
        ("linux", "riscv64", "glibc", None),
        ("freebsd14", "amd64", "", None),
    ],
)
def test_zig_builds_for_the_platform_of_this_python(
    platform: str, machine: str, libc: str, expected: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, "2.36" if libc else ""))
    assert find_zig_target() == (TARGETS[expected] if expected else None)


def test_the_version_of_zig_is_the_same_in_both_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert ZIG in project["optional-dependencies"]["wheels"]


# --- what is built ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_tree(tmp_path / "tree", whole=False)


def test_the_wheel_holds_the_library_of_these_sources_and_nothing_of_former_builds(
    tree: Path, tmp_path: Path, system_compiler: Compiler
) -> None:
    left = [tree / "build" / "lib" / "perfdoctor" / "left.py", tree / SCANNER / "perfdoctor.dll"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = run_hook(tree, "build_wheel", tmp_path, PERFDOCTOR_LIBRARY="required")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert done.stdout.splitlines()[-1] == wheel.name
    assert wheel.name.endswith(f"-py3-none-{system_compiler.wheel_tag}.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert check_record(archive) == []
        libraries = [name for name in archive.namelist() if name.endswith((".so", ".dll", ".dylib"))]
        assert libraries == [(SCANNER / load_core_sources().library_name()).as_posix()]
        assert [name for name in archive.namelist() if name.endswith(("left.py", ".c", ".h"))] == []
        assert built_from(Path(archive.extract(libraries[0], tmp_path))) == hash_sources(tree)
    assert not (tree / "build" / "bdist").exists()


def test_an_editable_installation_has_the_library_in_the_tree(
    tree: Path, tmp_path: Path, system_compiler: Compiler
) -> None:
    assert system_compiler
    done = run_hook(tree, "build_editable", tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tree / SCANNER).iterdir()}
    assert names - {path.name for path in (ROOT / SCANNER).iterdir()} <= {load_core_sources().library_name()}
    assert built_from(tree / SCANNER / load_core_sources().library_name()) == hash_sources(tree)


def test_without_the_library_the_wheel_is_of_any_platform(tree: Path, tmp_path: Path) -> None:
    done = run_hook(tree, "build_wheel", tmp_path, PERFDOCTOR_LIBRARY="off")
    assert done.returncode == 0, done.stderr
    assert "warning: perfdoctor" not in done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_sources_that_do_not_compile_cost_the_library_and_one_line(
    tree: Path, tmp_path: Path, system_compiler: Compiler
) -> None:
    assert system_compiler
    (tree / SCANNER / "core" / "broken.c").write_text("int broken(void) { return undeclared; }\n", encoding="utf-8")
    done = run_hook(tree, "build_wheel", tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(WITHOUT_LIBRARY)]
    assert "undeclared" in line
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    done = run_hook(tree, "build_editable", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith(WITHOUT_LIBRARY) for line in done.stderr.splitlines()) == 1
    assert run_hook(tree, "build_wheel", tmp_path, PERFDOCTOR_LIBRARY="required").returncode != 0


def test_warnings_are_errors_only_where_that_is_asked_for(
    tree: Path, tmp_path: Path, system_compiler: Compiler
) -> None:
    assert system_compiler
    (tree / SCANNER / "core" / "careless.c").write_text("static int unused;\n", encoding="utf-8")
    strict = run_hook(tree, "build_editable", tmp_path, PERFDOCTOR_LIBRARY="required")
    assert strict.returncode != 0
    assert "unused" in strict.stderr
    done = run_hook(tree, "build_editable", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tree / SCANNER / load_core_sources().library_name()).exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows finds programs without PATH")
def test_without_any_compiler_a_build_ends_well(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ziglang.py").write_text("raise SystemExit('error: this is no compiler')\n", encoding="utf-8")
    both = os.pathsep.join([str(tmp_path), str(tree)])
    done = run_hook(tree, "build_wheel", tmp_path, PATH=str(tmp_path / "empty"), PYTHONPATH=both)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith(WITHOUT_LIBRARY) for line in done.stderr.splitlines()) == 1
