"""The build backend of pyproject.toml (PEP 517 and 660): setuptools' hooks, and the C library beside the package.

The library is an addition. Where it cannot be built, one line says so, the wheel holds none and is of any platform,
and perfdoctor reads with Python. `PERFDOCTOR_LIBRARY` changes that: `off` builds none, `required` makes every warning
of the compiler and every failure an error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from setuptools import build_meta
from setuptools.build_meta import build_sdist as build_sdist
from setuptools.build_meta import get_requires_for_build_sdist as get_requires_for_build_sdist
from setuptools.build_meta import prepare_metadata_for_build_editable as prepare_metadata_for_build_editable
from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel

from build_backend.compilers import zig_requirements
from build_backend.core_library import LIBRARY_FOLDER, build_in_tree, try_compile
from build_backend.wheel_files import add_library

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What a wheel's build needs: a compiler as a package where the machine has none that works."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *zig_requirements()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What an editable installation needs: the same as a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *zig_requirements()]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """The name of the wheel in `wheel_directory`: with the library for this machine, or of any platform without."""
    with tempfile.TemporaryDirectory() as folder:
        plain = build_plain_wheel(Path(folder), config_settings, metadata_directory)
        built = try_compile(Path(folder))
        if built is None:
            shutil.move(plain, wheel_directory)
            return plain.name
        library, compiler = built
        return add_library(plain, library, LIBRARY_FOLDER, compiler.wheel_tag, Path(wheel_directory)).name


def build_plain_wheel(folder: Path, config_settings: Settings = None, metadata_directory: str | None = None) -> Path:
    """The wheel without the library, in `folder`."""
    with empty_build_folder():
        name: str = build_meta.build_wheel(str(folder), config_settings, metadata_directory)
    return folder / name


@contextlib.contextmanager
def empty_build_folder() -> Iterator[None]:
    """Let setuptools build outside the tree: its folder `build` would keep what the package no longer has."""
    with tempfile.TemporaryDirectory() as folder:
        extra = Path(folder, "extra.cfg")
        extra.write_text(f"[build]\nbuild_base = {folder}\n", encoding="utf-8")
        with mock.patch.dict(os.environ, DIST_EXTRA_CONFIG=str(extra)):
            yield


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The name of the wheel that leads Python to this tree, where the library now lies."""
    build_in_tree()
    with empty_build_folder():
        name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    return name
