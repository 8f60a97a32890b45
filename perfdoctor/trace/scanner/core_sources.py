"""The C library's sources and its file name, for the build and for who loads it: standard library alone, no package.

The build compiles the hash of the sources into the library. In a checkout whose sources have changed since, the two
differ, and the library is not used: it may expect other structures than Python gives it.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

SOURCES_FOLDER = Path(__file__).with_name("core")
"""Where the sources are; wheels have none."""


def library_name(platform: str = sys.platform) -> str:
    """The file name of the library, which lies beside this file, on a platform by its name in `sys.platform`."""
    return {"win32": "perfdoctor.dll", "darwin": "libperfdoctor.dylib"}.get(platform, "libperfdoctor.so")


def source_files(folder: Path = SOURCES_FOLDER) -> list[Path]:
    """The files that the library is made of, C and headers, by name; none where there are no sources."""
    return sorted([*folder.glob("*.c"), *folder.glob("*.h")])


def hash_sources(folder: Path = SOURCES_FOLDER) -> str:
    """A hash of the sources, 16 hexadecimal digits; empty where there are none."""
    files = source_files(folder)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16] if files else ""
