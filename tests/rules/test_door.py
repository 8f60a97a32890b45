"""The interface for authors of rules: its names are documented, and the worked example does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perfdoctor import pipeline, rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing_rules.md"


@pytest.mark.parametrize("name", rules.__all__)
def test_every_name_exists_and_is_documented(name: str) -> None:
    value = getattr(rules, name)
    assert name in ("REQUIREMENTS", "Intervals") or (value.__doc__ or "").strip()


@pytest.fixture
def example() -> dict[str, Any]:
    """The names that the page's example defines."""
    page = PAGE.read_text(encoding="utf-8")
    space: dict[str, Any] = {"__name__": "example"}
    blocks = re.findall(r"<!-- example: [\w ]+ -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), space)
    return space


def test_the_worked_example_passes_its_test(example: dict[str, Any]) -> None:
    example["test_slow_norm"]()


def test_the_worked_example_saves_what_the_page_says(example: dict[str, Any]) -> None:
    report = pipeline.diagnose_run(example["CASES"][0].run(), [example["SlowNorm"]])
    (finding,) = report.findings
    assert (finding.cost_ns, finding.saving.basis) == (300_000, "replayed")
    assert (finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns) == (0, 100_000, 200_000)
    assert finding.title == "mine::norm takes 30% of the step"
