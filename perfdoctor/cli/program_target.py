"""The program that `run` and `try` take as their last arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perfdoctor.cli.shell_values import complete_files

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_ARGUMENTS = "perfdoctor.arguments"


class ProgramCommand(click.Command):
    """Keeps a copy of its arguments: the parser removes the `--` that tells a command from a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after copying them to the context."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """What a shell offers for a word that starts like an option: behind the program it is the program's."""
        return (
            complete_files(ctx, None, incomplete)
            if ctx.params.get("target")
            else super().shell_complete(ctx, incomplete)
        )


def typed_target(ctx: click.Context, target: Sequence[str]) -> list[str]:
    """The program as it was typed.

    Args:
        ctx: The context of a `ProgramCommand`.
        target: The arguments that the parser left as PROGRAM: the last ones.
    """
    return restore_dashes(ctx.meta[_ARGUMENTS], target)


def restore_dashes(arguments: Sequence[str], target: Sequence[str]) -> list[str]:
    """The target with the `--` in front of it, where the user typed one.

    Args:
        arguments: All arguments of the command as typed.
        target: Those that the parser left as PROGRAM: the last ones.
    """
    before = arguments[: len(arguments) - len(target)]
    return ["--", *target] if list(before[-1:]) == ["--"] else list(target)
