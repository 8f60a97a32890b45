"""Gradients that are accumulated over several micro-batches, and reduced over the ranks in the last one alone."""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.edits.call_arguments import is_ddp
from perfdoctor.fixes.edits.contexts import forward_of, wrap_statements
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, import_module, names_in, places_of
from perfdoctor.fixes.source_file import SourceFile, method_of


def skip_reductions(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`model.no_sync()` around forward and backward pass of all micro-batches but the last of an update."""
    for source, line in places_of(finding, project):
        loops = source.nodes_at(line, ast.For)
        if not loops:
            continue
        loop = loops[-1]
        if any(each.attr == "no_sync" for each in source.nodes(ast.Attribute)):
            raise EditRefusedError(f"{source.name} has it already")
        backwards = [
            each for each in ast.walk(loop) if isinstance(each, ast.Expr) and method_of(each.value) == "backward"
        ]
        if len(backwards) != 1:
            raise EditRefusedError(f"the loop at {source.name}:{loop.lineno} has {len(backwards)} backward passes")
        [backward] = backwards
        models = {source.code(each.func) for each in ast.walk(backward) if isinstance(each, ast.Call)}
        model = _model_of(source)
        forward = [] if model in models else forward_of(source, backward)
        block = source.block(backward)
        statements = block[block.index(forward[0]) if forward else block.index(backward) : block.index(backward) + 1]
        if not any(model in names_in(each) for each in statements):
            raise EditRefusedError(f"the forward pass at {source.name}:{line} does not call {model} by its name")
        last = _last_of(source, loop, statements)
        contextlib = source.name_of("contextlib")
        code = f"with {contextlib or 'contextlib'}.nullcontext() if {last} else {model}.no_sync():"
        splices = (
            *wrap_statements(source, statements, code),
            *([] if contextlib else [import_module(source, "contextlib")]),
        )
        return SourceEdit("no-sync", setting, source, statements[0].lineno, splices, code)
    raise EditRefusedError("the loop over micro-batches is not known")


EDITS: dict[str, MakeEdit] = {"no-sync": skip_reductions}


def _model_of(source: SourceFile) -> str:
    """The variable with the one DistributedDataParallel of a file."""
    made = [source.statement(each) for each in source.calls(is_ddp)]
    names = [source.code(each.targets[0]) for each in made if isinstance(each, ast.Assign) and len(each.targets) == 1]
    if len(names) != 1:
        raise EditRefusedError(f"{source.name} does not say which model is a DistributedDataParallel")
    return names[0]


def _last_of(source: SourceFile, loop: ast.For, statements: list[ast.stmt]) -> str:
    """What is true in the last micro-batch of an update: where the optimizer steps after it.

    Raises:
        EditRefusedError: It is not known before the forward pass.
    """
    inside = [each for each in loop.body if isinstance(each, ast.If) and _steps(each)]
    made = {source.code(each) for of in statements for each in ast.walk(of) if _is_stored(each)}
    if len(inside) == 1 and not inside[0].orelse and made.isdisjoint(names_in(inside[0].test)):
        return source.code(inside[0].test)
    block, count = source.block(loop), loop.iter
    is_range = isinstance(count, ast.Call) and source.code(count.func) == "range" and len(count.args) == 1
    if not inside and is_range and isinstance(loop.target, ast.Name) and any(map(_steps, block[block.index(loop) :])):
        number = source.code(count.args[0])  # type: ignore[attr-defined]
        return f"{loop.target.id} == {number if number.isidentifier() or number.isdigit() else f'({number})'} - 1"
    raise EditRefusedError(f"{source.name}:{loop.lineno} does not say which micro-batch is the last of an update")


def _steps(statement: ast.stmt) -> bool:
    return any(method_of(each) == "step" for each in ast.walk(statement))


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
