"""Which rules report on real recordings, and on which they keep quiet: rules_that_report.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from real_traces import analyze_once


def rows() -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """A recording, the rules that are asked about it, and those of them that report."""
    text = Path(__file__).with_name("rules_that_report.toml").read_text(encoding="utf-8")
    for group in tomllib.loads(text).values():
        for name, reporting in {**dict.fromkeys(group["quiet"], ()), **group.get("reports", {})}.items():
            yield name, group["rules"], reporting


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "rules", "reporting"), list(rows()))
def test_these_rules_report_and_the_others_do_not(
    corpus: Path, name: str, rules: Sequence[str], reporting: Sequence[str]
) -> None:
    found = {finding.rule for finding in analyze_once(corpus / name).findings}
    assert found.intersection(rules) == {*reporting}
