"""Repairs: gradients that are unscaled before they are clipped or applied, losses computed in single precision.

They alter results on purpose, because results are wrong without them.
"""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.edits.call_arguments import is_optimizer
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import (
    MakeEdit,
    PlainFinding,
    SourceEdit,
    call_method,
    check_own_lines,
    edit_line,
    find_call,
    insert_line,
    of_torch,
    places_of,
)
from perfdoctor.fixes.source_file import SourceFile, Splice, method_of

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
# Losses of torch.nn.functional and their modules whose targets are numbers of the same type as what the model returns.
_OF_NUMBERS = {
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss"),
}
_LOSSES = {*_OF_NUMBERS, "cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"}


def unscale_gradients(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`scaler.unscale_(optimizer)` before a clip; with the setting "step", the optimizer stepped by the scaler."""
    if setting == "step":
        return _step_by_scaler(finding, setting, project)
    for source, line in places_of(finding, project):
        clips = [each for each in source.nodes_at(line, ast.Call) if source.code(each.func).endswith(_CLIPS)]
        if not clips:
            continue
        statement, scope = source.statement(clips[0]), source.scope(clips[0])
        scalers = _scalers_of(source)
        steps = [
            each for each in source.nodes(ast.Call) if source.scope(each) is scope and _steps(source, each, scalers)
        ]
        if any(method_of(each) == "unscale_" for each in ast.walk(scope)):
            raise EditRefusedError(f"{source.name} has it already, elsewhere: clip after it")
        if len(steps) != 1 or steps[0].lineno < line:
            raise EditRefusedError(f"{source.name}:{line} is not followed by the one step of a scaler")
        [step] = steps
        code = f"{source.code(step.func.value)}.unscale_({source.code(step.args[0])})"  # type: ignore[attr-defined]
        check_own_lines(source, [statement])
        splices = (insert_line(source, statement.lineno, code),)
        return SourceEdit("unscale", setting, source, statement.lineno, splices, code, intended_change="results")
    raise EditRefusedError("no clip of gradients stands on the line")


def compute_loss_in_float32(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`.float()` of what goes into the loss, and of its targets where these are numbers of the same type."""
    for source, line in places_of(finding, project):
        for call in source.nodes_at(line, ast.Call):
            name = _loss_of(source, call)
            if name not in _LOSSES:
                continue
            if len(call.args) < 2 or any(isinstance(each, ast.Starred) for each in call.args):
                raise EditRefusedError(f"{source.name}:{call.lineno} does not pass results and targets by position")
            cast = [each for each in call.args[: 2 if name in _OF_NUMBERS else 1] if method_of(each) != "float"]
            if not cast:
                raise EditRefusedError(f"{source.name}:{call.lineno} has it already")
            splices = [splice for each in cast for splice in call_method(source, each, ".float()")]
            return edit_line("loss-in-float32", setting, source, call.lineno, splices, intended_change="results")
    raise EditRefusedError("no loss of torch is computed on the line")


EDITS: dict[str, MakeEdit] = {"unscale": unscale_gradients, "loss-in-float32": compute_loss_in_float32}


def _step_by_scaler(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    source, made = find_call(finding, project, is_optimizer, "an optimizer of torch")
    statement = source.statement(made)
    scalers = _scalers_of(source)
    if len(scalers) != 1 or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise EditRefusedError(f"{source.name} does not say which scaler and optimizer belong together")
    [scaler], optimizer = scalers, source.code(statement.targets[0])
    steps = [each for each in source.nodes(ast.Expr) if source.code(each.value) == f"{optimizer}.step()"]
    if len(steps) != 1:
        raise EditRefusedError(f"{len(steps)} lines of {source.name} step {optimizer}")
    [step] = steps
    code = f"{scaler}.step({optimizer})"
    splices = [Splice(*source.span(step), code)]
    if f"{scaler}.update()" not in {source.code(each) for each in source.nodes(ast.Call)}:
        check_own_lines(source, [step])
        end, indentation = (step.end_lineno or 0) + 1, source.indentation(step.lineno)
        splices.append(insert_line(source, end, f"{scaler}.update()", indentation))
    return SourceEdit("unscale", setting, source, step.lineno, tuple(splices), code, intended_change="results")


def _scalers_of(source: SourceFile) -> set[str]:
    """What scales a loss before its backward pass: "scaler" of `scaler.scale(loss).backward()`."""
    return {
        source.code(each.func.value)
        for each in source.nodes(ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr == "scale" and len(each.args) == 1
    }


def _steps(source: SourceFile, call: ast.Call, scalers: set[str]) -> bool:
    """Whether a call is `scaler.step(optimizer)`."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and len(call.args) == 1
        and source.code(call.func.value) in scalers
    )


def _loss_of(source: SourceFile, call: ast.Call) -> str:
    """The function of torch that a call computes a loss with, or the module; "" for other calls."""
    meaning = source.meaning(call.func)
    if meaning.startswith("torch.nn.functional."):
        return meaning.rpartition(".")[2]
    called = source.code(call.func)
    made = [
        source.meaning(each.value.func).rpartition(".")[2]
        for each in source.nodes(ast.Assign)
        if isinstance(each.value, ast.Call) and called in map(source.code, each.targets)
        if of_torch(*_LOSSES)(source.meaning(each.value.func))
    ]
    return made[0] if len(made) == 1 else ""
