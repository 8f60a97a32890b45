"""`python -m build_backend.list_rules`: the table of our rules, by which an analysis knows them without their code."""

from __future__ import annotations

from perfdoctor.rules.registry import TABLE, list_rule, load_analyzers

_HEADER = "rule,name,scope,needs"


def make_table() -> str:
    """The text of our_rules.csv: a row for each rule of this repository, as its class says."""
    ours = [list_rule(each) for each in load_analyzers() if each.__module__.startswith("perfdoctor.analyzers.")]
    rows = [f"{each.rule},{each.name},{each.scope},{' '.join(sorted(each.needs))}" for each in ours]
    return "\n".join((_HEADER, *rows, ""))


if __name__ == "__main__":
    TABLE.write_text(make_table(), encoding="utf-8")
