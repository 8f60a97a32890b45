"""Asks PyPI whether there are releases newer than those that perfdoctor was last tried with (looked_at.toml).

    python docs/check_news.py            # a table in Markdown; exit code 0 nothing, 1 something is new, 2 no answer

Releases that are meant for trying (1.0rc1) and those that were withdrawn are no news. Needs `packaging`, and a network.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

TABLE = Path(__file__).with_name("looked_at.toml")
URL = "https://pypi.org/pypi/{name}/json"
TIMEOUT_S = 30
NOTHING, NEWS, NO_ANSWER = 0, 1, 2

Fetch = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the table: its name on PyPI, the version last looked at, and what a newer one may change."""

    name: str
    version: Version
    changes: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What PyPI says of a package: its newest release, or why that is not known."""

    package: Package
    newest: Version | None = None
    error: str = ""

    @property
    def is_news(self) -> bool:
        """Whether there is a newer release than the one last looked at."""
        return self.newest is not None and self.newest > self.package.version


def load_table(path: Path = TABLE) -> list[Package]:
    """The packages of the table, in its order."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Package(name, Version(row["version"]), row["changes"]) for name, row in table.items()]


def fetch_json(url: str) -> Any:
    """What an address answers.

    Raises:
        OSError: It does not, or not in time.
        ValueError: It is no JSON.
    """
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def find_newest(description: Any) -> Version:
    """The newest final release that somebody can install, of PyPI's description of a package.

    Raises:
        LookupError: There is none.
        TypeError: It describes no package.
    """
    versions = []
    for text, files in description["releases"].items():
        try:
            version = Version(text)
        except InvalidVersion:  # of times before the rules; nothing newer is called so
            continue
        if not version.is_prerelease and any(not file["yanked"] for file in files):
            versions.append(version)
    if not versions:
        raise LookupError("it has no release")
    return max(versions)


def ask(packages: Iterable[Package], fetch: Fetch) -> list[Answer]:
    """The answer for each package; what goes wrong with one costs only that one."""
    answers = []
    for package in packages:
        try:
            answers.append(Answer(package, find_newest(fetch(URL.format(name=package.name)))))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            answers.append(Answer(package, error=f"{type(error).__name__}: {error}"))
    return answers


def describe(answers: Sequence[Answer]) -> str:
    """What is new as a table, and below it who did not answer."""
    news = [answer for answer in answers if answer.is_news]
    rows = [f"| {a.package.name} | {a.package.version} | {a.newest} | {a.package.changes} |" for a in news]
    lines = (
        ["| package | looked at | newest | may change |", "|---|---|---|---|", *rows] if news else ["Nothing is new."]
    )
    lines += [f"\n{a.package.name}: no answer ({a.error})" for a in answers if a.newest is None]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str], fetch: Fetch = fetch_json) -> int:
    """Print what is new; the exit code says whether anything is."""
    parser = argparse.ArgumentParser(description="Is there a newer release than those last looked at?")
    parser.add_argument("--table", type=Path, default=TABLE)
    answers = ask(load_table(parser.parse_args(arguments).table), fetch)
    sys.stdout.write(describe(answers))
    if any(answer.is_news for answer in answers):
        return NEWS
    return NO_ANSWER if any(answer.newest is None for answer in answers) else NOTHING


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
