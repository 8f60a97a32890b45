"""Text from a trace as Markdown that shows it literally."""

from __future__ import annotations

import re

from perfdoctor.reporters.clean_text import clean_block, clean_line

_SPECIAL = re.compile(r"([\\`*\[\]|~$])")
# An underscore within a word is not emphasis, so num_workers stays readable.
_EDGE_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def escape(text: str) -> str:
    """`text` as Markdown that shows it literally, on one line: no tag, link, emphasis, table cell, code or mention."""
    text = clean_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _EDGE_UNDERSCORE.sub(r"\\_", _SPECIAL.sub(r"\\\1", text))
    # GitHub makes links of bare addresses and notifies whoever is @named; an entity or a word joiner prevents both.
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;")
    return text.replace("@", "@\N{WORD JOINER}")


def code_span(text: str) -> str:
    """`text` as a code span, whatever backticks it holds. Not for table cells: a pipe would end the cell."""
    text = clean_line(text)
    if not text:
        return ""
    fence = "`" * (_longest_backtick_run(text) + 1)
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def code_block(text: str, language: str = "") -> str:
    """`text` as a code block whose fence is longer than any run of backticks in it."""
    block = clean_block(text)
    fence = "`" * max(3, _longest_backtick_run(block) + 1)
    return f"{fence}{language}\n{block}\n{fence}"


def _longest_backtick_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
