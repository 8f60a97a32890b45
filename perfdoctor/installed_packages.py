"""What is installed, read from the folders of sys.path: the version of perfdoctor, and entry points by their group.

importlib.metadata reads the same, but imports 35 modules for it (email and socket among them): 23 ms of the 490 of a
small analysis, of which this takes 3. Packages in archives, or known to other finders alone, are left to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

_DIST_INFO, _EGG_INFO = ".dist-info", ".egg-info"


class EntryPoint(NamedTuple):
    """The name of an object in a module, such as "PD101", and where it is: "module:attribute", extras behind it."""

    name: str
    value: str

    @property
    def attr(self) -> str:
        """The attribute of the module."""
        return self.value.partition("[")[0].partition(":")[2].strip()

    def load(self) -> Any:
        """The object; raises whatever importing its module raises."""
        found: Any = import_module(self.value.partition(":")[0])
        for name in filter(None, self.attr.split(".")):
            found = getattr(found, name)
        return found


@cache
def find_version() -> str:
    """The version of perfdoctor that is installed.

    Raises:
        importlib.metadata.PackageNotFoundError: None is.
    """
    for folder in _find_folders():
        name, _, version = os.path.basename(folder).removesuffix(_DIST_INFO).partition("-")
        if name == "perfdoctor" and version and folder.endswith(_DIST_INFO):
            return version
    from importlib import metadata

    return metadata.version("perfdoctor")


def find_entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group; of two packages of one name those of the first on sys.path."""
    if _others_know_packages():
        from importlib import metadata

        return [EntryPoint(each.name, each.value) for each in metadata.entry_points(group=group)]
    return [each for folder in _find_folders() for each in _read_entry_points(folder, group)]


def _others_know_packages() -> bool:
    """Whether packages may be installed that are no folders of sys.path: in archives, or found by another finder."""
    finders = [each for each in sys.meta_path if hasattr(each, "find_distributions")]
    return len(finders) > 1 or any(os.path.isfile(each) for each in sys.path)


def _find_folders() -> list[str]:
    """The metadata folders of all packages, of each name the first."""
    folders: dict[str, str] = {}
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            # As in widgets-1.0.dist-info, and in widgets.egg-info of a source tree.
            package = name.removesuffix(_DIST_INFO).removesuffix(_EGG_INFO)
            if package != name:
                package = package.partition("-")[0].lower().replace(".", "_")
                folders.setdefault(package, os.path.join(place, name))
    return list(folders.values())


def _read_entry_points(folder: str, group: str) -> Iterator[EntryPoint]:
    try:
        with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip())
