"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import click

from perfdoctor.cli.shell_values import complete_files, complete_rules
from perfdoctor.errors import UsageError
from perfdoctor.reporters.write_report import OUTPUT_FORMATS

select = click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rules,
    help="Apply only these rules or families, such as PD101,PD2; may be given several times.",
)
ignore = click.option(
    "--ignore",
    multiple=True,
    metavar="RULES",
    shell_complete=complete_rules,
    help="Leave out these rules or families; may be given several times.",
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="RULE.NAME=VALUE",
    help="Set a threshold of a rule, such as PD101.min_share=0.1; may be given several times.",
)
device = click.option("--device", metavar="NAME", help="The name of the device, where the trace does not tell it.")
rank = click.option("--rank", type=int, metavar="N", help="Analyse this rank only.")
steps = click.option(
    "--steps", metavar="A:B", help="Analyse only the steps from A up to, but not including, B; the first step is 0."
)
output = click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="Also write .html (a page), .json, .md, .pr.md (short, for a pull request), .sarif, .xml (JUnit), .github "
    "(annotations), .txt or .json.gz (annotated trace); may be given several times.",
)
open_page = click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
output_format = click.option(
    "--output-format",
    type=click.Choice(tuple(OUTPUT_FORMATS)),
    help="Print this on standard output: text is the default, github are annotations of GitHub Actions.",
)
fail_on = click.option(
    "--fail-on",
    type=click.Choice(("info", "low", "medium", "high")),
    help="Exit with 1 if a finding has this severity, or a higher one, or if that could not be judged.",
)
baseline = click.option(
    "--baseline",
    metavar="FILE",
    help="Accept the findings in FILE: only a new one fails, or one that costs 20 % more, from medium on or from the "
    "severity of --fail-on.",
)
update_baseline = click.option(
    "--update-baseline", is_flag=True, help="Write the findings into the file of --baseline, and accept them."
)
no_color = click.option("--no-color", is_flag=True, help="Print without colours, as with NO_COLOR in the environment.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Print the verdict, and one line for each finding.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Print all evidence, and whether each rule ran.")


def format_examples(*lines: str) -> str:
    """The epilog of a command's --help: lines that can be typed as they are, each with a comment where it needs one."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def parse_verbosity(quiet: bool, verbose: bool) -> int:
    """-1, 0 or 1.

    Raises:
        UsageError: Both are set.
    """
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other")
    return int(verbose) - int(quiet)


def parse_output_format(as_json: bool, output_format: str | None) -> str:
    """One of OUTPUT_FORMATS.

    Raises:
        UsageError: --json was given with another format.
    """
    if as_json and output_format not in (None, "json"):
        raise UsageError(f"--json and --output-format {output_format} exclude each other")
    return "json" if as_json else output_format or "text"


def parse_steps(text: str | None) -> slice:
    """The steps that "A:B", "A:", ":B" or "A" mean; all for None.

    Raises:
        UsageError: It is none of these, or holds no step.
    """
    if text is None:
        return slice(None)
    first, colon, last = text.partition(":")
    try:
        start = int(first) if first else None
        stop = (int(last) if last else None) if colon else int(first) + 1
    except ValueError:
        start = stop = -1
    if (start or 0) < 0 or (stop is not None and stop <= (start or 0)):
        raise UsageError(f"--steps {text} must be A:B with 0 <= A < B, such as --steps 2:5")
    return slice(start, stop)


def parse_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """The whole numbers of a list separated by commas.

    Raises:
        UsageError: It holds something else.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text} must be numbers separated by commas, such as {option} 0,7") from None
