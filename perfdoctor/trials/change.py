"""What a change is: something that `perfdoctor try` does to a running program from outside, and measures.

A change is a class in a file of its own, found by an entry point of the group `perfdoctor.changes`. The file is loaded
by its path in the user's program, whose Python may have no perfdoctor: at import it needs the standard library alone,
and it imports torch inside `apply` only. This file is read by type checkers and by people who write changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.report.trial_result import IntendedChange

ENTRY_POINT_GROUP = "perfdoctor.changes"
# Where a change can be tried: everywhere, on a CUDA device, or in a job of several ranks.
NEEDS = ("", "cuda", "ranks")


class Program(Protocol):
    """The running program as a change sees it; the recorder in the program provides it.

    Attributes:
        device_kind: "cuda" or "cpu".
        environment: The environment of the program, as it was started.
    """

    device_kind: str
    environment: Mapping[str, str]

    def patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace the attribute `name` of a module or class by `wrap(original)`; what is not there is left out."""

    def edit_arguments(
        self, change: Any, owner: Any, name: str, edit: Callable[[Any, dict[str, Any]], Mapping[str, Any] | None]
    ) -> None:
        """Set arguments of a function or a constructor, and note where: line, and value before and after.

        Args:
            change: The change, or its name.
            owner: The module or class of the function.
            name: The function; of a constructor, `__init__`.
            edit: Called with the object that a method belongs to (None for a function) and with the arguments that the
                caller gave, by name. Returns those to set, or None where nothing is to be changed. Where it fails, the
                call stays as it is.
        """

    def met(self, change: Any, location: Any = None, detail: str = "") -> None:
        """Note that the program reached the hook of a change: a change that is never met is not applicable.

        Args:
            change: The change, or its name.
            location: Where, as `location_of_caller` returns it, or a frame; None where there is no place.
            detail: What was changed, such as "num_workers 0 -> 2".
        """

    def refuse(self, change: Any, why: str) -> None:
        """Note that a change does not fit this program, whatever was met: the trial says why, and measures nothing.

        Args:
            change: The change, or its name.
            why: A sentence; the first one is kept.
        """

    def location_of_caller(self) -> Any:
        """The innermost line of the user's own code that is being executed: file, line, function."""

    def on_first_forward(
        self, callback: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], *, before_others: bool = False
    ) -> None:
        """Call back before the first forward of each outermost module that has parameters.

        Only until the timed steps begin.

        Args:
            callback: Called with the module, and the arguments and keyword arguments of its call.
            before_others: Before the callbacks of other changes: its wrapper of the module is inside theirs.
        """

    def wrap_calls(self, module: Any, wrap: Callable[[Any], Any]) -> None:
        """Wrap the calls of one module: `wrap` gets what calls it, and returns what is called in its place."""

    def on_step(self, callback: Callable[[int], Any]) -> None:
        """Call back at each border of steps with the number of steps so far; its time is that of the next step."""


class ChangeDefaults:
    """What a change need not say; `load_changes` adds it, because the file of a change imports nothing of ours.

    Attributes:
        needs: Where it can be tried, one of `NEEDS`.
        alters_numerics: Whether results differ by more than rounding in another order (autocast, TF32, compile). Such
            a change is part of the combination only with `--allow-numerics`.
        is_what_if: Whether results are wrong with it: it is measured, and never recommended or combined.
        intended_change: What it alters on purpose: "results" that are wrong without it (a repair, which is never
            called faster), "files" that the program writes, or copies that it keeps, or "". Such a change is part of
            the combination only with `--allow-changes` of `perfdoctor fix`.
        code: What makes it permanent, with "{setting}" in it, where the class has no `fix` of its own.
    """

    needs = ""
    alters_numerics = False
    is_what_if = False
    intended_change: IntendedChange = ""
    code = ""

    def fix(self, setting: str) -> str:
        """The code of the class with the setting."""
        return self.code.replace("{setting}", setting)

    def environment(self, setting: str) -> Mapping[str, str]:  # noqa: ARG002
        """The variables to set before the program starts."""
        return {}


class Change(Protocol):
    """One thing that can be changed from outside. It answers the findings with an `Action` of its name and setting.

    Attributes:
        name: What `--only` takes, such as "workers".
        summary: What it does, in one line for `--list`.
        rules: The rules whose advice it carries out, such as ("PD101", "PD114"), for `--list`.
        effect_on_results: What it may change in results, for `--list`: "none", or a short clause.
        needs, alters_numerics, is_what_if, intended_change: As in `ChangeDefaults`, where the class does not have them.
    """

    name: str
    summary: str
    rules: tuple[str, ...]
    needs: str
    alters_numerics: bool
    effect_on_results: str
    is_what_if: bool
    intended_change: IntendedChange

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The settings worth trying on a program, the most promising first; () where there is nothing to try.

        Args:
            facts: What the recording of rank 0 knows of the program; false where there is none.
            findings: The findings of its report, as in the JSON report.
        """

    def environment(self, setting: str) -> Mapping[str, str]:
        """The variables to set before the program starts; none where the class does not say it."""

    def apply(self, setting: str, program: Program) -> None:
        """Change the program; called in it, right after torch was imported."""

    def fix(self, setting: str) -> str:
        """The code or the variable that makes it permanent, "DataLoader(..., num_workers=2)": `code` where not said."""


def is_advised(name: str, setting: str, finding: Mapping[str, Any]) -> bool:
    """Whether a change with a setting is what the fix of a finding does, no more and no less.

    Args:
        name: The name of the change.
        setting: Its setting; one that the action does not name is any.
        finding: The finding, as in the JSON report.
    """
    actions: Sequence[Mapping[str, Any]] = finding.get("actions") or ()
    if len(actions) != 1 or actions[0]["id"] != name:
        return False
    value = actions[0]["value"]
    return value is None or setting in (map(str, value) if isinstance(value, list) else (str(value),))


def advised_settings(name: str, findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of a change that findings advise, each alone, in the order of the findings."""
    alone: list[Mapping[str, Any]] = [each["actions"][0] for each in findings if len(each.get("actions") or ()) == 1]
    return [str(action["value"]) for action in alone if action["id"] == name]
