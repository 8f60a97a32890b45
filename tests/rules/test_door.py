"""The interface for authors of rules: its names are documented, and the worked example does what the page says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

from perfdoctor import pipeline, rules
from perfdoctor.rank import Rank
from perfdoctor.savings import edits
from perfdoctor.testing import TraceBuilder

EDITS = [
    name
    for name, value in vars(edits).items()
    if name in rules.__all__ and inspect.isfunction(value) and value.__module__ == edits.__name__
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing_rules.md"


@pytest.mark.parametrize("name", rules.__all__)
def test_every_name_exists_and_is_documented(name: str) -> None:
    value = getattr(rules, name)
    # A choice of texts has no docstring.
    assert name in ("REQUIREMENTS", "Intervals") or get_origin(value) is Literal or (value.__doc__ or "").strip()


@pytest.fixture
def example() -> dict[str, Any]:
    """The names that the page's example defines."""
    page = PAGE.read_text(encoding="utf-8")
    space: dict[str, Any] = {"__name__": "example"}
    blocks = re.findall(r"<!-- example: [\w ]+ -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), space)
    return space


def test_the_worked_example_passes_its_test(example: dict[str, Any]) -> None:
    example["test_slow_norm"]()


def test_the_worked_example_saves_what_the_page_says(example: dict[str, Any]) -> None:
    report = pipeline.diagnose_run(example["CASES"][0].run(), [example["SlowNorm"]])
    (finding,) = report.findings
    assert (finding.cost_ns, finding.saving.basis, finding.severity) == (200_000, "replayed", "high")
    assert (finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns) == (0, None, 200_000)
    assert finding.title == "mine::norm takes 30% of the step"


def test_the_example_of_columns_finds_what_the_page_says(example: dict[str, Any]) -> None:
    trace = TraceBuilder()
    trace.op("aten::scaled_dot_product_attention", 0, 50).op("aten::matmul", 1, 9).op("aten::softmax", 12, 9)
    trace.op("aten::mul", 22, 5).op("aten::softmax", 30, 9)  # no product directly before it
    trace.op("aten::matmul", 60, 9).op("outer", 70, 20).op("aten::softmax", 72, 9)  # inside another op
    softmaxes = example["softmaxes_of_products"](Rank(trace.trace()))
    assert softmaxes.table.start_ns[softmaxes.mask].tolist() == [12_000]


@pytest.mark.parametrize("name", [*rules.REQUIREMENTS, *EDITS])
def test_the_page_explains_every_need_and_every_edit(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f'`"{name}"`' in page or f"`{name}(" in page
