"""SourceEdit: one edit of one file, found for a finding; what edits are made of: arguments, statements, places."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.decided_arguments import find_constant, read_keywords
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_file import SourceFile, Splice
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import USED_AT
from perfdoctor.report.trial_result import IntendedChange

PlainFinding: TypeAlias = Mapping[str, Any]
"""A finding as in the JSON report."""


@frozen_dataclass
class SourceEdit:
    """An edit that carries out an action of a finding.

    Attributes:
        action, setting: The action, as the finding has it; "" where there is nothing to choose.
        source: The file.
        line: The line that it is about.
        splices: What it replaces.
        code: The line as it is after the edit, or what is added.
        alters_numerics: Whether results may differ by more than rounding in another order.
        intended_change: What it changes on purpose, as in `ChangeDefaults`.
    """

    action: str
    setting: str
    source: SourceFile
    line: int
    splices: tuple[Splice, ...]
    code: str
    alters_numerics: bool = False
    intended_change: IntendedChange = ""

    @property
    def place(self) -> str:
        """File and line, as "train.py:41"."""
        return f"{self.source.name}:{self.line}"


MakeEdit: TypeAlias = Callable[[PlainFinding, str, Project], SourceEdit]
"""Makes the edit for a finding and the setting of its action, or raises EditRefusedError with the reason."""


def lines_of(finding: PlainFinding) -> list[tuple[str, int]]:
    """The file and line at which a finding is, and at which what it is about is used."""
    location = finding["location"]
    lines = [(location["file"], location["line"])] if location and location["line"] else []
    for each in finding["evidence"]:
        file, _, line = str(each["value"]).rpartition(":")
        if each.get("id") == USED_AT and line.isdigit():
            lines.append((file, int(line)))
    return lines


def places_of(finding: PlainFinding, project: Project) -> Iterator[tuple[SourceFile, int]]:
    """The same with the file itself.

    Raises:
        EditRefusedError: A file cannot be edited.
    """
    for file, line in lines_of(finding):
        yield project.source(file), line


def find_call(
    finding: PlainFinding, project: Project, is_wanted: Callable[[str], bool], what: str
) -> tuple[SourceFile, ast.Call]:
    """The call that a finding is about: on its line, of a variable that its line uses, or the only one of its kind.

    Args:
        finding: The finding.
        project: The user's program.
        is_wanted: Whether a dotted name, such as "torch.optim.AdamW", is what is looked for.
        what: What the call makes, for the sentence where none is found: "a DataLoader".

    Raises:
        EditRefusedError: There is none, or it is not known which.
    """
    file = finding["location"]["file"] if finding["location"] else None
    found = [(source, call) for source in project.program_files(file) for call in source.calls(is_wanted)]
    there = [(project_line(project, file), line) for file, line in lines_of(finding)]
    at_line = [
        (source, call)
        for source, call in found
        if any(source is file and call in file.nodes_at(line, ast.Call) for file, line in there)
    ]
    used = {name for file, line in there if file is not None for name in _names_on(file, line)}
    of_name = [each for each in found if used & set(_assigned_names(*each))]
    for chosen in (at_line, of_name, found):
        if len(chosen) == 1:
            return chosen[0]
    if not found:
        if file is not None:
            project.source(file)  # a library's file, a notebook: the reason is there
        raise EditRefusedError(f"no line of the program makes {what} by that name")
    places = ", ".join(f"{source.name}:{call.lineno}" for source, call in found[:4])
    raise EditRefusedError(f"{len(found)} lines make {what} ({places}), and which of them is not known")


def project_line(project: Project, file: str) -> SourceFile | None:
    """The source of a file that a finding names; None where it cannot be edited."""
    try:
        return project.source(file)
    except EditRefusedError:
        return None


def _names_on(source: SourceFile, line: int) -> list[str]:
    names = [each.id for each in source.nodes(ast.Name) if each.lineno == line]
    return names + [each.attr for each in source.nodes(ast.Attribute) if each.lineno == line]


def _assigned_names(source: SourceFile, call: ast.Call) -> list[str]:
    statement = source.statement(call)
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = (statement.target,)
    return [
        each.id if isinstance(each, ast.Name) else each.attr
        for target in targets
        for each in (target.elts if isinstance(target, ast.Tuple) else (target,))
        if isinstance(each, ast.Name | ast.Attribute)
    ]


def of_torch(*names: str) -> Callable[[str], bool]:
    """Whether a dotted name is one of torch's of these last parts, however it was imported."""

    def is_wanted(meaning: str) -> bool:
        return meaning.startswith("torch.") and meaning.rpartition(".")[2] in names

    return is_wanted


def set_arguments(
    source: SourceFile, call: ast.Call, wanted: Mapping[str, str | None], project: Project, order: Sequence[str] = ()
) -> tuple[Splice, ...]:
    """Splices that set keyword arguments of a call, or the constant that decides one; None takes one out.

    Args:
        source: The file.
        call: The call.
        wanted: The code of each argument.
        project: The user's program.
        order: The names of the parameters in their order, so that positional arguments are found, too.

    Raises:
        EditRefusedError: They are set already, decided elsewhere, or passed in a way that cannot be known.
    """
    given = {**dict(zip(order, call.args, strict=False)), **read_keywords(source, call)}
    splices, added = [], []
    for argument, code in wanted.items():
        if argument not in given:
            added += [] if code is None else [f"{argument}={code}"]
            continue
        passed = given[argument]
        value = passed if isinstance(passed, ast.Constant) else find_constant(source, passed, argument, project)
        own = next((each for each in call.keywords if each.arg == argument), None)
        if value is None or (code is None and own is None):
            decided = source.code(passed)
            raise EditRefusedError(
                f"{argument}={decided} at {source.name}:{call.lineno} is decided elsewhere: set it there"
            )
        if code is None and own is not None:
            splices.append(_remove_argument(source, call, own))
        elif code is not None and source.code(value) != code:
            splices.append(Splice(*source.span(value), code))
    if added:
        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        if len(arguments) == 1 and isinstance(arguments[0], ast.GeneratorExp):
            raise EditRefusedError(f"{source.name}:{call.lineno} passes a generator alone: put it in parentheses first")
        at = max((source.span(each)[1] for each in arguments), default=source.span(call)[1] - 1)
        splices.append(Splice(at, at, f"{', ' if arguments else ''}{', '.join(added)}"))
    if not splices:
        raise EditRefusedError(f"{source.name}:{call.lineno} has it already")
    return tuple(splices)


def _remove_argument(source: SourceFile, call: ast.Call, argument: ast.keyword) -> Splice:
    others = sorted(source.span(each) for each in (*call.args, *call.keywords) if each is not argument)
    start, end = source.span(argument)
    before = [each for each in others if each[1] <= start]
    after = [each for each in others if each[0] >= end]
    if before:
        return Splice(before[-1][1], end, "")
    return Splice(start, after[0][0] if after else end, "")


def insert_line(source: SourceFile, line: int, code: str, indentation: str | None = None) -> Splice:
    """A splice that puts code on a line of its own before another line, indented as that is."""
    at = source.line_start(line)
    text = (source.indentation(line) if indentation is None else indentation) + code + source.newline
    return Splice(at, at, text if at == 0 or source.ends_line(at) else source.newline + text)


def import_module(source: SourceFile, name: str) -> Splice:
    """A splice that imports a module before the first import that is not of __future__.

    Raises:
        EditRefusedError: The file imports nothing at its top.
    """
    imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    after = [each for each in imports if getattr(each, "module", "") != "__future__"]
    if not after:
        raise EditRefusedError(f"{source.name} imports nothing at its top")
    return insert_line(source, after[0].lineno, f"import {name}", "")


def check_own_lines(source: SourceFile, statements: Sequence[ast.stmt]) -> None:
    """Check that statements of a block, one after another, share no line with others.

    Raises:
        EditRefusedError: They do.
    """
    first, last = statements[0], statements[-1]
    shared = [
        each
        for each in source.block(first)
        if each not in statements and first.lineno <= (each.end_lineno or 0) and each.lineno <= (last.end_lineno or 0)
    ]
    if shared or source.line_start(first.lineno) + len(source.indentation(first.lineno)) != source.span(first)[0]:
        raise EditRefusedError(f"{source.name}:{first.lineno} has several statements on a line")


def call_method(source: SourceFile, value: ast.expr, code: str) -> tuple[Splice, ...]:
    """Splices that put code such as ".float()" behind a value, which gets parentheses where it needs them."""
    start, end = source.span(value)
    if isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return (Splice(end, end, code),)
    return (Splice(start, start, "("), Splice(end, end, f"){code}"))


def edit_line(
    action: str,
    setting: str,
    source: SourceFile,
    line: int,
    splices: Iterable[Splice],
    *,
    alters_numerics: bool = False,
    intended_change: IntendedChange = "",
) -> SourceEdit:
    """An edit of which the line is shown as it is afterwards; another line where that is the one which decides."""
    splices = tuple(splices)
    if not any(source.line_of(each.start) == line for each in splices):
        line = source.line_of(splices[0].start)
    start, end = source.line_start(line), source.line_start(line + 1)
    inside = tuple(each for each in splices if start <= each.start < end and each.end <= end)
    code = source.part(start, end, inside).strip()
    return SourceEdit(action, setting, source, line, splices, code, alters_numerics, intended_change)


def names_in(node: ast.AST) -> Collection[str]:
    """The names that a piece of code reads or writes."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
