"""Formulas written out op by op, replaced by the one function that is the same, and forms that were measured."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, edit_line, names_in, places_of
from perfdoctor.fixes.source_file import SourceFile, Splice

# Where a formula is compared with a function: zero, both signs, and far out, where GELU's two forms differ.
_SAMPLES = (-6.0, -2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 1.7, 3.0, 7.0)
_CLOSE = 1e-6
# Of four dimensions the last two have these numbers, too.
_LAST_TWO = ({"-2", "-1"}, {"2", "3"})


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html, and silu.
FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "gelu({x})": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    'gelu({x}, approximate="tanh")': lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu({x})": lambda x: x * _sigmoid(x),
}
_OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CALLS: Mapping[str, Callable[..., float]] = {
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "sqrt": math.sqrt,
    "pow": math.pow,
    "exp": math.exp,
    "square": lambda x: x * x,
    "tensor": float,
    "float": float,
}


def fuse_activation(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """The function of torch for a formula of one tensor: they must agree at every sample, as numbers."""
    for source, line in places_of(finding, project):
        here = source.nodes_at(line, ast.BinOp)
        for formula in here:  # the outermost first
            function = _function_of(source, formula)
            if function is None:
                continue
            splices = (Splice(*source.span(formula), f"{_functional(source)}.{function}"),)
            return edit_line("fused-activation", setting, source, formula.lineno, splices)
    raise EditRefusedError("the formula stands on several lines, or is none of torch's functions")


def fuse_attention(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`scaled_dot_product_attention` for product, scale, mask, softmax and product, each a statement of one block."""
    for source, line in places_of(finding, project):
        scopes = source.nodes_at(line, ast.FunctionDef)
        for softmax in (each for scope in scopes[-1:] for each in ast.walk(scope) if isinstance(each, ast.Assign)):
            scores = _argument_of_softmax(source, softmax.value)
            if scores is not None:
                return _fuse(source, softmax, scores, setting)
    raise EditRefusedError("product, softmax and product do not stand there as statements of their own")


def write_form(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """A statement in place of the plain one at the line."""
    for source, line in places_of(finding, project):
        statements = [each for each in source.nodes_at(line, ast.stmt) if not hasattr(each, "body")]
        if len(statements) == 1:
            if ast.unparse(statements[0]) == ast.unparse(ast.parse(setting)):
                raise EditRefusedError(f"{source.name}:{line} is written so already")
            splice = Splice(*source.span(statements[0]), setting)
            return edit_line("cheaper-form", setting, source, line, (splice,), alters_numerics=True)
    raise EditRefusedError("the line is no plain statement any more")


EDITS: dict[str, MakeEdit] = {
    "cheaper-form": write_form,
    "fused-activation": fuse_activation,
    "fused-attention": fuse_attention,
}


def _functional(source: SourceFile) -> str:
    """The name by which the file knows torch.nn.functional."""
    for module in ("torch.nn.functional", "torch.nn", "torch"):
        name = source.name_of(module)
        if name:
            return name + "torch.nn.functional".removeprefix(module)
    raise EditRefusedError(f"{source.name} does not import torch by its name")


def _function_of(source: SourceFile, formula: ast.expr) -> str | None:
    """The function that a formula of one variable is; None where it is none, or is not known to be one."""
    variables = [each for each in _leaves(formula) if not source.meaning(each)]
    names = {source.code(each) for each in variables}
    if len(names) != 1:
        return None
    [name] = names
    for code, function in FUNCTIONS.items():
        try:
            values = [(_evaluate(source, formula, name, x), function(x)) for x in _SAMPLES]
        except (ValueError, ArithmeticError, KeyError, TypeError):
            return None
        if all(abs(value - wanted) <= _CLOSE for value, wanted in values):
            return code.format(x=name)
    return None


def _leaves(formula: ast.expr) -> list[ast.expr]:
    """The names and attributes that a formula takes values from, without those of the functions that it calls."""
    if isinstance(formula, ast.Name):
        return [formula]
    if isinstance(formula, ast.Call):
        method = [formula.func.value] if isinstance(formula.func, ast.Attribute) else []
        return [leaf for each in (*method, *formula.args) for leaf in _leaves(each)]
    if isinstance(formula, ast.Attribute):
        return [formula]
    children = [each for each in ast.iter_child_nodes(formula) if isinstance(each, ast.expr)]
    return [leaf for each in children for leaf in _leaves(each)]


def _evaluate(source: SourceFile, formula: ast.expr, name: str, x: float) -> float:
    """The value of a formula for one number.

    Raises:
        KeyError, TypeError, ValueError, ArithmeticError: It has something else in it than known arithmetic.
    """
    if isinstance(formula, ast.Constant) and isinstance(formula.value, int | float):
        return float(formula.value)
    if isinstance(formula, ast.Name | ast.Attribute):
        if source.meaning(formula) in ("math.pi", "numpy.pi", "torch.pi"):
            return math.pi
        if source.code(formula) == name:
            return x
        raise KeyError(name)
    if isinstance(formula, ast.UnaryOp) and isinstance(formula.op, ast.USub):
        return -_evaluate(source, formula.operand, name, x)
    if isinstance(formula, ast.BinOp):
        left, right = (_evaluate(source, each, name, x) for each in (formula.left, formula.right))
        return _OPERATORS[type(formula.op)](left, right)
    if isinstance(formula, ast.Call) and not formula.keywords:
        values = list(formula.args)
        called = formula.func.attr if isinstance(formula.func, ast.Attribute) else source.code(formula.func)
        if isinstance(formula.func, ast.Attribute) and not source.meaning(formula.func):
            values.insert(0, formula.func.value)
        return _CALLS[called](*(_evaluate(source, each, name, x) for each in values))
    raise TypeError(type(formula).__name__)


class _Scores(NamedTuple):
    """Query and key of a product, as code, and what it is multiplied by."""

    query: str
    key: str
    scale: str


def _fuse(source: SourceFile, softmax: ast.Assign, scores: ast.expr, setting: str) -> SourceEdit:
    block = source.block(softmax)
    at = block.index(softmax)
    chain: list[ast.stmt] = [softmax]
    product, masks = _read_scores(source, scores), list[str]()
    while product is None:
        inner = _unmask(source, scores, masks)
        if inner is not None:
            scores = inner
        elif isinstance(scores, ast.Name):
            assigned = next((each for each in reversed(block[:at]) if _assigns(each, scores.id)), None)
            if not isinstance(assigned, ast.Assign):
                raise EditRefusedError(f"{scores.id} does not come from a product in the same block")
            chain.append(assigned)
            at, scores = block.index(assigned), assigned.value
        else:
            raise EditRefusedError(f"{source.name}:{scores.lineno} does something else with the scores")
        product = _read_scores(source, scores)
    if len(masks) > 1:
        raise EditRefusedError(f"{source.name}:{softmax.lineno} has more than one mask")
    target = softmax.targets[0]
    names = {to.id for each in chain if isinstance(each, ast.Assign) for to in each.targets if isinstance(to, ast.Name)}
    if not isinstance(target, ast.Name) or len(softmax.targets) != 1:
        raise EditRefusedError(f"{source.name}:{softmax.lineno} keeps the weights in {source.code(target)}")
    scope = source.scope(softmax)
    uses = [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Name)
        and isinstance(each.ctx, ast.Load)
        and each.id in names
        and source.statement(each) not in chain
        and each.lineno > chain[-1].lineno
    ]
    last = next((each for each in source.parents(uses[0]) if isinstance(each, ast.expr)), None) if uses else None
    pair = None if last is None else _operands(source, last)
    if len(uses) != 1 or pair is None or pair[0] is not uses[0] or last is None:
        where = uses[0].lineno if uses else softmax.lineno
        raise EditRefusedError(f"{source.name}:{where} uses the weights for something else than a product (dropout?)")
    value = source.code(pair[1])
    mask = f", attn_mask={masks[0]}" if masks else ""
    code = (
        f"{_functional(source)}.scaled_dot_product_attention("
        f"{product.query}, {product.key}, {value}{mask}, scale={product.scale})"
    )
    lines = [Splice(source.line_start(e.lineno), source.line_start((e.end_lineno or 0) + 1), "") for e in chain]
    splices = (*lines, Splice(*source.span(last), code))
    return SourceEdit("fused-attention", setting, source, chain[-1].lineno, splices, code)


def _assigns(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(name in names_in(to) for to in statement.targets)


def _argument_of_softmax(source: SourceFile, value: ast.expr) -> ast.expr | None:
    """What softmax is taken of along the last dimension; None where an expression is no such thing."""
    if not isinstance(value, ast.Call):
        return None
    is_function = source.meaning(value.func) in ("torch.softmax", "torch.nn.functional.softmax")
    is_method = isinstance(value.func, ast.Attribute) and value.func.attr == "softmax" and not is_function
    if not is_function and not is_method:
        return None
    given = list(value.args) if is_function else [value.func.value, *value.args]  # type: ignore[attr-defined]
    dims = [each.value for each in value.keywords if each.arg == "dim"] + given[1:]
    if len(value.keywords) + len(value.args) != 1 + is_function or len(dims) != 1 or source.code(dims[0]) != "-1":
        return None
    return given[0]


def _operands(source: SourceFile, product: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of a matrix product; None where an expression is none."""
    if isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult):
        return product.left, product.right
    is_function = isinstance(product, ast.Call) and source.meaning(product.func) in ("torch.matmul", "torch.bmm")
    if isinstance(product, ast.Call) and is_function and len(product.args) == 2 and not product.keywords:
        return product.args[0], product.args[1]
    return None


def _read_scores(source: SourceFile, scores: ast.expr) -> _Scores | None:
    """Query, key and scale of `q @ k.transpose(-2, -1) * scale`; None where an expression is no such thing."""
    pair, scale = _operands(source, scores), "1.0"
    if pair is None and isinstance(scores, ast.BinOp) and isinstance(scores.op, ast.Mult | ast.Div):
        pair, other = _operands(source, scores.left), scores.right
        if pair is None and isinstance(scores.op, ast.Mult):
            pair, other = _operands(source, scores.right), scores.left
        scale = source.code(other) if isinstance(scores.op, ast.Mult) else f"1.0 / ({source.code(other)})"
    if pair is None:
        return None
    return _Scores(source.code(pair[0]), _transposed(source, pair[1]), scale)


def _transposed(source: SourceFile, key: ast.expr) -> str:
    """The code of a matrix with its last two dimensions exchanged."""
    if isinstance(key, ast.Attribute) and key.attr == "mT":
        return source.code(key.value)
    if isinstance(key, ast.Call) and isinstance(key.func, ast.Attribute):
        exchanged = {source.code(each) for each in key.args}
        if key.func.attr == "transpose" and exchanged in _LAST_TWO:
            return source.code(key.func.value)
    return f"{source.code(key)}.transpose(-2, -1)"


def _unmask(source: SourceFile, scores: ast.expr, masks: list[str]) -> ast.expr | None:
    """What a mask is put over, with the mask added to `masks`; None where an expression is no mask."""
    if isinstance(scores, ast.Call) and isinstance(scores.func, ast.Attribute):
        is_fill = scores.func.attr == "masked_fill" and len(scores.args) == 2
        if not is_fill or not _is_minus_infinity(source, scores.args[1]):
            return None
        masks.append(f"~({source.code(scores.args[0])})")
        return scores.func.value
    if isinstance(scores, ast.BinOp) and isinstance(scores.op, ast.Add) and _operands(source, scores.right) is None:
        masks.append(source.code(scores.right))
        return scores.left
    return None


def _is_minus_infinity(source: SourceFile, value: ast.expr) -> bool:
    code = source.code(value).replace("'", '"').replace(" ", "")
    return code in ('float("-inf")', '-float("inf")', "-math.inf", "-torch.inf", "-np.inf", "-1e9", "-1e10")
