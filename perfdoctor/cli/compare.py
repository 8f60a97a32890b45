"""`perfdoctor compare`: not there yet."""

from __future__ import annotations

from typing import Annotated

import typer

from perfdoctor.errors import UsageError


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE")],
    after: Annotated[str, typer.Argument(metavar="AFTER")],
    fail_over: Annotated[str | None, typer.Option("--fail-over", metavar="PERCENT")] = None,
) -> None:
    """What got faster or slower between two recordings (comes in a later version)."""
    del fail_over
    raise UsageError(
        f"compare comes in a later version; until then analyze both: perfdoctor analyze -q {before}, then {after}"
    )
