"""Gradients that nobody uses: results detached before a loss, weights that require none."""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, edit_line, insert_line, names_in
from perfdoctor.fixes.source_file import SourceFile, Splice
from perfdoctor.report.finding import CALLED_AT

# What a program asks of a module, so that a variable is known to be one.
_OF_MODULES = ("parameters", "to", "train", "eval", "state_dict", "load_state_dict", "cuda", "named_parameters")


def detach_result(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`.detach()` on what a module returns: where it goes into the loss, or at the call where nothing else uses it."""
    source, backward, call = _find_pass(finding, project)
    made = source.statement(call)
    block = source.block(backward)
    kept = {each.id for each in getattr(made, "targets", ()) if isinstance(each, ast.Name)}
    if isinstance(made, ast.Assign) and made.value is call and len(kept) == 1 and made in block:
        [name] = kept
        before, after = block[block.index(made) + 1 : block.index(backward)], block[block.index(backward) + 1 :]
        if any(name in names_in(each) for each in after):
            uses = [
                use
                for each in before
                for use in ast.walk(each)
                if isinstance(use, ast.Name) and use.id == name and not _is_detached(source, use)
            ]
            splices = tuple(Splice(source.span(use)[1], source.span(use)[1], ".detach()") for use in uses)
            if not splices:
                raise EditRefusedError(f"{source.name}:{made.lineno} does not go into this loss by its own name")
            line = uses[0].lineno
            return edit_line("detach", setting, source, line, splices)
    if _is_detached(source, call):
        raise EditRefusedError(f"{source.name}:{call.lineno} has it already")
    end = source.span(call)[1]
    splices = (Splice(end, end, ".detach()"),)
    return edit_line("detach", setting, source, call.lineno, splices)


def freeze_weights(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`requires_grad_(False)` on a module: from where it is made, or around one pass where others train it."""
    source, backward, call = _find_pass(finding, project)
    if any(each.attr in ("requires_grad", "requires_grad_") for each in source.nodes(ast.Attribute)):
        raise EditRefusedError(f"{source.name} chooses itself which weights require gradients")
    module = source.code(call.func)
    forward, block = source.statement(call), source.block(backward)
    if setting == "meanwhile":
        if forward not in block:
            raise EditRefusedError(f"{source.name}:{call.lineno} and the backward pass are not in one block")
        first = insert_line(source, forward.lineno, f"{module}.requires_grad_(False)")
        after, indentation = (backward.end_lineno or 0) + 1, source.indentation(backward.lineno)
        last = insert_line(source, after, f"{module}.requires_grad_(True)", indentation)
        code = f"{module}.requires_grad_(False)"
        return SourceEdit("freeze", setting, source, forward.lineno, (first, last), code)
    made = [each for each in source.nodes(ast.Assign) if [source.code(target) for target in each.targets] == [module]]
    if len(made) != 1:
        raise EditRefusedError(f"{len(made)} lines of {source.name} make {module}: freeze it where it is made")
    [statement] = made
    code, indentation = f"{module}.requires_grad_(False)", source.indentation(statement.lineno)
    splice = insert_line(source, (statement.end_lineno or 0) + 1, code, indentation)
    return SourceEdit("freeze", setting, source, statement.lineno, (splice,), code)


EDITS: dict[str, MakeEdit] = {"detach": detach_result, "freeze": freeze_weights}


def _find_pass(finding: PlainFinding, project: Project) -> tuple[SourceFile, ast.stmt, ast.Call]:
    """The file, the backward pass of a finding, and the call of the module whose gradients nobody uses.

    Raises:
        EditRefusedError: They are not known, or not in one file.
    """
    place = finding["location"]
    called = next((str(each["value"]) for each in finding["evidence"] if each.get("id") == CALLED_AT), "")
    file, _, line = called.rpartition(":")
    if not place or not line.isdigit():
        raise EditRefusedError("the module whose gradients nobody uses is not known")
    source = project.source(place["file"])
    if project.source(file) is not source:
        raise EditRefusedError(f"{source.name} and {file} have a part of it each")
    backward = source.nodes_at(place["line"], ast.Expr)
    here = source.nodes_at(int(line), ast.Call)
    asked = {source.code(each.value) for each in source.nodes(ast.Attribute) if each.attr in _OF_MODULES}
    made = {
        source.code(to) for each in source.nodes(ast.Assign) if isinstance(each.value, ast.Call) for to in each.targets
    }
    for modules in (asked, made):
        calls = [each for each in here if source.code(each.func) in modules]
        if len(backward) == 1 and len(calls) == 1:
            return source, backward[0], calls[0]
    raise EditRefusedError(f"{source.name}:{line} does not say which module is called")


def _is_detached(source: SourceFile, value: ast.expr) -> bool:
    """Whether a value is followed by `.detach()`."""
    after = next(source.parents(value))
    return isinstance(after, ast.Attribute) and after.attr == "detach"
