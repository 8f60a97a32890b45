"""`perfdoctor explain`: the manual page of one rule."""

from __future__ import annotations

from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.reporters.output import write_stdout


@parameters.command("perfdoctor explain PD101", "perfdoctor explain host-device-sync")
def explain(
    rule: Annotated[
        str,
        typer.Argument(
            metavar="RULE",
            help="The id or the name of a rule, such as PD201.",
            autocompletion=parameters.complete_rule,
            show_default=False,
        ),
    ],
) -> None:
    """Explain one rule in full: what it finds, how it is measured, how to fix it, when it is wrong."""
    from perfdoctor.reporters.manual_page import manual_page

    write_stdout(manual_page(rule))
