"""Contexts around code: no gradients in evaluation, autocast around forward and loss."""

from __future__ import annotations

import ast
import builtins

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import (
    MakeEdit,
    PlainFinding,
    SourceEdit,
    check_own_lines,
    insert_line,
    names_in,
    places_of,
)
from perfdoctor.fixes.source_file import SourceFile, Splice, method_of

_NO_GRADIENTS = ("torch.no_grad", "torch.inference_mode")
_INDENTATION = "    "


def leave_gradients_out(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`torch.no_grad()` on the function that evaluates, or around the outermost loop of it that trains nothing."""
    for source, line in places_of(finding, project):
        torch = source.name_of("torch")
        here = source.nodes_at(line, ast.stmt)
        if not here or not torch:
            continue
        statement = here[-1]
        around = [statement, *(each for each in source.parents(statement) if isinstance(each, ast.stmt))]
        if any(_has_no_gradients(source, each) for each in around):
            raise EditRefusedError(f"{source.name}:{line} has it already")
        scope = next((each for each in around if isinstance(each, ast.FunctionDef)), None)
        if scope is not None and not _trains(scope):
            first = min([scope.lineno, *(each.lineno for each in scope.decorator_list)])
            code = f"@{torch}.no_grad()"
            splices: tuple[Splice, ...] = (insert_line(source, first, code),)
            return SourceEdit("no-grad-evaluation", setting, source, scope.lineno, splices, code)
        inside = around[: around.index(scope)] if scope is not None else around
        block = next((each for each in reversed(inside) if not _trains(each)), None)
        if block is None:
            raise EditRefusedError(
                f"{source.name}:{line} stands beside what trains: put the evaluation into a function"
            )
        code = f"with {torch}.no_grad():"
        splices = wrap_statements(source, [block], code)
        return SourceEdit("no-grad-evaluation", setting, source, block.lineno, splices, code)
    raise EditRefusedError("the line that evaluates is not known")


def open_autocast(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:  # noqa: ARG001
    """`torch.autocast` around the statements from the first that the loss comes from to the loss."""
    for source in project.program_files():
        backwards = [each for each in source.nodes(ast.Expr) if method_of(each.value) == "backward"]
        if len(backwards) > 1:
            raise EditRefusedError(
                f"{source.name} has {len(backwards)} backward passes: open autocast around each forward"
            )
        if not backwards:
            continue
        if source.calls(lambda meaning: meaning.startswith("torch.") and "autocast" in meaning):
            raise EditRefusedError(f"{source.name} opens autocast itself")
        torch = source.name_of("torch")
        if not torch:
            raise EditRefusedError(f"{source.name} does not import torch by its name")
        statements = forward_of(source, backwards[0])
        code = f'with {torch}.autocast("{project.device_kind}", dtype={torch}.bfloat16):'
        splices = wrap_statements(source, statements, code)
        return SourceEdit("autocast-bf16", setting, source, statements[0].lineno, splices, code, alters_numerics=True)
    raise EditRefusedError("no line of the program calls backward: a trainer does, and has an argument for it")


def set_eval_mode(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`model.eval()` before the outermost loop in which the model infers."""
    for source, line in places_of(finding, project):
        here = source.nodes_at(line, ast.Call)
        models = {_model_of(source, each) for each in here} - {""}
        if len(models) != 1:
            raise EditRefusedError(f"{source.name}:{line} does not say which model infers")
        [model] = models
        if any(source.code(each.func) == f"{model}.eval" for each in source.nodes(ast.Call)):
            raise EditRefusedError(f"{source.name} has it already")
        if _trains(source.tree) and f"{model}.train" not in {source.code(each.func) for each in source.nodes(ast.Call)}:
            raise EditRefusedError(f"{source.name} trains as well, and never goes back to it with {model}.train()")
        around = [each for each in source.parents(here[0]) if isinstance(each, ast.For | ast.While)]
        block = next((each for each in reversed(around) if not _trains(each)), source.statement(here[0]))
        code = f"{model}.eval()"
        splices = (insert_line(source, block.lineno, code),)
        return SourceEdit("eval-mode", setting, source, block.lineno, splices, code, alters_numerics=True)
    raise EditRefusedError("the line that infers is not known")


EDITS: dict[str, MakeEdit] = {
    "no-grad-evaluation": leave_gradients_out,
    "autocast-bf16": open_autocast,
    "eval-mode": set_eval_mode,
}


def _model_of(source: SourceFile, call: ast.Call) -> str:
    """The variable that a call infers with, as `model(x)` and `model.generate(x)` do; "" for other calls."""
    called = call.func
    if isinstance(called, ast.Attribute) and called.attr in ("forward", "generate"):
        return source.code(called.value)
    is_variable = isinstance(called, ast.Name) and not source.meaning(called) and called.id not in vars(builtins)
    return source.code(called) if is_variable else ""


def wrap_statements(source: SourceFile, statements: list[ast.stmt], header: str) -> tuple[Splice, ...]:
    """Splices that put statements of a block, one after another, into another block.

    Raises:
        EditRefusedError: A text of several lines is in them, which would change with its indentation, or they share
            a line with others.
    """
    first, last = statements[0], statements[-1]
    for node in (node for each in statements for node in ast.walk(each)):
        is_text = isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        )
        if is_text and isinstance(node, ast.expr) and node.lineno != node.end_lineno:
            raise EditRefusedError(f"{source.name}:{node.lineno} is a text of several lines")
    check_own_lines(source, statements)
    indentation = source.indentation(first.lineno)
    step = "\t" if indentation.endswith("\t") else _INDENTATION
    lines = range(first.lineno, (last.end_lineno or 0) + 1)
    starts = [source.line_start(line) for line in lines if source.part_of_line(line).strip()]
    return (insert_line(source, first.lineno, header), *(Splice(at, at, step) for at in starts))


def _has_no_gradients(source: SourceFile, statement: ast.AST) -> bool:
    contexts: list[ast.expr] = []
    if isinstance(statement, ast.With):
        contexts = [each.context_expr for each in statement.items]
    elif isinstance(statement, ast.FunctionDef):
        contexts = statement.decorator_list
    names = [source.meaning(each.func if isinstance(each, ast.Call) else each) for each in contexts]
    return any(name in _NO_GRADIENTS for name in names)


def _trains(node: ast.AST) -> bool:
    """Whether code makes or uses gradients, or hands out values while it runs."""
    for each in ast.walk(node):
        if isinstance(each, ast.Yield | ast.YieldFrom | ast.Await):
            return True
        if isinstance(each, ast.Attribute) and each.attr in ("backward", "zero_grad", "requires_grad_", "grad"):
            return True
    return isinstance(node, ast.FunctionDef) and node.name == "forward"


def forward_of(source: SourceFile, backward: ast.Expr) -> list[ast.stmt]:
    """The statements of the block before a backward pass from which its loss comes, without copies of the batch.

    Raises:
        EditRefusedError: It does not come from there.
    """
    block = source.block(backward)
    before = block[: block.index(backward)]
    needed = set(names_in(backward))
    first = last = None
    for position in range(len(before) - 1, -1, -1):
        statement = before[position]
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With | ast.Try):
            break
        if not isinstance(statement, ast.Assign) or not {n for to in statement.targets for n in names_in(to)} & needed:
            continue
        if _copies_only(statement.value):
            continue
        first, last = position, last if last is not None else position
        needed |= set(names_in(statement.value))
    if first is None or last is None:
        raise EditRefusedError(f"{source.name}:{backward.lineno} has its loss from elsewhere: open autocast there")
    return before[first : last + 1]


def _copies_only(value: ast.expr) -> bool:
    """Whether an expression only moves or takes values: `x.to(device)`, `batch["x"]`, `next(it)`, a tuple of such."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    for part in parts:
        name = part.func if isinstance(part, ast.Call) else part
        if isinstance(name, ast.Attribute) and name.attr in ("to", "cuda", "float", "long"):
            continue
        if (isinstance(name, ast.Name) and name.id == "next") or isinstance(name, ast.Subscript | ast.Constant):
            continue
        return False
    return True
