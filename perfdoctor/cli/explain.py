"""`perfdoctor explain`: the manual page of one rule."""

from __future__ import annotations

import click

from perfdoctor.cli import parameters
from perfdoctor.cli.shell_values import complete_rule
from perfdoctor.reporters.output import write_stdout


@click.command(
    short_help="Explain one rule in full.",
    epilog=parameters.format_examples("perfdoctor explain PD101", "perfdoctor explain host-device-sync"),
)
@click.argument("rule", metavar="RULE", shell_complete=complete_rule)
def explain(rule: str) -> None:
    """Explain one rule in full: what it finds, how it is measured, how to fix it, when it is wrong.

    RULE is the id or the name of a rule, such as PD201.
    """
    from perfdoctor.reporters.manual_page import manual_page

    write_stdout(manual_page(rule))
