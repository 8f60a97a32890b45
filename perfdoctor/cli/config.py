"""Settings from pyproject.toml and from the command line, which has priority.

::

    [tool.perfdoctor]
    select = ["PD1", "PD201"]
    ignore = ["PD104"]

    [tool.perfdoctor.PD101]
    min_share = 0.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from perfdoctor.errors import UsageError


class Config(NamedTuple):
    """The rules to apply (ids or families), and thresholds by rule id; and the file that any of it comes from."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    file: str | None = None


def load_config(select: Sequence[str], ignore: Sequence[str], assignments: Sequence[str], start: Path) -> Config:
    """The settings of the nearest pyproject.toml, overridden by the command line.

    Args:
        select: Values of --select, each one or several rule ids or families, separated by commas.
        ignore: Values of --ignore.
        assignments: Values of --set, as "PD101.min_share=0.1".
        start: The folder to look in first, then its parents.

    Raises:
        UsageError: A file or an option is malformed.
    """
    file = _read_nearest_file(start)
    settings = {rule: dict(table) for rule, table in file.settings.items()}
    for assignment in assignments:
        rule, name, value = _parse_assignment(assignment)
        settings.setdefault(rule, {})[name] = value
    counts = bool(file.settings or (file.select and not select) or (file.ignore and not ignore))
    chosen = _split_ids(select) or file.select, _split_ids(ignore) or file.ignore
    return Config(*chosen, settings, file.file if counts else None)


def _split_ids(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip().upper() for value in values for part in value.split(",") if part.strip())


def _parse_assignment(assignment: str) -> tuple[str, str, float]:
    """Rule id, threshold and value of "PD101.min_share=0.1"."""
    target, equals, text = assignment.partition("=")
    rule, dot, name = target.strip().partition(".")
    try:
        if not (equals and dot and rule and name):
            raise ValueError
        return rule.upper(), name, float(text)
    except ValueError:
        raise UsageError(f"--set {assignment} must be RULE.name=number, such as --set PD101.min_share=0.1") from None


def _read_nearest_file(start: Path) -> Config:
    """The settings of the pyproject.toml in `start` or its nearest parent; none where there is no such file."""
    path = next((p for folder in (start, *start.parents) if (p := folder / "pyproject.toml").is_file()), None)
    if path is None:
        return Config()
    settings: dict[str, dict[str, float]] = {}
    rules: dict[str, tuple[str, ...]] = {}
    for name, value in _read_table(path).items():
        if isinstance(value, dict):
            settings[name.upper()] = _check_thresholds(path, name, value)
        elif name in ("select", "ignore"):
            rules[name] = _check_rule_ids(path, name, value)
        else:
            raise UsageError(
                f"{path}: [tool.perfdoctor] has no setting '{name}'; it has select, ignore and a table a rule"
            )
    return Config(rules.get("select", ()), rules.get("ignore", ()), settings, str(path))


def _read_table(path: Path) -> Mapping[str, Any]:
    """The table [tool.perfdoctor] of a file; empty where there is none."""
    import tomllib

    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as settings: {error}") from None
    tools = whole.get("tool", {})
    table = tools.get("perfdoctor", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.perfdoctor must be a table")
    return table


def _check_rule_ids(path: Path, name: str, value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise UsageError(f'{path}: {name} of [tool.perfdoctor] must be a list of rule ids, such as ["PD101"]')
    return _split_ids(value)


def _check_thresholds(path: Path, rule: str, table: Mapping[str, Any]) -> dict[str, float]:
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{path}: {name} of [tool.perfdoctor.{rule}] must be a number")
    return dict(table)
