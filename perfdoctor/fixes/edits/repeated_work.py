"""Work that is done without need: again for the same arguments, row by row, for padding."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import NamedTuple

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.decided_arguments import calls_of
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import (
    MakeEdit,
    PlainFinding,
    SourceEdit,
    check_own_lines,
    edit_line,
    import_module,
    insert_line,
    names_in,
    places_of,
)
from perfdoctor.fixes.source_file import SourceFile, Splice, method_of

# What reads or changes something outside of its arguments.
_IMPURE_BUILTINS = ("open", "input", "print", "exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "next")
# Modules whose functions give the same result for the same arguments, but for those below.
_PURE_MODULES = ("math", "re", "json", "string", "unicodedata", "itertools", "operator", "numpy", "torch", "struct")
_IMPURE_NAMES = re.compile(r"rand|seed|multinomial|bernoulli|shuffle|permutation|\.(normal|load|save|.*file)\b")
# Arguments of these types are keys by their value, all others may be keys by which object they are; and what makes
# tensors of them.
_VALUES = (str, bytes, int, float, tuple, frozenset)
_FROM_PYTHON = ("tensor", "as_tensor", "array", "asarray", "frombuffer")
# Methods that change what they are called on; those of torch end in an underscore.
_CHANGING = ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "add")


def remember_results(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`functools.lru_cache` on a function that gives the same result for the same arguments; as many as the setting."""
    for source, line in places_of(finding, project):
        function = _function_at(source, line)
        if function is None:
            continue
        if function.decorator_list:
            raise EditRefusedError(f"{source.name}:{function.lineno} is decorated already")
        if _takes_tensors(source, function):
            raise EditRefusedError(f"{function.name} takes tensors or other objects, which are no keys by their values")
        why = _find_impurity(source, function, ())
        if why:
            raise EditRefusedError(f"{function.name} may give another result each time: {why}")
        for file, call in calls_of(function.name, source, project):
            changing = _find_change_of_result(file, call)
            if file.scope(call) is not function and changing is not None:
                where = f"{file.name}:{changing.lineno}"
                raise EditRefusedError(f"{where} may change what {function.name} returns, which would be remembered so")
        functools = source.name_of("functools")
        code = f"@{functools or 'functools'}.lru_cache(maxsize={setting})"
        imports = [] if functools else [import_module(source, "functools")]
        splices = (*imports, insert_line(source, function.lineno, code))
        # Whether its arguments can be keys is known when it runs.
        return SourceEdit("remember", setting, source, function.lineno, splices, code, alters_numerics=True)
    raise EditRefusedError("the line is in no function of its own that makes a sample from its arguments alone")


def compute_rows_at_once(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`torch.vmap` in place of a loop that computes row by row and stacks the rows."""
    for source, line in places_of(finding, project):
        torch = source.name_of("torch")
        stacks = source.calls(lambda meaning: meaning == "torch.stack") if torch else []
        for rows in filter(None, (_rows_of(source, each, line) for each in stacks)):
            taken = list(_rows_in(source, rows.value, rows.counter))
            tensors = list(dict.fromkeys(source.code(each.value) for each in taken))
            names = [each for each in ast.walk(rows.value) if isinstance(each, ast.Name)]
            inside = {id(name) for each in taken for name in ast.walk(each)}
            if any(each.id in (rows.counter, *tensors) and id(each) not in inside for each in names):
                raise EditRefusedError(
                    f"{source.name}:{rows.value.lineno} uses more than row {rows.counter} of each tensor"
                )
            if rows.counted not in tensors or not all(each.isidentifier() for each in tensors):
                raise EditRefusedError(f"{source.name}:{rows.value.lineno} does not take all rows of {rows.counted}")
            inner = tuple(Splice(source.span(each.value)[1], source.span(each)[1], "") for each in taken)
            body, given = " ".join(source.part(*source.span(rows.value), inner).split()), ", ".join(tensors)
            dims = [source.code(each) for each in (*rows.stack.args[1:], *(k.value for k in rows.stack.keywords))]
            out = "" if dims in ([], ["0"]) else f", out_dims={dims[0]}"
            code = f"{torch}.vmap(lambda {given}: {body}{out})({given})"
            splices = (*rows.left_out, Splice(*source.span(rows.stack), code))
            return SourceEdit("rows-at-once", setting, source, rows.stack.lineno, splices, code, alters_numerics=True)
    raise EditRefusedError("no loop over the rows of tensors stands there whose results are stacked and nothing else")


def pad_to_longest(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`padding="longest"` of tokenizers and collators, which pad to "max_length"."""
    file = finding["location"]["file"] if finding["location"] else None
    found = [
        (source, each)
        for source in project.program_files(file)
        for each in source.nodes(ast.Constant)
        if each.value == "max_length" and _chooses_padding(source, each)
    ]
    if len(found) != 1:
        raise EditRefusedError(f"{len(found) or 'no'} line{'s' * (len(found) > 1)} of the program choose the padding")
    [(source, value)] = found
    if isinstance(source.scope(value), ast.Lambda) or any(method_of(each) == "map" for each in source.parents(value)):
        raise EditRefusedError(f"{source.name}:{value.lineno} pads items one by one: pad in the collate function")
    splices = (Splice(*source.span(value), '"longest"'),)
    return edit_line("pad-longest", setting, source, value.lineno, splices, alters_numerics=True)


EDITS: dict[str, MakeEdit] = {
    "remember": remember_results,
    "rows-at-once": compute_rows_at_once,
    "pad-longest": pad_to_longest,
}


def _chooses_padding(source: SourceFile, value: ast.Constant) -> bool:
    """Whether a constant is an argument `padding`, or one of a collator."""
    parent = next(source.parents(value))
    if isinstance(parent, ast.keyword):
        return parent.arg == "padding"
    return isinstance(parent, ast.Call) and value in parent.args and "ollat" in source.code(parent.func)


class _Rows(NamedTuple):
    """Rows that are computed one by one and stacked.

    Attributes:
        stack: The call of torch.stack.
        value: A row.
        counter: The variable that counts the rows.
        counted: The tensor whose rows are counted.
        left_out: The list and the loop, which go.
    """

    stack: ast.Call
    value: ast.expr
    counter: str
    counted: str
    left_out: tuple[Splice, ...] = ()


def _rows_of(source: SourceFile, stack: ast.Call, line: int) -> _Rows | None:
    """The rows that a call stacks, if a line is among what computes them; None where they are no such rows."""
    given = stack.args[0] if stack.args else None
    if len(stack.args) + len(stack.keywords) > 2 or any(each.arg != "dim" for each in stack.keywords):
        return None
    if isinstance(given, ast.ListComp) and len(given.generators) == 1 and not given.generators[0].ifs:
        counted = _counted_rows(source, given.generators[0].target, given.generators[0].iter)
        is_there = given.lineno <= line <= (given.end_lineno or 0)
        return _Rows(stack, given.elt, *counted) if counted and is_there else None
    uses = [each for each in source.nodes(ast.Name) if isinstance(given, ast.Name) and each.id == given.id]
    uses = [each for each in uses if source.scope(each) is source.scope(stack)]
    loop = next((each for each in source.nodes_at(line, ast.For)[-1:] if len(each.body) == 1 and not each.orelse), None)
    if loop is None or len(uses) != 3 or not isinstance(given, ast.Name):
        return None
    counted, call = _counted_rows(source, loop.target, loop.iter), getattr(loop.body[0], "value", None)
    block = source.block(loop)
    made = block[max(block.index(loop) - 1, 0)]
    if not counted or not isinstance(call, ast.Call) or len(call.args) != 1:
        return None
    if source.code(call.func) != f"{given.id}.append" or source.code(made) != f"{given.id} = []":
        return None
    check_own_lines(source, [made, loop])
    whole = Splice(source.line_start(made.lineno), source.line_start((loop.end_lineno or 0) + 1), "")
    return _Rows(stack, call.args[0], *counted, (whole,))


def _counted_rows(source: SourceFile, target: ast.expr, count: ast.expr) -> tuple[str, str] | None:
    """The variable of a loop and the tensor whose rows it counts: ("i", "x") of `for i in range(x.shape[0])`."""
    is_range = isinstance(count, ast.Call) and source.code(count.func) == "range" and len(count.args) == 1
    if not is_range or not isinstance(target, ast.Name):
        return None
    code = source.code(count.args[0])  # type: ignore[attr-defined]
    for before, behind in (("", ".shape[0]"), ("", ".size(0)"), ("len(", ")")):
        if code.startswith(before) and code.endswith(behind):
            return target.id, code.removeprefix(before).removesuffix(behind)
    return None


def _rows_in(source: SourceFile, value: ast.expr, index: str) -> Iterator[ast.Subscript]:
    """The parts of an expression such as `x[i]`."""
    for each in ast.walk(value):
        if isinstance(each, ast.Subscript) and source.code(each.slice) == index:
            yield each


def _function_at(source: SourceFile, line: int) -> ast.FunctionDef | None:
    """The function of the file itself in which a line stands, else the one that the line calls; no collate function.

    Of a line that begins a function or a method the calls in all of it count.
    """
    given = {each.arg: each.value for call in source.nodes(ast.Call) for each in call.keywords}
    collate = source.code(given["collate_fn"]) if "collate_fn" in given else ""
    of_file = {each.name: each for each in source.tree.body if isinstance(each, ast.FunctionDef)}
    around = source.nodes_at(line, ast.FunctionDef)
    inside = ast.walk(around[-1]) if around and around[-1].lineno == line else source.nodes_at(line, ast.Call)
    called = [of_file.get(source.code(each.func)) for each in inside if isinstance(each, ast.Call)]
    own = [each for each in around if of_file.get(each.name) is each]
    makes_samples = [each for each in (*own, *called) if each and each.args.args and each.name not in collate]
    return makes_samples[0] if makes_samples else None


def _takes_tensors(source: SourceFile, function: ast.FunctionDef) -> bool:
    """Whether a function may use a parameter as a tensor: it asks it for what no value has, or gives it to torch."""
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    attributes = [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute) and not any(hasattr(kind, each.attr) for kind in _VALUES)
    ]
    calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
    given = [
        argument
        for call in calls
        if source.meaning(call.func).startswith(("torch.", "numpy.")) and method_of(call) not in _FROM_PYTHON
        for argument in call.args
    ]
    return any(isinstance(each, ast.Name) and each.id in own for each in (*(a.value for a in attributes), *given))


def _find_impurity(source: SourceFile, function: ast.FunctionDef, seen: tuple[str, ...]) -> str:
    """Why a function may give another result for the same arguments, or change something; "" where it cannot."""
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    own |= {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    for node in ast.walk(function):
        place = f"{source.name}:{getattr(node, 'lineno', function.lineno)}"
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom | ast.Await):
            return f"{place} keeps or hands out something"
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            return f"{place} changes {source.code(node.value)}"
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in own:
            continue
        why = _find_impure_name(source, node, seen)
        if why:
            return f"{place} {why}"
    return ""


def _find_impure_name(source: SourceFile, name: ast.Name, seen: tuple[str, ...]) -> str:
    """Why a name from outside of a function may mean something else each time; "" where it cannot."""
    whole = next((each for each in source.parents(name) if not isinstance(each, ast.Attribute)), name)
    dotted = max((each for each in ast.walk(whole) if _begins_with(each, name)), key=source.span, default=name)
    meaning = source.meaning(dotted)
    if meaning:
        is_pure = meaning.partition(".")[0] in _PURE_MODULES and not _IMPURE_NAMES.search(meaning)
        return "" if is_pure else f"uses {meaning}"
    functions = [each for each in source.tree.body if isinstance(each, ast.FunctionDef) and each.name == name.id]
    if functions:
        return "" if name.id in seen else _find_impurity(source, functions[0], (*seen, name.id))
    uses = [each for each in source.nodes(ast.Name) if each.id == name.id]
    stores = [each for each in uses if not isinstance(each.ctx, ast.Load)]
    if not stores and name.id in vars(builtins):
        return f"calls {name.id}" if name.id in _IMPURE_BUILTINS else ""
    is_constant = len(stores) == 1 and source.statement(stores[0]) in source.tree.body
    is_changed = any(
        _changes_in_place(parent) for each in uses for parent in source.parents(each) if _holds(parent, each)
    )
    return "" if is_constant and not is_changed else f"uses {name.id}, which changes"


def _find_change_of_result(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """What changes the result of a call in place, by any name of the same function that goes back to it."""
    scope = source.scope(call)
    within = list(ast.walk(source.statement(call) if scope is source.tree else scope))
    bound = [(each.target, each.iter) for each in within if isinstance(each, ast.For | ast.comprehension)]
    bound += [(target, each.value) for each in within if isinstance(each, ast.Assign) for target in each.targets]
    names, before = set[str](), -1
    while before < len(names):
        before = len(names)
        for target, value in bound:
            if call in ast.walk(value) or names & set(names_in(value)):
                names |= set(names_in(target))
    for each in within:
        if isinstance(each, ast.expr) and _changes_in_place(each):
            changed = each.func if isinstance(each, ast.Call) else each.value  # type: ignore[attr-defined]
            if call in ast.walk(changed) or names & set(names_in(changed)):
                return each
    return None


def _begins_with(node: ast.AST, name: ast.Name) -> bool:
    """Whether a dotted name begins with a name: `torch.tensor` with `torch`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node is name


def _holds(parent: ast.AST, name: ast.Name) -> bool:
    """Whether an expression changes the object of a name itself, and not something that it is only an argument of."""
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Attribute) and parent.func.value is name
    return isinstance(parent, ast.Subscript) and parent.value is name


def _changes_in_place(node: ast.AST) -> bool:
    """Whether a piece of code changes an object that others may have."""
    method = method_of(node)
    if method:
        return method in _CHANGING or (method.endswith("_") and not method.startswith("_"))
    return isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
