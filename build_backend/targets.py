"""The platforms that the library is built for: zig's name of each, and the tag of its wheel."""

from __future__ import annotations

import platform
import struct
import sys
import sysconfig
from dataclasses import dataclass

LIBRARY_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
"""No -march: the library chooses its vector instructions when it runs."""

OLDEST_MACOS = "11.0"


@dataclass(frozen=True, slots=True)
class Target:
    """A platform, as zig, Python and wheels name it."""

    zig: str
    """Zig's target; glibc's oldest version belongs to it."""
    sys_platform: str
    """As `sys.platform` names it: it decides the library's file name."""
    wheel_tag: str
    """The platform part of a wheel's tag, several joined by dots."""


def describe_targets() -> dict[tuple[str, str], Target]:
    """Every target by its system ("glibc", "musl", "macos", "windows") and processor ("x86_64", "aarch64")."""
    targets = {}
    for cpu, macos, windows in (("x86_64", "x86_64", "amd64"), ("aarch64", "arm64", "arm64")):
        manylinux = f"manylinux_2_17_{cpu}.manylinux2014_{cpu}"
        targets["glibc", cpu] = Target(f"{cpu}-linux-gnu.2.17", "linux", manylinux)
        # Alpine has had musl 1.2 for longer than Python 3.11.
        targets["musl", cpu] = Target(f"{cpu}-linux-musl", "linux", f"musllinux_1_2_{cpu}")
        targets["macos", cpu] = Target(f"{cpu}-macos.{OLDEST_MACOS}", "darwin", f"macosx_11_0_{macos}")
        targets["windows", cpu] = Target(f"{cpu}-windows-gnu", "win32", f"win_{windows}")
    return targets


TARGETS = describe_targets()


def find_zig_target() -> Target | None:
    """The target that this Python runs on; None where it is none of them."""
    systems = {"linux": "glibc" if platform.libc_ver()[0] == "glibc" else "musl", "darwin": "macos", "win32": "windows"}
    cpus = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = platform.machine().lower()
    if struct.calcsize("P") != 8:
        return None
    return TARGETS.get((systems.get(sys.platform, ""), cpus.get(machine, machine)))


def tag_local_platform() -> str:
    """The platform tag of a wheel whose library the system's compiler built: it is for machines like this one."""
    if sys.platform == "darwin":
        # The library is for one processor, also where Python is for both.
        return f"macosx_{OLDEST_MACOS.replace('.', '_')}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
