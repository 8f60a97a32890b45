"""Code that moves: tensors made where they are used, `.item()` after the loop, the model compiled before it trains."""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.edits.call_arguments import is_optimizer
from perfdoctor.fixes.edits.contexts import wrap_statements
from perfdoctor.fixes.edits.loop_pauses import counter_of
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import (
    MakeEdit,
    PlainFinding,
    SourceEdit,
    edit_line,
    find_call,
    insert_line,
    places_of,
    set_arguments,
)
from perfdoctor.fixes.source_file import SourceFile, Splice, method_of

# How often a loop that logs in each step does so after the edit.
_READ_EVERY = 10
# Factories of torch that take device=; of the first ones the numbers depend on the device.
_RANDOM = ("randn", "rand", "randint", "randperm", "normal")
_FACTORIES = (*_RANDOM, "zeros", "ones", "full", "empty", "arange", "eye", "linspace", "tensor")


def make_on_device(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`torch.randn(..., device=d)` in place of `torch.randn(...).to(d)`."""
    for source, line in places_of(finding, project):
        for call in source.nodes_at(line, ast.Call):
            made = call.func.value if isinstance(call.func, ast.Attribute) else None
            if not isinstance(made, ast.Call):
                continue
            name = source.meaning(made.func)
            device = _device_of(source, call)
            if device is None or name.rpartition(".")[2] not in _FACTORIES or not name.startswith("torch."):
                continue
            start, end = source.span(made)[1], source.span(call)[1]
            splices = (*set_arguments(source, made, {"device": device}, project), Splice(start, end, ""))
            is_random = name.rpartition(".")[2] in _RANDOM
            return edit_line("make-on-device", setting, source, call.lineno, splices, alters_numerics=is_random)
    raise EditRefusedError("the line does not make and move the tensor at once: give device= where it is made")


def move_item(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """A sum or a list of `.item()` that is kept as tensors in the loop, and becomes numbers after it.

    What prints or logs the number does so every so many steps.
    """
    for source, line in places_of(finding, project):
        for call in source.nodes(ast.Call):
            if call.lineno == line and method_of(call) == "item":
                return _move_item_of(source, call, setting)
    raise EditRefusedError("no .item() stands on the line")


def compile_model(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`model.compile(...)` before the optimizer gets its parameters: in place, so that names of weights stay.

    Where the program compiles already, its call gets the argument.
    """
    arguments = {"default": {}, "reduce-overhead": {"mode": '"reduce-overhead"'}, "dynamic": {"dynamic": "True"}}
    wanted = arguments[setting or "default"]
    for source in project.program_files():
        for call in source.calls(lambda meaning: meaning == "torch.compile") if wanted else []:
            splices = set_arguments(source, call, wanted, project)
            return edit_line("compile", setting, source, call.lineno, splices, alters_numerics=True)
    given = ", ".join(f"{name}={value}" for name, value in wanted.items())
    return _before_optimizer("compile", f"compile({given})", finding, setting, project)


def keep_activations(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`block(x)` in place of `checkpoint(block, x)`."""
    source, call = find_call(finding, project, _is_checkpoint, "a checkpoint of activations")
    own = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn", "early_stop")
    given = [*call.args[1:], *(each for each in call.keywords if each.arg not in own)]
    if not call.args or isinstance(call.args[0], ast.Starred | ast.Lambda):
        raise EditRefusedError(f"{source.name}:{call.lineno} does not name what it calls")
    code = f"{source.code(call.args[0])}({', '.join(map(source.code, given))})"
    splices = (Splice(*source.span(call), code),)
    return edit_line("no-checkpoint", setting, source, call.lineno, splices)


def use_channels_last(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """The weights of the model in the layout that its convolutions compute in."""
    code = "to(memory_format={torch}.channels_last)"
    return _before_optimizer("channels-last", code, finding, setting, project)


EDITS: dict[str, MakeEdit] = {
    "make-on-device": make_on_device,
    "what-if-item": move_item,
    "compile": compile_model,
    "no-checkpoint": keep_activations,
    "channels-last": use_channels_last,
}


def _is_checkpoint(meaning: str) -> bool:
    """Whether a dotted name is torch's function for checkpoints of activations."""
    return meaning == "torch.utils.checkpoint.checkpoint"


def _device_of(source: SourceFile, call: ast.Call) -> str | None:
    """Where `.to(d)` or `.cuda()` moves a tensor; None where it does other things, too."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "cuda" and not call.args and not call.keywords:
        return '"cuda"'
    names = {each.arg for each in call.keywords}
    if call.func.attr != "to" or not names <= {"non_blocking"} or len(call.args) != 1:
        return None
    where = call.args[0]
    return None if source.meaning(where).startswith("torch.") else source.code(where)


def _move_item_of(source: SourceFile, call: ast.Call, setting: str) -> SourceEdit:
    statement = source.statement(call)
    scope = source.scope(call)
    loops = [each for each in source.parents(statement) if isinstance(each, ast.For | ast.While)]
    if not loops or next(source.parents(statement)) is not loops[0]:
        raise EditRefusedError(f"{source.name}:{call.lineno} is not in a loop's own lines")
    loop, item = loops[0], call.func
    assert isinstance(item, ast.Attribute)
    kept: ast.expr
    detached = Splice(source.span(item.value)[1], source.span(call)[1], ".detach()")
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        kept = statement.target
        start, end = source.span(statement.target)[1], source.span(statement.value)[0]
        # Not +=, which would change a tensor that somebody else has got meanwhile.
        splices = [Splice(start, end, f" = {source.code(kept)} + "), detached]
        after = "{name} = float({name})"
    elif (
        isinstance(statement, ast.Expr)
        and isinstance(append := statement.value, ast.Call)
        and isinstance(append.func, ast.Attribute)
        and append.func.attr == "append"
        and append.args == [call]
    ):
        kept = append.func.value
        splices, after = [detached], "{name}[:] = [float(value) for value in {name}]"
    elif isinstance(statement, ast.Expr):
        code = f"if {counter_of(source, call)} % {_READ_EVERY} == 0:"
        wrapped = wrap_statements(source, [statement], code)
        return SourceEdit("what-if-item", setting, source, statement.lineno, wrapped, code, intended_change="files")
    else:
        raise EditRefusedError(f"{source.name}:{call.lineno} uses the number at once: read it every N steps")
    if not isinstance(kept, ast.Name):
        raise EditRefusedError(f"{source.name}:{call.lineno} keeps it in {source.code(kept)}, which others may read")
    elsewhere = [
        each
        for each in ast.walk(loop)
        if isinstance(each, ast.Name) and each.id == kept.id and source.statement(each) is not statement
    ]
    if any(not any(isinstance(around, ast.If) for around in _within(source, each, loop)) for each in elsewhere):
        raise EditRefusedError(f"{kept.id} is read in every step at {source.name}:{elsewhere[0].lineno}")
    if isinstance(scope, ast.Lambda) or loop.orelse:
        raise EditRefusedError(f"{source.name}:{call.lineno} is in a loop with an else")
    end_line = (loop.end_lineno or 0) + 1
    code = after.format(name=kept.id)
    splices.append(insert_line(source, end_line, code, source.indentation(loop.lineno)))
    return edit_line("what-if-item", setting, source, call.lineno, splices)


def _within(source: SourceFile, node: ast.AST, loop: ast.AST) -> list[ast.AST]:
    found = []
    for each in source.parents(node):
        if each is loop:
            break
        found.append(each)
    return found


def _before_optimizer(action: str, method: str, finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """A line that calls a method of the model, before the statement that makes its optimizer."""
    place = finding["location"] and {**finding["location"], "line": None}  # its line is none of the optimizer's
    source, call = find_call({**finding, "location": place}, project, is_optimizer, "an optimizer of torch")
    models = [
        source.code(each.func.value)
        for each in (node for argument in call.args[:1] for node in ast.walk(argument))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "parameters"
    ]
    torch = source.name_of("torch")
    if len(models) != 1 or not torch:
        raise EditRefusedError(f"{source.name}:{call.lineno} does not say which model it trains")
    statement = source.statement(call)
    code = f"{models[0]}.{method.format(torch=torch)}"
    said = code if action == "channels-last" else f"{models[0]}.compile("
    if any(source.code(each).startswith(said) for each in source.nodes(ast.Call)):
        raise EditRefusedError(f"{source.name} does it already")
    splices = (insert_line(source, statement.lineno, code),)
    return SourceEdit(action, setting, source, statement.lineno, splices, code, action == "compile")
