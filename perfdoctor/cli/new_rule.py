"""`perfdoctor new-rule`: start a rule of your own."""

from __future__ import annotations

from pathlib import Path

import click

from perfdoctor.cli import parameters
from perfdoctor.reporters.output import write_stdout


@click.command(
    "new-rule",
    short_help="Write the files of a new rule.",
    epilog=parameters.format_examples(
        "perfdoctor new-rule XX101 slow-norms",
        "perfdoctor new-rule XX102 odd-shapes --folder .    # the project is here",
    ),
)
@click.argument("rule", metavar="ID")
@click.argument("name", metavar="NAME")
@click.option(
    "-C",
    "--folder",
    metavar="FOLDER",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The project that the rule is for; the default is the current folder.",
)
def new_rule(rule: str, name: str, folder: Path) -> None:
    """Write the files of a new rule: one that works, its test, and its entry point in pyproject.toml.

    ID is two or more capitals and three digits, NAME what the rule finds, as in: perfdoctor new-rule XX101 slow-norms.
    A folder without pyproject.toml becomes a package of its own.
    """
    from perfdoctor.rules.scaffold import write_new_rule

    written = write_new_rule(folder, rule, name)
    write_stdout(
        f"the rule:  {written.rule_file}\n"
        f"its test:  {written.test_file}\n"
        f"changed:   {', '.join(map(str, written.other_files))}\n\n"
        f"pip install -e {folder}    # the entry point counts from then on\n"
        f"pytest {written.test_file}\n"
        f"perfdoctor rules\n\n"
        "docs/writing_rules.md says what cost, saving, claim and edit mean.\n"
    )
