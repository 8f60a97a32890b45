"""The program that `run` and `try` take as their last arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

ARGUMENTS = "perfdoctor.arguments"
PROGRAM_HELP = "A script, a module after -m, or any command after --, with its arguments."
# What follows the program belongs to the program.
PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class ProgramCommand(TyperCommand):
    """Keeps a copy of its arguments: the parser removes the `--` that tells a command from a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after copying them to the context."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What a shell offers for a word that starts like an option: nothing behind the program, whose word it is."""
        return [] if ctx.params.get("target") else super().shell_complete(ctx, incomplete)


def typed_target(ctx: typer.Context, target: Sequence[str]) -> list[str]:
    """The program as it was typed, with the `--` in front of it where there was one.

    Args:
        ctx: The context of a `ProgramCommand`.
        target: The arguments that the parser left as PROGRAM: the last ones.
    """
    before = ctx.meta[ARGUMENTS][: -len(target)]
    return ["--", *target] if before[-1:] == ["--"] else list(target)
