"""What the commands share: how one is declared, their common options, and how texts become values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperCommand, TyperOption

from perfdoctor.errors import UsageError

Completions: TypeAlias = list[tuple[str, str]]
_FAMILY_LENGTH = 3  # "PD1" of "PD101"


def command(
    *examples: str, panels: Mapping[str, str] = MappingProxyType({}), **settings: Any
) -> Callable[[Callable[..., Any]], TyperCommand]:
    """Declare a function as the one command of its file; its docstring is the text of --help.

    Args:
        *examples: Lines that can be typed as they are, each with a comment where it needs one, below that text.
        panels: The titles under which --help lists options, and the options of each, with blanks between.
        **settings: What `typer.Typer.command` takes.
    """

    def declare(function: Callable[..., Any]) -> TyperCommand:
        app = typer.Typer(add_completion=False)
        # Typer keeps the ends of lines, which are those of the source.
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(help=text, epilog=format_examples(*examples), **settings)(function)
        declared = typer.main.get_command(app)
        assert isinstance(declared, TyperCommand)
        titles = {name: title for title, names in panels.items() for name in names.split()}
        for option in declared.params:
            if isinstance(option, TyperOption):
                option.rich_help_panel = next((titles[name] for name in option.opts if name in titles), None)
        return declared

    return declare


def format_examples(*lines: str) -> str:
    """The last lines of --help."""
    return "\n".join(("\nExamples:", *(f"  {line}" for line in lines)))


def repeated(*names: str, **settings: Any) -> Any:
    """An option that may be given several times; an empty list where it is not."""
    return typer.Option(*names, default_factory=list, show_default=False, **settings)


def output_files(suffixes: str) -> Any:
    """The option -o of a command that writes files of these suffixes."""
    return repeated("-o", "--output", metavar="FILE", help=f"Also write {suffixes}; may be given several times.")


def flag(*names: str, help: str) -> Any:  # noqa: A002
    """An option without a value; Typer would print <bool> behind it, as if it took one."""
    return typer.Option(*names, metavar="", help=help)


# A shell asks for completions at each press of a key, so that no rule is loaded: entry points have the names.


def complete_rule(incomplete: str) -> Completions:
    """Rules by the beginning of their ids, in either case."""
    return match_start(read_names("perfdoctor.analyzers"), incomplete)


def complete_rules(incomplete: str) -> Completions:
    """Rules and families, where those before the last comma stand already."""
    rules = read_names("perfdoctor.analyzers")
    families = {(rule[:_FAMILY_LENGTH], "all rules that start so") for rule, _ in rules}
    return match_start(sorted({*families, *rules}), incomplete)


def read_names(group: str) -> Completions:
    """The names of entry points, and what their classes are called."""
    from perfdoctor.installed_packages import find_entry_points

    return sorted((point.name, point.attr) for point in find_entry_points(group))


def match_start(values: Iterable[tuple[str, str]], typed: str) -> Completions:
    """The values that start like what is typed after the last comma, which keeps its case and all before it."""
    last = typed.rpartition(",")[2]
    return [(typed + value[len(last) :], note) for value, note in values if value.upper().startswith(last.upper())]


WindowBase = Annotated[int, typer.Option("--base", metavar="N", min=1, help="First time N steps without the profiler.")]
WindowTiming = Annotated[int, typer.Option("--timing", metavar="N", min=1, help="Then record N steps for their times.")]
WindowEvidence = Annotated[
    int, typer.Option("--evidence", metavar="N", min=0, help="Then record N steps with shapes and source lines.")
]
MeasureFor = Annotated[
    float,
    typer.Option(
        "--measure",
        metavar="SECONDS",
        min=0.1,
        max=3600,
        help="Measure cheaper forms of the dearest calls for so long.",
    ),
]
NoReport = Annotated[bool, flag("--no-report", help="Record, but do not analyse.")]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        show_default=False,
        help="A trace, or a folder of them, a capture, a memory snapshot, a glob, a URL, or - for standard input.",
    ),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON on standard output, and nothing else there.")]
Select = Annotated[
    list[str],
    repeated(
        "--select",
        metavar="RULES",
        autocompletion=complete_rules,
        help="Apply only these rules or families, such as PD101,PD2; may be given several times.",
    ),
]
Ignore = Annotated[
    list[str],
    repeated(
        "--ignore",
        metavar="RULES",
        autocompletion=complete_rules,
        help="Leave out these rules or families; may be given several times.",
    ),
]
Settings = Annotated[
    list[str],
    repeated(
        "--set",
        metavar="RULE.NAME=VALUE",
        help="Set a threshold of a rule, such as PD101.min_share=0.1; may be given several times.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="The name of the device, where the trace does not tell it."),
]
Rank = Annotated[int | None, typer.Option("--rank", metavar="N", help="Analyse this rank only.")]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="A:B", help="Analyse only the steps from A up to, but not including, B; the first step is 0."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", help="Share the traces among N processes; 1 is this process alone.")
]
Output = Annotated[
    list[str],
    output_files(
        ".html (a page), .json, .md, .pr.md (short, for a pull request), .sarif, .xml (JUnit), .github (annotations), "
        ".txt or .json.gz (annotated trace)"
    ),
]
OpenPage = Annotated[bool, flag("--open", help="Open the page in the browser.")]
OutputFormat = Annotated[
    Literal["text", "json", "markdown", "pr", "github", "sarif", "junit"] | None,
    typer.Option(
        "--output-format",
        metavar="FORMAT",
        help="Print this on standard output: text is the default, json, markdown, pr (short, for a pull request), "
        "github (annotations of GitHub Actions), sarif or junit.",
    ),
]
FailOn = Annotated[
    Literal["info", "low", "medium", "high"] | None,
    typer.Option(
        "--fail-on",
        metavar="SEVERITY",
        help="Exit with 1 if a finding has this severity (info, low, medium, high), or a higher one, or if that could "
        "not be judged.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Accept the findings in FILE: only a new one fails, or one that costs 20 % more, from medium on or from "
        "the severity of --fail-on.",
    ),
]
UpdateBaseline = Annotated[
    bool, flag("--update-baseline", help="Write the findings into the file of --baseline, and accept them.")
]
NoColor = Annotated[bool, flag("--no-color", help="Print without colours, as with NO_COLOR in the environment.")]
Quiet = Annotated[bool, flag("-q", "--quiet", help="Print the verdict, and one line for each finding.")]
Verbose = Annotated[bool, flag("-v", "--verbose", help="Print all evidence, and whether each rule ran.")]


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
