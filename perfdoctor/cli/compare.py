"""`perfdoctor compare`: refused with a sentence until it exists."""

from __future__ import annotations

import click

from perfdoctor.errors import UsageError


@click.command(short_help="Compare two recordings (comes in a later version).")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--fail-over", metavar="PERCENT", help="Exit with 1 if the step became slower by more than this.")
def compare(before: str, after: str, fail_over: str | None) -> None:
    """Say what got faster or slower between two recordings (comes in a later version)."""
    del fail_over
    raise UsageError(
        f"compare comes in a later version; until then analyze both: perfdoctor analyze -q {before}, then {after}"
    )
