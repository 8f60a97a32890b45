"""Pauses of a training loop: collections of garbage and waits for a disk left out, saves and prints made less often."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.decided_arguments import calls_of, find_constant
from perfdoctor.fixes.edits.contexts import wrap_statements
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, check_own_lines, edit_line, places_of
from perfdoctor.fixes.source_file import SourceFile, Splice, method_of

_SYNCS = ("os.fsync", "os.fdatasync", "os.sync")
# A save that is asked for in one function and made in another one, which that calls, has so many between at most.
_MAX_CALLERS = 3
# What people choose who save less often.
_TIMES = 10


def leave_collect_out(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """No `gc.collect()` in the loop, where it is a statement of its own."""
    for source, line in places_of(finding, project):
        found = _leave_out(source, line, ("gc.collect",))
        if found is not None:
            return SourceEdit("gc", setting, source, line, (found,), "# without gc.collect()")
    raise EditRefusedError("Python collects by itself: put gc.collect(); gc.freeze() before the loop")


def leave_sync_out(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """No `os.fsync()` in the loop: what is written outlives a crash of the program, not one of the machine."""
    for source, line in places_of(finding, project):
        found = _leave_out(source, line, _SYNCS)
        if found is not None:
            code = "# without os.fsync()"
            return SourceEdit("no-fsync", setting, source, line, (found,), code, intended_change="files")
    raise EditRefusedError("no os.fsync() stands on the line as a statement of its own")


def do_less_often(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """A save or a print a tenth as often: the interval that decides it times ten, else a condition of its own.

    The setting is how many steps are between two of them then.
    """
    for source, line in places_of(finding, project):
        here = source.nodes_at(line, ast.Call)
        if not here:
            continue
        callers = list(_callers(source, source.statement(here[0]), project))
        for file, caller in callers:
            longer = _lengthen_interval(file, caller, int(setting), project)
            if longer:
                at = file.line_of(longer[0].start)
                return edit_line("less-often", setting, file, at, longer, intended_change="files")
        in_loops = [
            each for each in callers if any(isinstance(up, ast.For | ast.While) for up in each[0].parents(each[1]))
        ]
        file, caller = (in_loops or callers)[-1]
        if not isinstance(caller, ast.Expr):
            raise EditRefusedError(f"{file.name}:{caller.lineno} keeps what it gets, and no interval decides how often")
        code = f"if {counter_of(file, caller)} % {setting} == 0:"
        splices = wrap_statements(file, [caller], code)
        return SourceEdit("less-often", setting, file, caller.lineno, splices, code, intended_change="files")
    raise EditRefusedError("nothing is called on the line")


EDITS: dict[str, MakeEdit] = {"gc": leave_collect_out, "no-fsync": leave_sync_out, "less-often": do_less_often}


def _leave_out(source: SourceFile, line: int, names: tuple[str, ...]) -> Splice | None:
    """The splice that takes out a call of some functions on a line; None where it is no statement of its own."""
    for call in source.calls(lambda meaning: meaning in names):
        statement = source.statement(call)
        if call.lineno == line and isinstance(statement, ast.Expr) and statement.value is call:
            check_own_lines(source, [statement])
            is_alone = source.block(statement) == [statement]
            start, end = source.line_start(line), source.line_start((statement.end_lineno or line) + 1)
            return Splice(*source.span(statement), "pass") if is_alone else Splice(start, end, "")
    return None


def _callers(source: SourceFile, statement: ast.stmt, project: Project) -> Iterator[tuple[SourceFile, ast.stmt]]:
    """A statement, the one that calls the function in which it stands, and so on, as far as there is one alone."""
    for _ in range(_MAX_CALLERS):
        yield source, statement
        scope = source.scope(statement)
        if not isinstance(scope, ast.FunctionDef):
            return
        is_method = isinstance(next(source.parents(scope)), ast.ClassDef)
        calls = [
            (file, call)
            for file, call in calls_of(scope.name, source, project)
            if is_method or isinstance(call.func, ast.Name) or file.meaning(call.func)
        ]
        if len(calls) != 1:
            return
        source, statement = calls[0][0], calls[0][0].statement(calls[0][1])


def _lengthen_interval(source: SourceFile, statement: ast.stmt, steps: int, project: Project) -> list[Splice]:
    """Splices that make the interval longer of a condition such as `step % every == 0` around a statement.

    Raises:
        EditRefusedError: It is so long already.
    """
    conditions = [each.test for each in source.parents(statement) if isinstance(each, ast.If)]
    for test in conditions:
        moduli = [each for each in ast.walk(test) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)]
        if len(moduli) != 1:
            continue
        interval = moduli[0].right
        number = interval if isinstance(interval, ast.Constant) else find_constant(source, interval, "", project)
        is_long = isinstance(interval, ast.BinOp) and isinstance(interval.op, ast.Mult)
        if number is not None and isinstance(number.value, int):
            is_long = number.value >= steps
        if is_long:
            raise EditRefusedError(f"{source.name}:{test.lineno} waits for {source.code(interval)} steps already")
        if number is not None and isinstance(number.value, int):
            # Of `step % 20 == 19`, too, the last of the steps that it counts.
            last = [
                each for each in ast.walk(test) if isinstance(each, ast.Constant) and each.value == number.value - 1
            ]
            wanted = [(number, number.value * _TIMES)]
            wanted += [(each, number.value * _TIMES - 1) for each in last if number is interval and number.value > 1]
            return [Splice(*source.span(each), str(value)) for each, value in wanted]
        code = source.code(interval)
        same = [each for each in ast.walk(test) if isinstance(each, ast.expr) and source.code(each) == code]
        return [Splice(*source.span(each), f"({_TIMES} * {code})") for each in same]
    return []


def counter_of(source: SourceFile, node: ast.AST) -> str:
    """The variable that counts the steps of the training loop around a piece of code.

    Raises:
        EditRefusedError: There is none.
    """
    loops = [each for each in source.parents(node) if isinstance(each, ast.For | ast.While)]
    trains = [each for each in loops if any(method_of(part) in ("backward", "step") for part in ast.walk(each))]
    for loop in (trains or loops[::-1])[:1]:
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
            name, target = source.code(loop.iter.func), loop.target
            if name == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if name in ("enumerate", "range") and isinstance(target, ast.Name):
                return target.id
    raise EditRefusedError(
        f"no loop around {source.name}:{source.statement(node).lineno} counts its steps: do it every so many steps"
    )
