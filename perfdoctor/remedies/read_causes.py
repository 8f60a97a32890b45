"""The files of causes become rows: `causes/` has a file for each, named like it, `shared/` the rows that several cite.

`texts/` has the words of rules whose causes are no matter of the program: a file for each.

A file is read when its cause is first asked for. docs/writing_rules.md says how one is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfdoctor.analysis.context.name_signs import SERVING_ENGINES
from perfdoctor.analysis.context.program_phase import FORWARD_ONLY
from perfdoctor.errors import PerfdoctorError
from perfdoctor.remedies.advice import MAIN_SHARE, PARTLY, Row, When
from perfdoctor.report.finding import Action

_FOLDER = Path(__file__).parent
_GROUPS = {"any serving engine": tuple(sorted(SERVING_ENGINES)), "any forward pass": FORWARD_ONLY}
_SHARES = {"most": MAIN_SHARE, "some": PARTLY}
_SAME_FIX = ("sentence", "since", "actions")
_KEYS = {"when", "code", "source", "rows", "argument", "stands_alone", *_SAME_FIX}


@cache
def read_rows(situation: str) -> tuple[Row, ...]:
    """The rows of a situation, the most particular program first, any program last.

    Raises:
        KeyError: No file has such a situation.
        PerfdoctorError: The file has a row that cannot be used; the message is one sentence.
    """
    path = _FOLDER / "causes" / f"{name_file(situation)}.toml"
    try:
        file = _load(path)
    except FileNotFoundError:
        raise KeyError(situation) from None
    last = {key: value for key, value in file.items() if key not in ("situation", "row")}
    made: list[Row] = []
    for number, row in enumerate((*file.get("row", ()), last), 1):
        try:
            made += [_make_row(situation, each) for each in _expand(row, last)]
        except (KeyError, TypeError, OSError) as error:
            why = f"{error} is missing, or stands for nothing" if isinstance(error, KeyError) else str(error)
            raise PerfdoctorError(f"{path}, row {number}: {why}; compare it with the files beside it.") from None
    return tuple(made)


def read_all_rows() -> tuple[Row, ...]:
    """The rows of all files, for the page of advice and for tests."""
    paths = sorted((_FOLDER / "causes").glob("*.toml"))
    return tuple(row for path in paths for row in read_rows(_load(path)["situation"]))


def read_texts(name: str) -> Mapping[str, Mapping[str, Any]]:
    """What a rule says of each of its causes, by their ids: the tables of a file in `texts/`."""
    return _load(_FOLDER / "texts" / f"{name}.toml")


@cache
def read_common_row(name: str) -> Row:
    """The row of `texts/advice.toml` of this name, which holds for any program."""
    return _make_row(name, read_texts("advice")[name])


def name_file(situation: str) -> str:
    """The name, without its ending, of the file that has a situation: "sync: to-cpu" is in "sync-to-cpu"."""
    return re.sub(r"\W+", "-", situation.replace("'", "")).lower()


def _expand(row: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A row itself, or what it makes of each shared row that it cites.

    A row without a sentence is another spelling of the last row's fix: it says the same, and does the same.
    """
    if unknown := set(row) - _KEYS:
        raise TypeError(f"{min(unknown)!r} is none of {', '.join(sorted(_KEYS))}")
    same_fix = {key: last[key] for key in _SAME_FIX if key in last}
    cited = _read_shared(row["rows"]) if "rows" in row else None
    for each in (row,) if cited is None else (_combine(row, shared) for shared in cited):
        yield each if "sentence" in each else {**same_fix, **each}


def _combine(row: Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """A shared row under a row that cites it: the row's own words win, with the shared ones in the place of braces."""
    combined = {**shared, **row, "when": {**shared.get("when", {}), **row.get("when", {})}}
    if "sentence" in row and "sentence" in shared:
        said = shared["sentence"]
        capital = said[:1].upper() + said[1:]
        combined["sentence"] = row["sentence"].replace("{sentence}", said).replace("{Sentence}", capital)
    around = row.get("code", "{code}")
    if around and shared.get("stands_alone"):
        around = "{code}"
    code = shared.get("code", "").replace("{argument}", row.get("argument", ""))
    combined["code"] = around.replace("{code}", code) if code else ""
    if not combined["code"] or shared.get("stands_alone"):
        combined["actions"] = []
    elif "{code}" in row.get("code", ""):  # all that both do, if that is known
        combined["actions"] = [*row.get("actions", ()), *shared["actions"]] if "actions" in shared else []
    return combined


def _make_row(situation: str, row: Mapping[str, Any]) -> Row:
    source = row["source"]
    return Row(
        _make_when(row.get("when", {})),
        row["sentence"],
        row.get("code") or None,
        source if "://" in source else _load(_FOLDER / "pages.toml")[source],
        row.get("since", ""),
        tuple(Action(**action) for action in row.get("actions", ())),
        situation,
    )


def _make_when(conditions: Mapping[str, Any]) -> When:
    """The conditions, with the members of the groups and the shares that they name."""
    read = dict(conditions)
    for name, value in conditions.items():
        if isinstance(value, list):
            read[name] = tuple(member for each in value for member in _GROUPS.get(each, (each,)))
        elif name.startswith("min_"):
            read[name] = _SHARES[value]
    return When(**read)


def _read_shared(name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(_load(_FOLDER / "shared" / f"{name_file(name)}.toml")["row"])


@cache
def _load(path: Path) -> dict[str, Any]:
    import tomllib  # help does without it

    with path.open("rb") as file:
        return tomllib.load(file)
