"""The edits for the findings of a report, and why some have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.edits import (
    accumulation,
    call_arguments,
    contexts,
    formulas,
    gradients,
    loader_arguments,
    loop_pauses,
    moved_code,
    repairs,
    repeated_work,
    switches,
    tensors,
)
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.source_edit import MakeEdit, PlainFinding, SourceEdit
from perfdoctor.frozen_dataclass import frozen_dataclass

EDITS: Mapping[str, MakeEdit] = {
    name: make
    for module in (
        loader_arguments,
        call_arguments,
        switches,
        contexts,
        moved_code,
        formulas,
        gradients,
        tensors,
        accumulation,
        repairs,
        loop_pauses,
        repeated_work,
    )
    for name, make in module.EDITS.items()
}
"""By the id of the action that an edit carries out."""


@frozen_dataclass
class FoundEdit:
    """An edit, and the positions of the findings that it answers."""

    edit: SourceEdit
    answers: tuple[int, ...]


@frozen_dataclass
class RefusedEdit:
    """An action of a finding for which there is no edit, and why."""

    action: str
    setting: str
    why: str

    @property
    def label(self) -> str:
        """Action and setting: "workers=2"."""
        return f"{self.action}={self.setting}" if self.setting else self.action


def choose_edits(findings: Sequence[PlainFinding], project: Project) -> tuple[list[FoundEdit], list[RefusedEdit]]:
    """The edits that carry out what findings advise, in the order of the findings.

    Args:
        findings: Those of a report, as in its JSON.
        project: The user's program.

    Returns:
        The edits, one for each place, action and setting, and what has none.
    """
    found: dict[tuple[str, str, str], FoundEdit] = {}
    refused: dict[tuple[str, str], RefusedEdit] = {}
    # A better fix makes others pointless, once it is made for sure.
    for position in sorted(range(len(findings)), key=lambda position: findings[position].get("covered_by") is not None):
        finding = findings[position]
        if finding.get("covered_by") in {n for each in found.values() if _is_made(each) for n in each.answers}:
            continue
        for action, setting in _actions_of(finding):
            make = EDITS.get(action)
            try:
                if make is None:
                    raise EditRefusedError("its lines depend on the program: the advice says what to write")
                edit = make(finding, setting, project)
                edit.source.splice(edit.splices)
            except EditRefusedError as why:
                refused.setdefault((action, setting), RefusedEdit(action, setting, str(why)))
                continue
            key = (action, setting, edit.place)
            before = found.get(key, FoundEdit(edit, ()))
            found[key] = FoundEdit(before.edit, (*before.answers, position))
    done = {(each.edit.action, each.edit.setting) for each in found.values()}
    return list(found.values()), [each for key, each in refused.items() if key not in done]


def apply_edits(edits: Iterable[SourceEdit]) -> dict[str, bytes]:
    """The new bytes of each file that edits change, by its path from the project's folder.

    Raises:
        EditRefusedError: Two of them change the same code, or the result is no Python.
    """
    of_file: dict[str, list[SourceEdit]] = {}
    for edit in edits:
        of_file.setdefault(edit.source.name, []).append(edit)
    return {
        name: each[0].source.splice(tuple(splice for edit in each for splice in edit.splices))
        for name, each in of_file.items()
    }


def _is_made(found: FoundEdit) -> bool:
    """Whether an edit needs no leave of the user, whatever it is worth."""
    return not found.edit.intended_change


def _actions_of(finding: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The actions of a finding with each of their settings."""
    for action in finding.get("actions") or ():
        value = action["value"]
        for each in value if isinstance(value, list) else [value]:
            yield action["id"], "" if each is None else str(each)
