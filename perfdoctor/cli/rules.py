"""`perfdoctor rules`: the catalogue."""

from __future__ import annotations

import inspect
import textwrap

from perfdoctor.reporters.output import emit

_INDENT = " " * 7


def rules() -> None:
    """List the rules: id, name, what each needs, and what it says."""
    from perfdoctor.rules.registry import broken, registered

    for analyzer in registered():
        needs = ", ".join(sorted(analyzer.needs)) or "nothing special"
        emit(f"{analyzer.rule}  {analyzer.name}  (needs {needs})\n")
        emit(textwrap.fill(summary_of(analyzer), 80, initial_indent=_INDENT, subsequent_indent=_INDENT) + "\n")
    for plugin in broken():
        emit(f"{plugin.name} is not usable: {plugin.why}\n")
    emit("\nperfdoctor explain RULE tells one in full.\n")


def summary_of(analyzer: type) -> str:
    """The first line of an analyzer's manual page."""
    return (inspect.getdoc(analyzer) or "").partition("\n")[0]
