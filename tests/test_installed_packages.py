"""What is installed: the same as importlib.metadata says, without importing it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from perfdoctor.installed_packages import EntryPoint, find_entry_points, find_version

POINTS = """
[console_scripts]
widget = widgets.cli:main

[perfdoctor.analyzers]
# of the first release
XX101 = widgets.xx101:Widgets
XX102=widgets.rules:Table.rows [fast]

[perfdoctor.changes]
XX103 = widgets.changes:Change
"""


def install(place: Path, package: str, points: str) -> None:
    folder = place / f"{package}.dist-info"
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(points, encoding="utf-8")
    (folder / "METADATA").write_text(f"Name: {package.partition('-')[0]}\nVersion: 1\n", encoding="utf-8")


@pytest.mark.parametrize("group", ["perfdoctor.analyzers", "perfdoctor.changes", "console_scripts", "pytest11", "none"])
def test_entry_points_are_those_of_importlib_metadata(group: str) -> None:
    expected = sorted((each.name, each.value) for each in metadata.entry_points(group=group))
    assert sorted(find_entry_points(group)) == expected
    assert bool(expected) is (group != "none")


def test_the_version_is_that_of_importlib_metadata() -> None:
    assert find_version() == metadata.version("perfdoctor")


def test_entry_points_of_one_group_are_read_and_the_first_of_two_packages_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "first", "my_widgets-1.0", POINTS)
    install(tmp_path / "second", "My.Widgets-2.0", POINTS.replace("XX10", "XX20"))
    install(tmp_path / "second", "other-2.0", "[perfdoctor.analyzers]\nXX301 = other:Rule\n")
    (tmp_path / "second" / "empty-1.0.dist-info").mkdir()
    source = tmp_path / "second" / "my_widgets.egg-info"  # a source tree of it in the working directory
    source.mkdir()
    (source / "entry_points.txt").write_text(POINTS.replace("XX10", "XX40"), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path / each) for each in ("first", "gone", "second")])
    expected = {
        EntryPoint("XX101", "widgets.xx101:Widgets"),
        EntryPoint("XX102", "widgets.rules:Table.rows [fast]"),
        EntryPoint("XX301", "other:Rule"),
    }
    assert set(find_entry_points("perfdoctor.analyzers")) == expected


def test_packages_in_an_archive_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "widgets.zip", "w") as archive:
        archive.writestr("widgets-1.0.dist-info/entry_points.txt", POINTS)
        archive.writestr("widgets-1.0.dist-info/METADATA", "Name: widgets\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "widgets.zip"))
    assert EntryPoint("XX101", "widgets.xx101:Widgets") in find_entry_points("perfdoctor.analyzers")


def test_an_entry_point_loads_what_it_names() -> None:
    assert EntryPoint("join", "os.path:join [fast]").load() is os.path.join
    assert EntryPoint("day", "datetime:datetime.now").load().__name__ == "now"
    assert EntryPoint("os", "os").load() is os
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        EntryPoint("gone", "no_such_module:Rule").load()
    with pytest.raises(AttributeError, match="no_such_name"):
        EntryPoint("gone", "os:no_such_name").load()


@pytest.mark.process
def test_loading_all_rules_imports_no_importlib_metadata() -> None:
    code = "import sys; from perfdoctor.rules.registry import load_analyzers; load_analyzers(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"importlib.metadata", "email", "socket"} & set(done.stdout.split())
