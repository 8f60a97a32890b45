"""Arguments of the DataLoader: workers, how long they live, pinned batches."""

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
    of_torch,
    places_of,
    set_arguments,
)
from perfdoctor.fixes.source_file import SourceFile, method_of

# https://docs.pytorch.org/docs/stable/data.html: the parameters of DataLoader that can be given by position.
_ORDER = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"),
    *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
# Without workers these must not be said.
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")


def set_workers(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`num_workers` of a loader, with workers that live through all epochs."""
    source, call = _find_loader(finding, project)
    given = {each.arg for each in call.keywords}
    wanted: dict[str, str | None] = {"num_workers": setting}
    if setting == "0":
        wanted |= dict.fromkeys(name for name in _OF_WORKERS if name in given)
    elif call.args and _is_iterable(source, call.args[0], project):
        raise EditRefusedError(
            f"the data set of {source.name}:{call.lineno} is an IterableDataset: each worker would yield all of it"
        )
    elif "persistent_workers" not in given:
        wanted["persistent_workers"] = "True"
    return _edit("workers", setting, (source, call), wanted, project)


def keep_workers(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`persistent_workers=True`."""
    return _edit("persistent-workers", setting, _find_loader(finding, project), {"persistent_workers": "True"}, project)


def set_prefetch(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`prefetch_factor`."""
    return _edit("prefetch-factor", setting, _find_loader(finding, project), {"prefetch_factor": setting}, project)


def pin_batches(finding: PlainFinding, setting: str, project: Project) -> SourceEdit:
    """`pin_memory=True`, or `non_blocking=True` of the copies on the line of the finding."""
    if setting != "non-blocking":
        return _edit("pin-memory", setting, _find_loader(finding, project), {"pin_memory": "True"}, project)
    for source, line in places_of(finding, project):
        copies = [each for each in source.nodes(ast.Call) if each.lineno == line and method_of(each) in ("to", "cuda")]
        splices = tuple(
            each for call in copies for each in set_arguments(source, call, {"non_blocking": "True"}, project)
        )
        if splices:
            return edit_line("pin-memory", setting, source, line, splices)
    raise EditRefusedError("no .to() or .cuda() stands on the line")


EDITS: dict[str, MakeEdit] = {
    "workers": set_workers,
    "persistent-workers": keep_workers,
    "prefetch-factor": set_prefetch,
    "pin-memory": pin_batches,
}


def _find_loader(finding: PlainFinding, project: Project) -> tuple[SourceFile, ast.Call]:
    return find_call(finding, project, of_torch("DataLoader"), "a DataLoader")


def _edit(
    action: str, setting: str, found: tuple[SourceFile, ast.Call], wanted: dict[str, str | None], project: Project
) -> SourceEdit:
    source, call = found
    splices = set_arguments(source, call, wanted, project, _ORDER)
    return edit_line(action, setting, source, call.lineno, splices)


def _is_iterable(source: SourceFile, data_set: ast.expr, project: Project) -> bool:
    """Whether a data set is made from a class of the program that is an IterableDataset."""
    made = data_set
    if isinstance(data_set, ast.Name):
        values = [
            each.value
            for each in source.nodes(ast.Assign)
            if any(isinstance(target, ast.Name) and target.id == data_set.id for target in each.targets)
        ]
        made = values[-1] if values else data_set
    if not isinstance(made, ast.Call):
        return False
    name = source.code(made.func).rpartition(".")[2]
    return any(
        each.name == name and any(file.code(base).endswith("IterableDataset") for base in each.bases)
        for file in project.program_files()
        for each in file.nodes(ast.ClassDef)
    )
