"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from perfdoctor.errors import UsageError

Select: TypeAlias = Annotated[
    list[str],
    typer.Option("--select", metavar="RULES", help="Only these rules or families: PD101, PD2; comma or again."),
]
Ignore: TypeAlias = Annotated[list[str], typer.Option("--ignore", metavar="RULES", help="Leave these out.")]
Settings: TypeAlias = Annotated[
    list[str], typer.Option("--set", metavar="RULE.NAME=VALUE", help="A threshold, such as PD101.min_share=0.1.")
]
Device: TypeAlias = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="The device, where the trace does not say it.")
]
Rank: TypeAlias = Annotated[int | None, typer.Option("--rank", metavar="N", help="Look at this rank only.")]
Steps: TypeAlias = Annotated[
    str | None, typer.Option("--steps", metavar="A:B", help="Only these steps, counted from 0, B left out.")
]
Output: TypeAlias = Annotated[
    list[str],
    typer.Option("-o", "--output", metavar="FILE", help="Also write .json, .md, .txt or .json.gz (annotated trace)."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else there.")]
NoColor: TypeAlias = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("-q", "--quiet", help="The verdict, and a line a finding.")]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("-v", "--verbose", help="All evidence, and what became of each rule.")
]


class Level(StrEnum):
    """Severities, for --fail-on."""

    info = "info"
    low = "low"
    medium = "medium"
    high = "high"


def verbosity(quiet: bool, verbose: bool) -> int:
    """-1, 0 or 1.

    Raises:
        UsageError: both at once.
    """
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other")
    return int(verbose) - int(quiet)


def step_slice(text: str | None) -> slice | None:
    """The steps that "A:B", "A:", ":B" or "A" mean.

    Raises:
        UsageError: it is none of these, or holds no step.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        stop = (int(last) if last else None) if colon else int(first) + 1
    except ValueError:
        start = stop = -1
    if (start or 0) < 0 or (stop is not None and stop <= (start or 0)):
        raise UsageError(f"--steps {text} must be A:B with 0 <= A < B, such as --steps 2:5")
    return slice(start, stop)


def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """The whole numbers of a list separated by commas.

    Raises:
        UsageError: it holds something else.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text} must be numbers separated by commas, such as {option} 0,7") from None
