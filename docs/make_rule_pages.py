"""Pages of the rules: each from its docstring, its thresholds and its example in docs/rules/examples."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from perfdoctor.rules import REQUIREMENTS, Analyzer
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.trials.change import Change
from perfdoctor.trials.load_changes import load_changes

EXAMPLES = Path(__file__).resolve().parent / "rules" / "examples"
OWN_CHANGES = "perfdoctor/trials/changes/"
FAMILIES = {
    "PD0": "The recording",
    "PD1": "The CPU and the input",
    "PD2": "Matrix work",
    "PD3": "Memory traffic",
    "PD4": "Several ranks",
    "PD5": "Settings and results",
    "PD6": "The GPU itself",
    "PD7": "What fills the memory",
    "PD8": "Serving engines",
}
# What to know first comes first; the docstring begins with how a number is measured.
SECTIONS = (
    "What it finds",
    "Why it costs time",
    "Example",
    "How to fix",
    "How it is measured",
    "When it is wrong",
    "Needs",
)
_HEADING = re.compile(r"^([A-Z][\w ]+):$", re.MULTILINE)
_SPECIAL = re.compile(r"([\\*_\[\]<>|])")
_LIST = re.compile(r"(?<=[^\n])\n(?=\s*[-*] )")


def own_rules() -> list[type[Analyzer]]:
    """The rules of the package, without those of plugins that happen to be installed."""
    return [rule for rule in load_analyzers() if rule.__module__.startswith("perfdoctor.analyzers.")]


def own_changes() -> list[Change]:
    """The changes of `perfdoctor try`, without those of plugins that happen to be installed."""
    return [each.change for each in load_changes()[0] if OWN_CHANGES in Path(each.file).as_posix()]


def make_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each rule's page."""
    for rule in own_rules():
        yield page_of(rule), describe_rule(rule)


def make_menu() -> list[object]:
    """The menu of the rules, by family."""
    return [
        {title: [{f"{rule.rule} {rule.name}": page_of(rule)} for rule in own_rules() if rule.rule.startswith(family)]}
        for family, title in FAMILIES.items()
    ]


def describe_rules() -> str:
    """All rules as tables, a family each."""
    parts = []
    for family, title in FAMILIES.items():
        parts.append(f"## {title}\n\n| rule | finds |\n|---|---|")
        parts += [
            f"| [{rule.rule} {rule.name}]({rule.rule}.md) | {escape(summary_of(rule))} |"
            for rule in own_rules()
            if rule.rule.startswith(family)
        ]
        parts.append("")
    return "\n".join(parts)


def describe_rule(rule: type[Analyzer]) -> str:
    """The page of one rule."""
    sections = split_manual(rule)
    sections["Example"] = (EXAMPLES / f"{rule.rule}.md").read_text(encoding="utf-8").strip()
    parts = [f"# {rule.rule} {rule.name}", f"**{escape(summary_of(rule))}**"]
    for heading in SECTIONS:
        text = sections[heading] if heading == "Example" else escape(sections[heading])
        parts += [f"## {heading}", text]
        if heading == "How to fix" and (names := [each.name for each in own_changes() if rule.rule in each.rules]):
            parts.append(
                f"To measure on your program what it is worth: `perfdoctor try --only {','.join(names)} train.py`."
            )
    if rule.needs:
        needs = [f"- `{need}`: {escape(REQUIREMENTS[need])}" for need in sorted(rule.needs)]
        parts += ["Where one of these is missing, the rule is skipped, and the report says:", "\n".join(needs)]
    if rule.defaults:
        rows = [
            f"| `{name}` | {value:g} | `--set {rule.rule}.{name}={value:g}` |" for name, value in rule.defaults.items()
        ]
        parts += ["## Thresholds", "| name | default | to set it |\n|---|---|---|\n" + "\n".join(rows)]
    links = [f"- <{link}>" for link in rule.references]
    parts += ["## References", escape(sections["References"]), "\n".join(links)]
    parts.append(f"`perfdoctor explain {rule.rule}` prints this page in a terminal.")
    return "\n\n".join(parts) + "\n"


def split_manual(rule: type[Analyzer]) -> dict[str, str]:
    """The sections of a rule's manual by their headings, as paragraphs without indentation."""
    parts = _HEADING.split(rule.read_manual())
    return {heading: textwrap.dedent(text).strip("\n") for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def summary_of(rule: type[Analyzer]) -> str:
    """The first sentence of a rule's manual."""
    return " ".join(rule.read_manual().split("\n\n")[0].split())


def page_of(rule: type[Analyzer]) -> str:
    """The address of a rule's page."""
    return f"rules/{rule.rule}.md"


def escape(text: str) -> str:
    """Plain text as Markdown: what stands in backticks is code, nothing else means anything."""
    pieces = _LIST.sub("\n\n", text).split("`")
    return "`".join(piece if number % 2 else _SPECIAL.sub(r"\\\1", piece) for number, piece in enumerate(pieces))
