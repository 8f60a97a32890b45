"""What is true of each program: the cause, the lines to change, and the edits that follow an advice (programs.toml)."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "scripts"


@dataclass(frozen=True)
class Edit:
    """A change of a script, as a user would make it who follows an advice.

    Attributes:
        name: What is changed.
        follows: A pattern of "RULE fix advice": the advice that this edit follows.
        right: Whether a performance engineer would make it. An edit that is not right is there because a report may
            ask for it, so that what it costs is measured.
        replace: Pairs of texts, each of which stands in the script once.
    """

    name: str
    follows: str
    right: bool
    replace: tuple[tuple[str, str], ...]

    def fill_in(self, *groups: str) -> Edit:
        """The change with what the advice says in the place of $1."""
        if not groups:
            return self
        replace_pairs = tuple((old, new.replace("$1", groups[0])) for old, new in self.replace)
        return dataclasses.replace(self, name=self.name.replace("$1", groups[0]), replace=replace_pairs)

    def apply(self, source: str) -> str:
        """The script after the change.

        Raises:
            ValueError: A text does not stand there exactly once.
        """
        for old, new in self.replace:
            if source.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} stands there {source.count(old)} times")
            source = source.replace(old, new)
        return source


@dataclass(frozen=True)
class Program:
    """A program, and what is true of it.

    Attributes:
        name: The script's name without .py.
        field: What kind of program it is.
        truth: What a performance engineer says of it, in a sentence.
        healthy: Whether no change of a line or two makes it faster by more than the noise: no finding is right.
        rules: Rules whose finding names the cause.
        lines: Texts of the lines to change; each stands in the script once.
        places: The same where a file has another name than the script: cells of a notebook.
        libraries: What it imports besides torch.
        ranks: Ranks that torchrun starts; 0 for a plain script.
        busy: Whether a loop beside it takes one core while it is recorded and timed.
        saves: What the right change takes off a step, as a share of it: low and high, measured before a report was
            read; empty where it was not.
        edits: Changes that follow advice.
    """

    name: str
    field: str
    truth: str
    healthy: bool
    rules: tuple[str, ...]
    lines: tuple[str, ...]
    places: tuple[str, ...]
    libraries: tuple[str, ...]
    ranks: int
    edits: tuple[Edit, ...]
    busy: bool = False
    saves: tuple[float, ...] = ()

    @property
    def path(self) -> Path:
        """The script."""
        return SCRIPTS / f"{self.name}.py"

    @property
    def missing_libraries(self) -> list[str]:
        """Libraries that are not installed here."""
        return [library for library in self.libraries if importlib.util.find_spec(library) is None]

    @property
    def right_edit(self) -> Edit | None:
        """The change that a performance engineer would make first; None for a healthy program."""
        edit = next((edit for edit in self.edits if edit.right), None)
        return edit and edit.fill_in("2")

    def line_numbers(self, source: str) -> set[int]:
        """Numbers of the lines to change."""
        found = set()
        for text in self.lines:
            if source.count(text) != 1:
                raise ValueError(f"{self.name}: {text!r} stands there {source.count(text)} times")
            found.add(source[: source.index(text)].count("\n") + 1)
        return found

    def edit_for(self, rule: str, fix: str, advice: str) -> Edit | None:
        """The change that follows an advice; None where nobody prepared one."""
        said = " ".join(f"{rule} {fix} {advice}".split())
        for edit in self.edits:
            found = re.search(edit.follows, said)
            if found:
                return edit.fill_in(*found.groups())
        return None


@cache
def read_programs() -> tuple[Program, ...]:
    """All programs, in the order of programs.toml."""
    with (FOLDER / "programs.toml").open("rb") as file:
        return tuple(_read_program(name, entry) for name, entry in tomllib.load(file).items())


def _read_program(name: str, entry: dict[str, Any]) -> Program:
    return Program(
        name=name,
        field=entry["field"],
        truth=entry["truth"],
        healthy=entry.get("healthy", False),
        rules=tuple(entry.get("rules", ())),
        lines=tuple(entry.get("lines", ())),
        places=tuple(entry.get("places", ())),
        libraries=tuple(entry.get("libraries", ())),
        ranks=entry.get("ranks", 0),
        edits=tuple(
            Edit(each["name"], each["follows"], each.get("right", False), tuple(map(tuple, each["replace"])))
            for each in entry.get("edits", ())
        ),
        busy=entry.get("busy", False),
        saves=tuple(entry.get("saves", ())),
    )
