"""Whether a built wheel is what its name says: its tags, its record, and the one library in it.

The library's headers are read, so a wheel of any platform is checked on any machine. That the library *works* only its
own platform shows: docs/building.md says where it was run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import lief
from packaging.utils import parse_wheel_filename

from build_backend.core_library import LIBRARY_FOLDER, load_core_sources
from build_backend.targets import TARGETS, Target

LIBRARY_ENDINGS = (".so", ".dylib", ".dll", ".pyd")
EXPORTED = "perfdoctor_sources"
"""What every library exports, and where Python begins."""

OLDEST_GLIBC = (2, 17)
C_LIBRARIES = {"glibc": {"libc.so.6"}, "musl": {"libc.so"}}
"""What a library may need on Linux: the C library alone, by the name that zig gives it."""

PROCESSORS = {"x86_64": lief.Header.ARCHITECTURES.X86_64, "aarch64": lief.Header.ARCHITECTURES.ARM64}
FORMATS = {
    "glibc": lief.Binary.FORMATS.ELF,
    "musl": lief.Binary.FORMATS.ELF,
    "macos": lief.Binary.FORMATS.MACHO,
    "windows": lief.Binary.FORMATS.PE,
}


def check_wheel(wheel: Path) -> list[str]:
    """What is wrong with a wheel of `py3-none-any` or of a target, a sentence each; empty if all is right."""
    tags = {str(tag) for tag in parse_wheel_filename(wheel.name)[3]}
    with zipfile.ZipFile(wheel) as archive:
        problems = check_record(archive)
        about = archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/WHEEL"))).decode()
        written = {line.removeprefix("Tag: ") for line in about.splitlines() if line.startswith("Tag: ")}
        if written != tags:
            problems.append(f"the name has the tags {sorted(tags)}, the file WHEEL {sorted(written)}")
        if ("Root-Is-Purelib: true" in about) != (tags == {"py3-none-any"}):
            problems.append("Root-Is-Purelib contradicts the tags")
        libraries = [name for name in archive.namelist() if name.endswith(LIBRARY_ENDINGS)]
        if tags == {"py3-none-any"}:
            return problems + [f"a wheel for any platform holds {name}" for name in libraries]
        found = [key for key, each in TARGETS.items() if tags == {f"py3-none-{t}" for t in each.wheel_tag.split(".")}]
        if not found:
            return [*problems, f"no target has the tags {sorted(tags)}"]
        (key,) = found
        expected = f"{LIBRARY_FOLDER}/{load_core_sources().library_name(TARGETS[key].sys_platform)}"
        if libraries != [expected]:
            return [*problems, f"the libraries are {libraries}, not {expected} alone"]
        return problems + check_library(archive.read(expected), *key)


def check_record(archive: zipfile.ZipFile) -> list[str]:
    """Files that a wheel's RECORD has another hash or size of, or does not name, or names in vain."""
    record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode())) if row}
    names = [name for name in archive.namelist() if not name.endswith("/")]
    problems = [f"{name} is in the wheel {names.count(name)} times" for name in set(names) if names.count(name) > 1]
    problems += [f"{name} is in the wheel or in its RECORD, and not in both" for name in rows.keys() ^ set(names)]
    for name in set(names) & rows.keys() - {record}:
        data = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if rows[name] != [f"sha256={digest}", str(len(data))]:
            problems.append(f"{name} differs from its line in RECORD")
    return problems


def check_library(data: bytes, system: str, cpu: str) -> list[str]:
    """What is wrong with a library for a target, a sentence each; empty if all is right.

    Args:
        data: The file's bytes.
        system: "glibc", "musl", "macos" or "windows".
        cpu: "x86_64" or "aarch64".
    """
    lief.logging.disable()
    binary: Any = lief.parse(list(data))
    if binary is None or binary.format != FORMATS[system]:
        return [f"the library is no file of {system}"]
    problems = []
    if binary.abstract.header.architecture != PROCESSORS[cpu]:
        problems.append(f"the library is for {binary.abstract.header.architecture.name}, not {cpu}")
    if EXPORTED not in exported_names(binary, system):
        problems.append(f"the library does not export {EXPORTED}")
    if system in C_LIBRARIES:
        problems += check_elf(binary, system)
    elif system == "macos":
        problems += check_macho(binary, TARGETS[system, cpu])
    return problems


def exported_names(binary: Any, system: str) -> set[str]:
    """The functions that a library exports, as C names them."""
    if system == "windows":
        return {entry.name for entry in binary.get_export().entries} if binary.has_exports else set()
    names = {symbol.name for symbol in binary.exported_symbols}
    return {name.removeprefix("_") for name in names} if system == "macos" else names


def check_elf(binary: Any, system: str) -> list[str]:
    """Needs of a Linux library beyond the C library, and versions of glibc newer than its wheel's tag."""
    problems = [f"the library needs {name}" for name in binary.libraries if name not in C_LIBRARIES[system]]
    versions = [v.name for need in binary.symbols_version_requirement for v in need.get_auxiliary_symbols()]
    for version in versions:
        number = version.removeprefix("GLIBC_")
        if number == version or tuple(map(int, number.split("."))) > OLDEST_GLIBC:
            problems.append(f"the library needs symbols of {version}")
    return problems


def check_macho(binary: Any, target: Target) -> list[str]:
    """A macOS library that needs more than the system's own, or a newer system, or lacks the signature of arm64."""
    # The first name is the library's own.
    problems = [f"the library needs {lib.name}" for lib in binary.libraries if not is_own_or_system(lib.name)]
    oldest = tuple(map(int, target.zig.rpartition("-macos.")[2].split(".")))
    if tuple(binary.build_version.minos[:2]) > oldest:
        problems.append(f"the library needs macOS {binary.build_version.minos}")
    if target.zig.startswith("aarch64") and not binary.has_code_signature:
        problems.append("the library has no signature, without which macOS loads nothing on arm64")
    return problems


def is_own_or_system(name: str) -> bool:
    """Whether a name in a Mach-O file is the library's own or a library of macOS."""
    return name.startswith(("@rpath/libperfdoctor.", "/usr/lib/libSystem."))
