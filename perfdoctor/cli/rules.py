"""`perfdoctor rules`: the catalogue."""

from __future__ import annotations

import textwrap

from perfdoctor.cli import parameters
from perfdoctor.reporters.output import write_stdout

_INDENT = " " * 7


@parameters.command("perfdoctor rules", "perfdoctor rules | grep -A 2 'needs facts'")
def rules() -> None:
    """List the rules: the id, the name, what each needs, and what it finds."""
    from perfdoctor.rules.registry import find_broken_plugins, load_analyzers

    for analyzer in load_analyzers():
        needs = ", ".join(sorted(analyzer.needs)) or "nothing special"
        summary = analyzer.read_manual().partition("\n")[0]
        write_stdout(f"{analyzer.rule}  {analyzer.name}  (needs {needs})\n")
        write_stdout(textwrap.fill(summary, 80, initial_indent=_INDENT, subsequent_indent=_INDENT) + "\n")
    for plugin in find_broken_plugins():
        write_stdout(f"{plugin.name} is not usable: {plugin.why}\n")
    write_stdout("\nperfdoctor explain RULE tells one in full.\n")
