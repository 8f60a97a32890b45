"""Tensors that are copied or computed without need: copies into another order, and double precision."""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, edit_line, places_of, set_arguments
from perfdoctor.fixes.source_file import Splice

# What needs numbers in order, or would copy them itself.
_NEED_ORDER = ("view", "view_as", "data_ptr", "as_strided", "is_contiguous", "numpy", "tolist")
_CONVERT = ("float", "double", "half", "bfloat16", "int", "long", "bool", "type")
# What makes another precision than single: methods of modules and tensors, and types.
_METHODS = {"": ("double",), "half": ("half", "bfloat16")}
_TYPES = {"": ("float64", "double"), "half": ("float16", "half", "bfloat16")}


def drop_contiguous(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """No `.contiguous()` in the function of a line that copies: most ops take transposed views as they are."""
    for source, line in places_of(finding, project):
        here = [each for each in _contiguous_calls(source.tree) if each.lineno <= line <= (each.end_lineno or 0)]
        if not here:
            continue
        scope = source.scope(here[0])
        if any(source.meaning(each.func).startswith("torch.distributed.") for each in source.nodes(ast.Call)):
            raise EditRefusedError(f"{source.name} sends tensors to other ranks, which must be in order")
        needed = [each for each in ast.walk(scope) if isinstance(each, ast.Attribute) and each.attr in _NEED_ORDER]
        if needed:
            raise EditRefusedError(f"{source.name}:{needed[0].lineno} needs numbers in order: {needed[0].attr}")
        calls = _contiguous_calls(scope)
        splices = tuple(Splice(source.span(tensor)[1], source.span(call)[1], "") for call, tensor in calls.items())
        return edit_line("drop-contiguous", setting, source, here[0].lineno, splices)
    raise EditRefusedError("no .contiguous() stands on the line")


def use_float32(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """Single precision wherever a file asks for double, and for arrays of NumPy, which are double by default.

    With the setting "half", wherever it asks for half precision, and without autocast.
    """
    for source, _ in places_of(finding, project):
        autocasts = source.calls(lambda meaning: meaning.startswith("torch.") and "autocast" in meaning)
        casts = autocasts if setting else []
        lines = [each.lineno for each in casts]
        splices = [each for call in casts for each in set_arguments(source, call, {"enabled": "False"}, project)]
        of_autocast = {id(node) for call in autocasts for node in ast.walk(call)}
        for each in (each for each in source.nodes(ast.Attribute) if id(each) not in of_autocast):
            start, end = source.span(each)[1] - len(each.attr), source.span(each)[1]
            is_called = isinstance(call := next(source.parents(each)), ast.Call) and call.func is each and not call.args
            module, _, name = source.meaning(each).rpartition(".")
            is_type = module in ("torch", "numpy") and name in _TYPES[setting]
            single = "float32" if is_type else "float" if is_called and each.attr in _METHODS[setting] else None
            if single is not None:
                splices.append(Splice(start, end, single))
                lines.append(each.lineno)
        for call in source.calls(lambda meaning: meaning == "torch.from_numpy") if not setting else []:
            after = next(source.parents(call))
            if not isinstance(after, ast.Attribute) or after.attr not in _CONVERT:
                splices.append(Splice(source.span(call)[1], source.span(call)[1], ".float()"))
                lines.append(call.lineno)
        if not splices:
            continue
        return edit_line("float32", setting, source, lines[0], splices, alters_numerics=True)
    raise EditRefusedError(f"no line of the file makes {setting or 'double'} precision")


EDITS: dict[str, MakeEdit] = {"drop-contiguous": drop_contiguous, "float32": use_float32}


def _contiguous_calls(within: ast.AST) -> dict[ast.Call, ast.expr]:
    """The calls of `x.contiguous()` in some code, each with its x."""
    calls = [each for each in ast.walk(within) if isinstance(each, ast.Call) and not each.args and not each.keywords]
    return {
        each: each.func.value
        for each in calls
        if isinstance(each.func, ast.Attribute) and each.func.attr == "contiguous"
    }
