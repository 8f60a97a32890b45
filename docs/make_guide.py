"""Write docs/guide.md: the field guide row by row, with what it answers on a sample trace.

python docs/make_guide.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import perfdoctor
from perfdoctor.field_guide.guide_answers import GuideAnswer
from perfdoctor.field_guide.guide_row import DOCUMENTS, GuideRow
from perfdoctor.field_guide.guide_table import ROWS
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.escape_markdown import escape
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.rules.reserved_rules import RESERVED_RULES

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "guide.md"
EXAMPLE = "sample_traces/dataloader-stall.json.gz"
_CATALOGUE = {rule.rule for rule in load_analyzers()}

_INTRODUCTION = f"""\
# The field guide

Five documents say nearly all that is repeated about the performance of PyTorch. These are their 51 pieces of advice, in
our words, each with the rule that checks it, what that needs, what has changed since, and what `perfdoctor guide`
answers for one of the [sample traces](../sample_traces/README.md).

<!-- run -->
```console
$ perfdoctor guide {EXAMPLE} --only applies -q
```

Each row gets one of four answers:

| answer | means |
|---|---|
| **applies** | a rule found it: what it costs, what its fix saves by itself, and the line to change |
| **done already** | something shows it, such as a flag or a loader that keeps up; or its rules ran on what it is \
about and found nothing to change; for rows that ask for a figure, the figure |
| **does not apply** | the program has nothing of the kind: no convolution, one process, no optimizer, no GPU |
| **cannot tell** | what to record to know it |

Silence is no proof: a row is never done because a rule was skipped. In Python:
`perfdoctor.guide("trace.json.gz").select("applies")`. `--json` follows the schema `perfdoctor.guide/1`, which ships
with the package.

Where nothing stands under "since then", nothing has changed. This page is written by `python docs/make_guide.py`.

## The documents

| letter | document |
|---|---|
"""


def describe_guide() -> str:
    """The page as Markdown."""
    guide = perfdoctor.guide(DOCS.parent / EXAMPLE)
    documents = "".join(f"| {letter} | {title} |\n" for letter, title in DOCUMENTS.items())
    rows = zip(ROWS, guide.answers, strict=True)
    parts = (
        f"{_INTRODUCTION}{documents}",
        "## The rows\n",
        f"On the example: {guide.summary}\n",
        "| row | from | advice | checked by | needs | since then | on the example |\n|---|---|---|---|---|---|---|",
        *(_describe_row(row, answer) for row, answer in rows),
        "",
        *_describe_reserved_rules(),
    )
    return "\n".join(parts) + "\n"


def _describe_row(row: GuideRow, answer: GuideAnswer) -> str:
    checks = ", ".join((*map(_link, row.all_rules), *filter(None, [row.checked_by])))
    said = f"**{answer.answer}**: {_escape(clean_line(answer.why))}"
    sources, since = ", ".join(row.sources), _escape(row.since)
    cells = (str(row.number), sources, _escape(row.advice), checks, row.needs, since, said)
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """A text of ours for a cell: what stands between backticks stays code."""
    return escape(text).replace("\\`", "`")


def _link(rule: str) -> str:
    """A rule's id, with a link to its page where it has one."""
    return f"[{rule}](rules/{rule}.md)" if rule in _CATALOGUE else rule


def _describe_reserved_rules() -> Iterator[str]:
    yield "## Ids without a rule of their own\n"
    yield "Where two rules would say the same, one does; no other rule takes the id of one that went.\n"
    yield "| id | why there is none |\n|---|---|"
    for rule, why in RESERVED_RULES.items():
        yield f"| {rule} | {re.sub(r'PD[0-9]{3}', lambda found: _link(found[0]), _escape(why))} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(describe_guide(), encoding="utf-8")


if __name__ == "__main__":
    main()
