"""Writes the files of a new rule, in any project: the rule, its test, its entry point, its examples if it has any."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from perfdoctor.errors import InputError, UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rules.analyzer import RULE_ID, RULE_NAME
from perfdoctor.rules.registry import GROUP, load_analyzers
from perfdoctor.rules.reserved_rules import RESERVED_RULES

_GROUP_HEADER = f'[project.entry-points."{GROUP}"]'
# Where this repository shows a bad and a good program for each rule.
_EXAMPLES = Path("docs", "rules", "examples")


@frozen_dataclass
class NewRule:
    """The files that were written for a new rule.

    Attributes:
        rule_file: The rule.
        test_file: Its test, which passes as it is.
        other_files: Other new or changed files: pyproject.toml, the package where there was none, and the page of
            examples where the project has such pages, as this repository does.
    """

    rule_file: Path
    test_file: Path
    other_files: tuple[Path, ...]


def write_new_rule(folder: Path, rule: str, name: str) -> NewRule:
    """Write a rule that works, its test and its entry point into the project in a folder.

    The rule joins the package of the project's other rules, else the package with the name of the project. A folder
    without pyproject.toml becomes a project of its own.

    Args:
        folder: The folder of pyproject.toml.
        rule: The new rule's id, as "PD999".
        name: Its name, as "slow-norms".

    Raises:
        UsageError: The id or the name is malformed or taken, or the project has no package for the rule.
        InputError: A file cannot be read or written, or is there already; then nothing is written.
    """
    _check_is_free(rule, name)
    snake = name.replace("-", "_")
    project = folder / "pyproject.toml"
    texts: dict[Path, str] = {}
    if project.exists():
        toml = _read(project)
    else:
        package = f"perfdoctor_{snake}"
        toml = _fill("project", project=package.replace("_", "-"), package=package)
        texts[folder / package / "__init__.py"] = f'"""Rules for perfdoctor: {name}."""\n'
    parsed = _parse_toml(project, toml)
    module_folder, package = _find_package(folder, parsed, texts)
    stem = f"{rule.lower()}_{snake}"
    class_name = "".join(part.title() for part in name.split("-"))
    words = {"rule": rule, "name": name, "op": f"mine::{snake}", "class_name": class_name, "test_name": snake}
    rule_file = module_folder / f"{stem}.py"
    tests = folder / "tests" / package.rpartition(".")[2]
    test_file = (tests if tests.is_dir() else tests.parent) / f"test_{stem}.py"
    texts[rule_file] = _fill("rule", **words)
    texts[test_file] = _fill("test", **words, imports=_imports_of_test(f"{package}.{stem}", class_name))
    examples = folder / _EXAMPLES
    if examples.is_dir():
        texts[examples / f"{rule}.md"] = _fill("example")
    edited_toml = _add_entry_point(project, toml, rule, f"{package}.{stem}:{class_name}")
    _write_new_files(texts)
    _write(project, edited_toml)
    return NewRule(
        rule_file, test_file, tuple(path for path in (*texts, project) if path not in (rule_file, test_file))
    )


def _check_is_free(rule: str, name: str) -> None:
    if not RULE_ID.fullmatch(rule):
        raise UsageError(f"the id of a rule is two or more capitals and three digits, as XX101, not '{rule}'")
    if not RULE_NAME.fullmatch(name) or name[0].isdigit():
        raise UsageError(f"the name of a rule is in small letters with hyphens, as slow-norms, not '{name}'")
    if rule in RESERVED_RULES:
        raise UsageError(f"the id {rule} is reserved. {RESERVED_RULES[rule]}")
    for other in load_analyzers():
        if rule == other.rule or name == other.name:
            raise UsageError(f"there is a rule {other.rule} {other.name} already; ids and names are used once")


def _parse_toml(path: Path, text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is no TOML file: {error}") from None


def _find_package(folder: Path, project: Mapping[str, Any], new: Mapping[Path, str]) -> tuple[Path, str]:
    """The folder and the dotted name of the package for the rules of a project."""
    table = project.get("project", {})
    points = table.get("entry-points", {}).get(GROUP, {})
    modules = [value.partition(":")[0] for value in points.values()]
    name = re.sub(r"[-_.]+", "_", table.get("name", "")).lower()
    package = modules[0].rpartition(".")[0] if modules else name
    path = Path(*package.split("."))
    mapped = project.get("tool", {}).get("setuptools", {}).get("package-dir", {}).get(package)
    for candidate in (folder / mapped if mapped else folder / path, folder / "src" / path):
        if package and (candidate.is_dir() or candidate / "__init__.py" in new):
            # In this repository perfdoctor/analyzers is a link to the folder that the rules are in.
            real = candidate.parent / candidate.readlink() if candidate.is_symlink() else candidate
            return Path(os.path.normpath(real)), package
    raise UsageError(
        f"{folder / 'pyproject.toml'} has no package '{package or '?'}' for the rule: run this in the folder of a "
        "package, or in an empty one"
    )


def _add_entry_point(path: Path, toml: str, rule: str, value: str) -> str:
    """The text of pyproject.toml with one more entry point, in the order of the ids.

    The text itself is edited, because comments and order would be lost if it were written from parsed values.
    """
    line = f'{rule} = "{value}"'
    lines = toml.rstrip("\n").split("\n")
    if _GROUP_HEADER in lines:
        at = first = lines.index(_GROUP_HEADER) + 1
        while at < len(lines) and not lines[at].startswith("["):
            at += 1
        while at > first and not lines[at - 1].strip():
            at -= 1
        while at > first and lines[at - 1].partition("=")[0].strip() > rule:
            at -= 1
        lines.insert(at, line)
    else:
        lines += ["", _GROUP_HEADER, line]
    edited = "\n".join(lines) + "\n"
    try:
        tomllib.loads(edited)
    except tomllib.TOMLDecodeError:  # the group exists in another notation, or has the id already
        raise InputError(f"{path} lists its rules in its own way; add this one there: {line}") from None
    return edited


def _fill(template: str, **words: str) -> str:
    text = files("perfdoctor.rules").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(words)


def _imports_of_test(module: str, class_name: str) -> str:
    """The imports of the rule's test, in the order that linters want: modules of the same package come last."""
    lines = [
        "from perfdoctor.testing import ExpectedFinding, RuleCase, TraceBuilder, check_rule",
        f"from {module} import {class_name}",
    ]
    return "\n".join(sorted(lines)) if module.startswith("perfdoctor.") else "\n\n".join(lines)


def _write_new_files(texts: Mapping[Path, str]) -> None:
    for path in texts:
        if path.exists():
            raise InputError(f"{path} is there already")
    for path, text in texts.items():
        _write(path, text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: one may be a pyproject.toml that was there before."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"{path} cannot be written ({error.strerror})") from None
