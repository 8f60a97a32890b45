"""Switches of the whole program: the line that decides one, else a new line behind the imports of the script."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit, edit_line, insert_line
from perfdoctor.fixes.source_file import SourceFile, Splice
from perfdoctor.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class Switch:
    """A setting of torch.

    Attributes:
        action: The action that it carries out.
        call: The function that sets it by its first argument, or the attribute that is assigned.
        value: The code of its value; None for that of the setting.
        is_attribute: Whether it is assigned.
        is_added: Whether it gets a line where the program does not set it.
        alters_numerics: Whether results may differ by more than rounding in another order.
    """

    action: str
    call: str
    value: str | None
    is_attribute: bool = False
    is_added: bool = True
    alters_numerics: bool = False

    def line(self, torch: str, value: str) -> str:
        """The line that sets it."""
        name = f"{torch}{self.call.removeprefix('torch')}"
        return f"{name} = {value}" if self.is_attribute else f"{name}({value})"


SWITCHES = (
    Switch("threads", "torch.set_num_threads", None),
    Switch("tf32", "torch.set_float32_matmul_precision", '"high"', alters_numerics=True),
    Switch("tf32", "torch.backends.cuda.matmul.allow_tf32", "True", True, False, True),
    Switch("cudnn-benchmark", "torch.backends.cudnn.benchmark", "True", True),
    Switch("deterministic-off", "torch.use_deterministic_algorithms", "False", False, False),
    Switch("deterministic-off", "torch.backends.cudnn.deterministic", "False", True, False),
    Switch("debug-off", "torch.autograd.set_detect_anomaly", "False", False, False),
    Switch("debug-off", "torch.autograd.anomaly_mode.set_detect_anomaly", "False", False, False),
)
# Trainers take it as an argument.
_ANOMALY_ARGUMENT = "detect_anomaly"


def set_switch(action: str) -> MakeEdit:
    """The edit that sets all switches of an action."""

    def make(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:  # noqa: ARG001
        switches = [each for each in SWITCHES if each.action == action]
        for source in project.program_files():
            found = [splice for each in switches for splice in _set_where_decided(source, each, setting)]
            if action == "debug-off":
                found += _leave_out_anomalies(source)
            if found:
                at = source.line_of(found[0].start)
                numerics = any(each.alters_numerics for each in switches)
                return edit_line(action, setting, source, at, found, alters_numerics=numerics)
        added = next((each for each in switches if each.is_added), None)
        if added is None:
            raise EditRefusedError("no line of the program sets it: a library or a configuration does")
        return _add_line(added, setting, project)

    return make


def refuse_variable(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:  # noqa: ARG001
    """What must be set before Python starts is no line of the program."""
    raise EditRefusedError(
        "it is a variable of the environment, set where the program is started: no line of the source"
    )


EDITS: dict[str, MakeEdit] = {
    **{action: set_switch(action) for action in dict.fromkeys(each.action for each in SWITCHES)},
    "allocator": refuse_variable,
}


def _set_where_decided(source: SourceFile, switch: Switch, setting: str) -> Iterator[Splice]:
    """Splices of the values that the program sets.

    Raises:
        EditRefusedError: A value is computed, or is what is wanted already.
    """
    values: list[ast.expr]
    if switch.is_attribute:
        assigned = source.nodes(ast.Assign)
        values = [each.value for each in assigned if any(source.meaning(to) == switch.call for to in each.targets)]
    else:
        values = [each.args[0] for each in source.calls(lambda meaning: meaning == switch.call) if each.args]
    wanted = switch.value or setting
    for value in values:
        if not isinstance(value, ast.Constant):
            raise EditRefusedError(f"{source.name}:{value.lineno} computes it ({source.code(value)}): change that")
        if source.code(value) == wanted:
            if switch.is_added:
                raise EditRefusedError(f"{source.name}:{value.lineno} has it already")
            continue
        yield Splice(*source.span(value), wanted)


def _leave_out_anomalies(source: SourceFile) -> Iterator[Splice]:
    for call in source.calls(lambda meaning: meaning.startswith("torch.") and meaning.endswith(".detect_anomaly")):
        torch = source.code(call.func).rpartition(".")[0]
        yield Splice(*source.span(call), f"{torch}.set_detect_anomaly(False)" if torch else source.code(call))
    for call in source.nodes(ast.Call):
        for each in call.keywords:
            if each.arg == _ANOMALY_ARGUMENT and isinstance(each.value, ast.Constant) and each.value.value is True:
                yield Splice(*source.span(each.value), "False")


def _add_line(switch: Switch, setting: str, project: Project) -> SourceEdit:
    if project.script is None:
        raise EditRefusedError("the script that starts the program is not known")
    source = project.source(str(project.script))
    imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    if not imports:
        raise EditRefusedError(f"{source.name} imports nothing at its top: put the line where the program begins")
    torch = source.name_of("torch")
    code = switch.line(torch or "torch", switch.value or setting)
    line = (imports[-1].end_lineno or 0) + 1
    splices = [insert_line(source, line, code, "")]
    if not torch:
        splices.insert(0, insert_line(source, line, "import torch", ""))
    return SourceEdit(switch.action, setting, source, line, tuple(splices), code, switch.alters_numerics)
