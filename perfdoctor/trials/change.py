"""What a change is: something that `perfdoctor try` does to a running program from outside, and measures.

A change is a class in a file of its own, found by an entry point of the group `perfdoctor.changes`. The file is loaded
by its path in the user's program, whose Python may have no perfdoctor: at import it needs the standard library alone,
and it imports torch inside `apply` only. This file is read by type checkers and by people who write changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

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
        """Replace the attribute `name` of a module or class by `wrap(original)`."""

    def met(self, change: str, location: Any = None, detail: str = "") -> None:
        """Note that the program came by the hook of a change: a change that is never met is not applicable.

        Args:
            change: The name of the change.
            location: Where, as `location_of_caller` returns it; None where there is no place.
            detail: What was changed, such as "num_workers 0 -> 2".
        """

    def location_of_caller(self) -> Any:
        """The innermost line of the user's own code that is being executed: file, line, function."""

    def on_first_forward(self, callback: Callable[..., Any]) -> None:
        """Call `callback` before the first forward of the outermost module that the step calls."""

    def on_step(self, callback: Callable[..., Any]) -> None:
        """Call `callback` at each border of steps."""


class Change(Protocol):
    """One thing that can be changed from outside.

    Attributes:
        name: What `--only` takes, such as "workers".
        summary: What it does, in one line for `--list`.
        rules: The rules whose advice it carries out, such as ("PD101", "PD114").
        needs: Where it can be tried, one of `NEEDS`.
        alters_numerics: Whether results differ by more than rounding in another order (autocast, TF32, compile). Such
            a change is part of the combination only with `--allow-numerics`.
        effect_on_results: What it may change in results, for `--list`: "none", or a short clause.
        is_what_if: Whether results are wrong with it: it is measured, and never recommended or combined.
    """

    name: str
    summary: str
    rules: tuple[str, ...]
    needs: str
    alters_numerics: bool
    effect_on_results: str
    is_what_if: bool

    def settings(self, facts: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The settings worth trying on a program, the most promising first; () where there is nothing to try.

        Args:
            facts: facts.json of rank 0 of a recording of the program; empty where there is none.
            findings: The findings of its report, as in the JSON report.
        """

    def environment(self, setting: str) -> Mapping[str, str]:
        """The variables to set before the program starts; mostly none."""

    def apply(self, setting: str, program: Program) -> None:
        """Change the program; called in it, right after torch was imported."""

    def fix(self, setting: str) -> str:
        """The code or the environment variable that makes it permanent: "DataLoader(..., num_workers=2)"."""

    def answers(self, setting: str, finding: Mapping[str, Any]) -> bool:
        """Whether the change with this setting is what a finding advises."""
