"""The programs of the clinic, and what is true of each (clinic.toml)."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
KINDS = (
    *("loader", "sync", "launch", "memory", "peak", "precision", "transfer"),
    *("configuration", "distribution", "lengths", "healthy"),
)
PEAK = "peak"
_MARK = re.compile(r"#\s*planted\b")


@dataclass(frozen=True)
class Case:
    """One program of the clinic; clinic.toml says what each field means."""

    name: str
    kind: str
    style: str
    fault: str
    rules: tuple[str, ...] = ()
    no_rule: str = ""
    fix: str = ""
    follows: str = ""
    change: str = ""
    setting: str = ""
    fails: bool = False
    on_cpu: bool = True
    ranks: int = 0
    libraries: tuple[str, ...] = ()
    short: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it, so that a finding of medium or more is a false alarm."""
        return self.kind == "healthy"

    @property
    def of_peak(self) -> bool:
        """Whether what its fix gives is bytes of the peak."""
        return self.kind == PEAK

    @property
    def path(self) -> Path:
        """The script."""
        return PROGRAMS / f"{self.name}.py"

    @property
    def planted_lines(self) -> frozenset[int]:
        """Numbers of the lines that are marked `# planted`."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return frozenset(number for number, line in enumerate(lines, 1) if _MARK.search(line))

    @property
    def missing_libraries(self) -> tuple[str, ...]:
        """Libraries that it imports and that are not installed here."""
        return tuple(library for library in self.libraries if importlib.util.find_spec(library) is None)

    def why_not_on(self, device: str) -> str:
        """Why the program cannot show its fault on this device; empty where it can."""
        if self.missing_libraries:
            return f"{', '.join(self.missing_libraries)} is missing"
        return "" if self.on_cpu or device != "cpu" else "needs a GPU"


@cache
def read_cases() -> tuple[Case, ...]:
    """All programs, in the order of clinic.toml.

    Raises:
        ValueError: a table has a key that no program has, or lacks one that each has.
    """
    with (FOLDER / "clinic.toml").open("rb") as file:
        return tuple(_read_case(name, table) for name, table in tomllib.load(file).items())


def _read_case(name: str, table: dict[str, Any]) -> Case:
    unknown = set(table) - {field.name for field in fields(Case)}
    if unknown:
        raise ValueError(f"clinic.toml: {name} has the key {min(unknown)}, which no program has")
    try:
        return Case(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    except TypeError as error:
        raise ValueError(f"clinic.toml: {name}: {error}") from error


def choose_cases(names: Collection[str] = (), kinds: Collection[str] = (), *, short: bool = False) -> tuple[Case, ...]:
    """The programs of these names and kinds, all of them where none is given; of the short form only if `short`.

    Raises:
        ValueError: no program has that name.
    """
    cases = read_cases()
    unknown = sorted(set(names) - {case.name for case in cases})
    if unknown:
        raise ValueError(f"no program is called {unknown[0]}; there are: {', '.join(case.name for case in cases)}")
    return tuple(
        case
        for case in cases
        if (not names or case.name in names) and (not kinds or case.kind in kinds) and (case.short or not short)
    )
