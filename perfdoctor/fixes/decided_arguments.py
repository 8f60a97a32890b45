"""Where a value is decided if not where it is used: a variable, attribute, parameter, option or dictionary."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_file import SourceFile, method_of

# What these have by the name of a function of the program is not that.
_OF_OTHERS = {"torch", "numpy", *sys.stdlib_module_names}


def find_constant(source: SourceFile, value: ast.expr, argument: str, project: Project) -> ast.Constant | None:
    """The constant that an argument has by way of a variable, a parameter, or an option's default.

    Args:
        source: The file of the call.
        value: What the call passes: `WORKERS`, `workers`, `args.workers`, `self.workers`.
        argument: The name of the argument; a variable that is used for anything else as well decides more than that. ""
            where it is no argument: then the statement must be the only one that uses the variable.
        project: The user's program, with the words of its command line.

    Returns:
        The constant, in the same file; None where there is none, or where it is not known to decide.
    """
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        if value.value.id == "self":
            return _passed_to_constructor(source, value, project)
        return _default_of_option(source, value.attr, project)
    if not isinstance(value, ast.Name):
        return None
    scope = source.scope(value)
    if isinstance(scope, ast.FunctionDef) and value.id in {each.arg for each in _parameters(scope)}:
        return _default_of_parameter(source, scope, value.id, project)
    uses = [each for each in source.nodes(ast.Name) if each.id == value.id]
    stores = [each for each in uses if not isinstance(each.ctx, ast.Load)]
    place = source.statement(value)
    is_only_this = all(
        _is_argument(source, each, argument) if argument else source.statement(each) is place
        for each in uses
        if each not in stores
    )
    statement = source.statement(stores[0]) if len(stores) == 1 else None
    if not is_only_this or not isinstance(statement, ast.Assign | ast.AnnAssign):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    is_constant = targets == stores and isinstance(statement.value, ast.Constant)
    is_seen = source.scope(stores[0]) in (scope, source.tree) and not _is_conditional(source, statement)
    return statement.value if is_constant and is_seen else None  # type: ignore[return-value]


def read_keywords(source: SourceFile, call: ast.Call) -> Mapping[str, ast.expr]:
    """The values of the keyword arguments of a call, those of a dictionary that the file writes out among them.

    Raises:
        EditRefusedError: Some come from a dictionary whose keys are not known, or from a list.
    """
    whole = [_items_of(source, each.value) for each in call.keywords if each.arg is None]
    if None in whole or any(isinstance(each, ast.Starred) for each in call.args):
        name, place = source.code(call.func), f"{source.name}:{call.lineno}"
        raise EditRefusedError(f"{place} passes arguments of {name} as a whole: change them there")
    return _by_name(call.keywords) | {key: value for items in whole for key, value in (items or {}).items()}


def _items_of(source: SourceFile, dictionary: ast.expr) -> dict[str, ast.expr] | None:
    """The items of a dictionary that nothing changes between its one assignment and calls that take it as a whole."""
    if isinstance(dictionary, ast.Name):
        name = dictionary
        uses = [each for each in source.nodes(ast.Name) if each.id == dictionary.id]
        stores = [each for each in uses if not isinstance(each.ctx, ast.Load)]
        passed = {id(each.value) for each in source.nodes(ast.keyword) if each.arg is None}
        statement = source.statement(stores[0]) if len(stores) == 1 else None
        is_known = isinstance(statement, ast.Assign) and statement.targets == stores
        if not is_known or not all(id(each) in passed for each in uses if each not in stores):
            return None
        items = _items_of(source, statement.value)  # type: ignore[union-attr]
        # What several calls share is decided for all of them.
        return items if items is None or len(uses) == len(stores) + 1 else dict.fromkeys(items, name)
    if isinstance(dictionary, ast.IfExp):
        either = [_items_of(source, each) for each in (dictionary.body, dictionary.orelse)]
        # What only one of them has is decided by the condition.
        return None if None in either else {key: dictionary for items in either for key in items or ()}
    if isinstance(dictionary, ast.Call) and source.code(dictionary.func) == "dict" and not dictionary.args:
        return None if any(each.arg is None for each in dictionary.keywords) else _by_name(dictionary.keywords)
    if not isinstance(dictionary, ast.Dict):
        return None
    keys = [each.value if isinstance(each, ast.Constant) else None for each in dictionary.keys]
    return None if None in keys else dict(zip(map(str, keys), dictionary.values, strict=True))


def _by_name(keywords: list[ast.keyword]) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in keywords if each.arg is not None}


def _is_argument(source: SourceFile, use: ast.Name, argument: str) -> bool:
    parent = next(source.parents(use))
    return isinstance(parent, ast.keyword) and parent.arg == argument


def _is_conditional(source: SourceFile, statement: ast.stmt) -> bool:
    return not isinstance(next(source.parents(statement)), ast.FunctionDef | ast.Module)


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _default_of_parameter(
    source: SourceFile, function: ast.FunctionDef, name: str, project: Project
) -> ast.Constant | None:
    """The default of a parameter that no call of the function passes, and that the function does not set itself."""
    by_place = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip([each.arg for each in by_place][::-1], function.args.defaults[::-1], strict=False))
    by_name = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    defaults |= {each.arg: value for each, value in by_name if value is not None}
    place = [each.arg for each in by_place].index(name) if name in {each.arg for each in by_place} else None
    value = defaults.get(name)
    is_set = any(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load)
        for each in ast.walk(function)
    )
    calls = [call for _, call in calls_of(function.name, source, project)]
    is_passed = any(
        name in {each.arg for each in call.keywords}
        or None in {each.arg for each in call.keywords}
        or any(isinstance(each, ast.Starred) for each in call.args)
        or (place is not None and len(call.args) > place)
        for call in calls
    )
    return value if isinstance(value, ast.Constant) and calls and not is_set and not is_passed else None


def _passed_to_constructor(source: SourceFile, value: ast.Attribute, project: Project) -> ast.Constant | None:
    """What the one call of a class passes for an attribute that `__init__` sets, and that nothing else uses."""
    uses = [each for each in source.nodes(ast.Attribute) if each.attr == value.attr]
    stores = [each for each in uses if isinstance(each.ctx, ast.Store)]
    place = source.statement(value)
    if len(stores) != 1 or any(source.statement(each) is not place for each in uses if each not in stores):
        return None
    statement, init = source.statement(stores[0]), source.scope(stores[0])
    if not isinstance(statement, ast.Assign) or not isinstance(init, ast.FunctionDef) or init.name != "__init__":
        return None
    target, passed = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(passed, ast.Tuple) and len(target.elts) == len(passed.elts):
        passed = passed.elts[target.elts.index(stores[0])]
    names = [each.arg for each in _parameters(init)]
    owner = next(source.parents(init))
    calls = calls_of(owner.name, source, project) if isinstance(owner, ast.ClassDef) else []
    is_known = isinstance(passed, ast.Name) and passed.id in names and len(calls) == 1 and calls[0][0] is source
    if not is_known:
        return None
    call, name = calls[0][1], passed.id  # type: ignore[attr-defined]
    given = {**dict(zip(names[1:], call.args, strict=False)), **_by_name(call.keywords)}.get(name)
    return given if isinstance(given, ast.Constant) else None


def calls_of(name: str, source: SourceFile, project: Project) -> list[tuple[SourceFile, ast.Call]]:
    """The calls of a function or class by its name, in all files of the program."""
    return [
        (file, call)
        for file in project.program_files(source.name)
        for call in file.nodes(ast.Call)
        if file.code(call.func).rpartition(".")[2] == name
        and file.meaning(call.func).partition(".")[0] not in _OF_OTHERS
    ]


def _default_of_option(source: SourceFile, name: str, project: Project) -> ast.Constant | None:
    """The default of the one option of argparse by that name which the command line does not give."""
    options = [call for call in source.nodes(ast.Call) if _option_of(call) == name]
    is_set = any(each.attr == name and not isinstance(each.ctx, ast.Load) for each in source.nodes(ast.Attribute))
    if len(options) != 1 or is_set:
        return None
    [option] = options
    flags = {each.value for each in option.args if isinstance(each, ast.Constant)}
    is_given = any(word.partition("=")[0] in flags for word in project.command)
    default = _by_name(option.keywords).get("default")
    return default if isinstance(default, ast.Constant) and not is_given else None


def _option_of(call: ast.Call) -> str:
    """The attribute in which a call of add_argument leaves its value; "" for other calls."""
    if method_of(call) != "add_argument":
        return ""
    flags = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    named = _by_name(call.keywords).get("dest")
    if isinstance(named, ast.Constant):
        return str(named.value)
    long = [each for each in flags if each.startswith("--")] or flags
    return long[0].lstrip("-").replace("-", "_") if long else ""
