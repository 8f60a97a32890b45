"""The checks of built wheels see what is wrong; and, where zig's compiler is, wheels of other platforms pass them."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tree_copy import SCANNER, built_from, copy_tree, hash_sources, run_hook

pytest.importorskip("lief", reason="lief, which reads the headers of libraries, is not installed")

from build_backend.compilers import Compiler, find_system_compiler, run_compiler
from build_backend.core_library import LIBRARY_FOLDER
from build_backend.targets import TARGETS
from build_backend.wheel_checks import check_library, check_record, check_wheel
from build_backend.wheel_files import add_library

pytestmark = pytest.mark.process

EXPORTS = '__attribute__((visibility("default"))) const char *perfdoctor_sources(void) '


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without the library."""
    out = tmp_path_factory.mktemp("plain")
    done = run_hook(copy_tree(tmp_path_factory.mktemp("tree")), "build_wheel", out, PERFDOCTOR_LIBRARY="off")
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for glibc on x86-64."""
    return compile_library(tmp_path_factory.mktemp("library"), '{ return "0123456789abcdef"; }')


def compile_library(folder: Path, body: str, *flags: str, before: str = "") -> Path:
    """A library made by the system's compiler on Linux with glibc and x86-64."""
    compiler = find_system_compiler()
    if compiler is None or (sys.platform, platform.machine(), platform.libc_ver()[0]) != ("linux", "x86_64", "glibc"):
        pytest.skip("no C compiler for Linux with glibc on x86-64")
    source, out = folder / "source.c", folder / "libperfdoctor.so"
    source.write_text(f"{before}\n{EXPORTS}{body}\n", encoding="utf-8")
    run_compiler(Compiler(compiler.command, "linux", ""), [source], out, flags)
    return out


def test_a_wheel_with_the_right_library_passes(plain: Path, library: Path, tmp_path: Path) -> None:
    assert check_wheel(plain) == []
    made = add_library(plain, library, LIBRARY_FOLDER, TARGETS["glibc", "x86_64"].wheel_tag, tmp_path)
    assert made.name.endswith("-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert check_wheel(made) == []
    first = made.read_bytes()
    assert add_library(plain, library, LIBRARY_FOLDER, TARGETS["glibc", "x86_64"].wheel_tag, tmp_path) == made
    assert made.read_bytes() == first


def test_the_record_must_be_that_of_the_files(plain: Path, tmp_path: Path) -> None:
    changed = tmp_path / plain.name
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename != "perfdoctor/api.py":
                new.writestr(entry, data + b"#" if entry.filename == "perfdoctor/errors.py" else data)
        new.writestr("perfdoctor/extra.py", "")
    with zipfile.ZipFile(changed) as archive:
        assert sorted(check_record(archive)) == [
            "perfdoctor/api.py is in the wheel or in its RECORD, and not in both",
            "perfdoctor/errors.py differs from its line in RECORD",
            "perfdoctor/extra.py is in the wheel or in its RECORD, and not in both",
        ]


@pytest.mark.parametrize(
    ("tag", "name", "problem"),
    [
        ("manylinux_2_17_aarch64.manylinux2014_aarch64", "libperfdoctor.so", "is for X86_64, not aarch64"),
        ("macosx_11_0_x86_64", "libperfdoctor.dylib", "is no file of macos"),
        ("win_amd64", "perfdoctor.dll", "is no file of windows"),
        ("win_amd64", "libperfdoctor.so", "the libraries are"),
        ("linux_x86_64", "libperfdoctor.so", "no target has the tags"),
    ],
)
def test_a_library_in_the_wrong_wheel_is_seen(
    plain: Path, library: Path, tmp_path: Path, tag: str, name: str, problem: str
) -> None:
    named = tmp_path / name
    named.write_bytes(library.read_bytes())
    (sentence,) = check_wheel(add_library(plain, named, LIBRARY_FOLDER, tag, tmp_path))
    assert problem in sentence


def test_a_wheel_without_the_library_cannot_be_of_a_platform(plain: Path, library: Path, tmp_path: Path) -> None:
    renamed = tmp_path / plain.name.replace("-any.", "-win_amd64.")
    renamed.write_bytes(plain.read_bytes())
    problems = check_wheel(renamed)
    assert any("the file WHEEL" in problem for problem in problems)
    assert any("the libraries are []" in problem for problem in problems)
    added = add_library(plain, library, LIBRARY_FOLDER, "any", tmp_path)
    assert any("for any platform holds" in problem for problem in check_wheel(added))


def test_a_library_that_needs_more_than_an_old_glibc_is_seen(tmp_path: Path) -> None:
    # log is a function of version 2.29 of the mathematical library.
    before = "#include <math.h>\nvolatile double number;"
    newer = compile_library(
        tmp_path, '{ number = log(number); return ""; }', "-Wl,--no-as-needed", "-lm", before=before
    )
    problems = check_library(newer.read_bytes(), "glibc", "x86_64")
    assert problems == ["the library needs libm.so.6", "the library needs symbols of GLIBC_2.29"]


def test_a_library_that_does_not_export_its_functions_is_seen(tmp_path: Path) -> None:
    hidden = compile_library(tmp_path, '{ return ""; }', "-Dperfdoctor_sources=another")
    assert check_library(hidden.read_bytes(), "glibc", "x86_64") == ["the library does not export perfdoctor_sources"]


def test_what_is_no_library_is_seen() -> None:
    assert check_library(b"", "glibc", "x86_64") == ["the library is no file of glibc"]
    assert check_library(b"MZ" + bytes(100), "windows", "x86_64") == ["the library is no file of windows"]


def test_zig_builds_wheels_that_pass_and_work(tmp_path: Path) -> None:
    for needed in ("ziglang", "twine"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[wheels]'")
    tree, out = copy_tree(tmp_path / "tree"), tmp_path / "out"
    # Not Windows: the first time, zig builds its C library, which takes minutes.
    chosen = [word for name in ("glibc-x86_64", "musl-aarch64", "macos-aarch64") for word in ("--only", name)]
    command = [sys.executable, "-m", "build_backend.wheels", "--out", str(out), *chosen]
    environment = os.environ | {"PERFDOCTOR_LIBRARY": "required", "PYTHONPATH": str(tree)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tree, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wheels = {path.name.split("-none-")[1]: path for path in out.glob("*.whl")}
    assert set(wheels) == {
        "any.whl",
        "manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "musllinux_1_2_aarch64.whl",
        "macosx_11_0_arm64.whl",
    }
    assert len(list(out.glob("*.tar.gz"))) == 1
    if (sys.platform, platform.machine(), platform.libc_ver()[0]) == ("linux", "x86_64", "glibc"):
        with zipfile.ZipFile(wheels["manylinux_2_17_x86_64.manylinux2014_x86_64.whl"]) as archive:
            name = (SCANNER / "libperfdoctor.so").as_posix()
            assert built_from(Path(archive.extract(name, tmp_path))) == hash_sources(tree)
