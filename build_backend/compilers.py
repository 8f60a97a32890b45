"""The compiler that builds the C library here: the system's own where one works, else zig's, which a package brings.

A compiler works if it builds a small library that this Python loads: a `cc` without the C library's headers, or one for
another processor, is none.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from build_backend.targets import LIBRARY_FLAGS, OLDEST_MACOS, Target, find_zig_target, tag_local_platform

ZIG = "ziglang==0.17.1"
"""The package that brings a compiler, about 100 MB; asked for only where no other works."""

SYSTEM_COMPILERS = ("cc", "gcc", "clang")

TRIAL = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
__attribute__((visibility("default"))) uint64_t perfdoctor_trial(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    uint64_t length = copy ? strlen(strcpy(copy, text)) : 0;
    free(copy);
    return length;
}
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C, and what its libraries run on."""

    command: tuple[str, ...]
    sys_platform: str
    """As `sys.platform` names it: it decides the library's file name."""
    wheel_tag: str
    """The platform part of a wheel's tag, several joined by dots."""


class CompilerError(Exception):
    """The library was not built; the text says why, in one sentence."""


def run_compiler(compiler: Compiler, sources: list[Path], out: Path, extra: tuple[str, ...] = ()) -> None:
    """Build `out` from all `sources` in one command.

    Raises:
        CompilerError: with the compiler's first line of complaint.
    """
    flags = [flag for flag in LIBRARY_FLAGS if flag != "-fPIC" or compiler.sys_platform != "win32"]
    # macOS writes the library's path at its building into it, unless it is given a name.
    named = [f"-Wl,-install_name,@rpath/{out.name}"] if compiler.sys_platform == "darwin" else []
    command = [*compiler.command, *flags, *named, *extra, "-o", str(out), *map(str, sources)]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": OLDEST_MACOS}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, timeout=1800
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{shlex.join(compiler.command)} could not be run: {error}") from error
    if done.returncode != 0:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-300:])
        raise CompilerError(f"{shlex.join(compiler.command)} failed: {complaint or f'exit code {done.returncode}'}")


def compiles_here(compiler: Compiler) -> bool:
    """Whether the compiler builds a library that this Python loads and calls."""
    # Windows keeps a loaded library's file.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, library = Path(folder, "trial.c"), Path(folder, "trial.library")
        source.write_text(TRIAL, encoding="utf-8")
        try:
            run_compiler(compiler, [source], library)
            return int(ctypes.CDLL(str(library)).perfdoctor_trial(b"seven..")) == 7
        except (CompilerError, OSError, AttributeError):
            return False


def find_system_compiler() -> Compiler | None:
    """The first of `$CC`, cc, gcc and clang that works here."""
    chosen = shlex.split(os.environ.get("CC", ""), posix=os.name != "nt")
    commands = [*([tuple(chosen)] if chosen else []), *((name,) for name in SYSTEM_COMPILERS)]
    compilers = (Compiler(command, sys.platform, tag_local_platform()) for command in commands)
    return next(filter(compiles_here, compilers), None)


def zig_compiler(target: Target) -> Compiler:
    """Zig's compiler for a target; the package `ziglang` is installed beside this Python."""
    # Without -s, zig's own runtime adds 850 kB of debug information to a library of 20 kB.
    command = (sys.executable, "-m", "ziglang", "cc", "-target", target.zig, "-s")
    return Compiler(command, target.sys_platform, target.wheel_tag)


def find_compiler() -> Compiler | None:
    """The compiler for the library here, or None: the system's own before zig's."""
    if system := find_system_compiler():
        return system
    target = find_zig_target()
    return zig_compiler(target) if target and importlib.util.find_spec("ziglang") else None


def zig_requirements() -> list[str]:
    """The requirement for zig's package if the build needs it and pip can have it; else nothing."""
    if os.environ.get("PERFDOCTOR_LIBRARY") == "off" or find_zig_target() is None or find_compiler():
        return []
    return [ZIG] if is_served(ZIG) else []


def is_served(requirement: str) -> bool:
    """Whether pip finds the package for this machine; True where there is no pip to ask.

    A requirement that cannot be had ends the installation, and this one is not worth that. Indexes that were named on
    pip's command line are unknown here.
    """
    name, _, version = requirement.partition("==")
    # The build's own environment has no pip, the Python that runs it has.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--retries=1", "--timeout=10", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False, env=environment).returncode != 0:
        return True
    asked = [*pip, "index", "versions", name]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    return done.returncode == 0 and version in done.stdout.replace(",", " ").split()
