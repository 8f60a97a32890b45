"""Arguments of the optimizer, of DistributedDataParallel and of zero_grad."""

from __future__ import annotations

import ast

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import (
    MakeEdit,
    PlainFinding,
    SourceEdit,
    edit_line,
    find_call,
    lines_of,
    of_torch,
    project_line,
    set_arguments,
)
from perfdoctor.fixes.source_file import Splice, method_of


def fuse_optimizer(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`fused=True` or `foreach=True` of an optimizer of torch."""
    source, call = find_call(finding, project, is_optimizer, "an optimizer of torch")
    if any(each.arg in ("fused", "foreach", "differentiable") for each in call.keywords):
        raise EditRefusedError(f"{source.name}:{call.lineno} chooses the implementation itself")
    splices = set_arguments(source, call, {setting: "True"}, project)
    return edit_line("fused", setting, source, call.lineno, splices)


def set_ddp_argument(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """An argument of DistributedDataParallel; the setting is such as "bucket_cap_mb=25"."""
    source, call = find_call(finding, project, is_ddp, "a DistributedDataParallel")
    name, _, value = setting.partition("=")
    splices = set_arguments(source, call, {name: value}, project)
    return edit_line("ddp", setting, source, call.lineno, splices)


def drop_gradients(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`zero_grad()` in place of `zero_grad(set_to_none=False)`, of all that stand in the file."""
    files = [project_line(project, file) for file, _ in lines_of(finding)] or [*project.program_files()]
    for source in filter(None, files):
        calls = [each for each in source.nodes(ast.Call) if _fills_gradients(each)]
        if calls:
            splices = tuple(Splice(source.span(each.func)[1], source.span(each)[1], "()") for each in calls)
            first = calls[0].lineno
            return edit_line("zero-grad", setting, source, first, splices)
    raise EditRefusedError("no line of the program says zero_grad(set_to_none=False)")


def leave_bias_out(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`bias=False` of a convolution, or a linear layer, before a norm that has a bias of its own."""
    is_layer = of_torch("Conv1d", "Conv2d", "Conv3d", "Linear")
    source, call = find_call(finding, project, is_layer, "a convolution or linear layer")
    splices = set_arguments(source, call, {"bias": "False"}, project)
    return edit_line("no-bias", setting, source, call.lineno, splices, alters_numerics=True)


EDITS: dict[str, MakeEdit] = {
    "fused": fuse_optimizer,
    "ddp": set_ddp_argument,
    "zero-grad": drop_gradients,
    "no-bias": leave_bias_out,
}


def is_optimizer(meaning: str) -> bool:
    """Whether a dotted name is a class of torch.optim, wherever in it it is taken from."""
    return meaning.startswith("torch.optim.") and meaning.rpartition(".")[2][:1].isupper() and "lr_sched" not in meaning


def is_ddp(meaning: str) -> bool:
    """Whether a dotted name is DistributedDataParallel, wherever in torch.nn it is taken from."""
    return meaning.startswith("torch.nn.") and meaning.endswith(".DistributedDataParallel")


def _fills_gradients(call: ast.Call) -> bool:
    """Whether a call is `x.zero_grad(set_to_none=False)`, or the same by position."""
    if method_of(call) != "zero_grad":
        return False
    values = [*call.args, *(each.value for each in call.keywords)]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is False
