"""`perfdoctor new-rule`: start a rule of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.reporters.output import write_stdout


@parameters.command(
    "perfdoctor new-rule XX101 slow-norms",
    "perfdoctor new-rule XX102 odd-shapes --folder .    # the project is here",
    name="new-rule",
)
def new_rule(
    rule: Annotated[
        str,
        typer.Argument(metavar="ID", show_default=False, help="Two or more capitals and three digits, such as XX101."),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="What the rule finds, such as slow-norms.")
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "-C",
            "--folder",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            show_default=False,
            help="The project that the rule is for; the default is the current folder.",
        ),
    ] = Path(),
) -> None:
    """Write the files of a new rule: one that works, its test, and its entry point in pyproject.toml.

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
        f"perfdoctor analyze --select {rule} trace.json.gz\n\n"
        "docs/writing_rules.md says what cost, saving, claim and edit mean.\n"
    )
