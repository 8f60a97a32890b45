"""A comparison to a file or to standard output, in the format that was asked for."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from perfdoctor.reporters.output import find_suffix, save_text, write_stdout

if TYPE_CHECKING:
    from perfdoctor.comparison.comparison import Comparison

SUFFIXES = (".json", ".md", ".txt")
comparison_suffix_of = partial(find_suffix, suffixes=SUFFIXES, what="a comparison")


def save_comparison(comparison: Comparison, path: str | os.PathLike[str], *, verbosity: int = 0) -> None:
    """Write a comparison, whole or not at all; the suffix decides the format. See `Comparison.save`."""
    save_text(path, render_comparison(comparison, comparison_suffix_of(path), verbosity))


def render_comparison(comparison: Comparison, suffix: str, verbosity: int = 0) -> str:
    """The comparison as the text that belongs to a suffix: .json, .md or .txt, the last one with a verbosity."""
    if suffix == ".json":
        from perfdoctor.reporters.json_ import render_plain

        return render_plain(comparison.to_dict())
    if suffix == ".md":
        from perfdoctor.reporters.comparison_markdown import render_comparison_markdown

        return render_comparison_markdown(comparison)
    from perfdoctor.reporters.comparison_terminal import ComparisonTerminal

    return ComparisonTerminal(verbosity=verbosity).render(comparison)


def print_comparison(comparison: Comparison, *, color: bool | None = None, verbosity: int = 0) -> None:
    """Print a comparison to standard output, as wide and coloured as a report would be."""
    from perfdoctor.reporters.comparison_terminal import ComparisonTerminal
    from perfdoctor.reporters.write_report import terminal_for

    fitting = terminal_for(sys.stdout, color=color, verbosity=verbosity)
    write_stdout(ComparisonTerminal(fitting.width, fitting.color, verbosity).render(comparison))
