"""The report of a recording fits a page of 40 lines of 80 columns, and the first fix is on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import analyze_once

from perfdoctor.reporters.report_facts import main_findings
from perfdoctor.reporters.terminal import Terminal

SHARED = Path(__file__).resolve().parents[3] / "shared"
PAGE_LINES = 40
# Longer ones, each with the reason.
LONGER = {"v100-torchrec-opt4": 44}  # four ranks, each a row, a cold step, seven findings and two notes


def list_all() -> tuple[Path, ...]:
    """Every recording of ../shared, those of pairs among them."""
    folders = ["traces", "recordings", "nsight", *(f"pairs/{each.name}" for each in sorted(SHARED.glob("pairs/*/")))]
    return tuple(
        path
        for folder in folders
        for path in sorted((SHARED / folder).glob("*"))
        if path.is_dir() or path.name.endswith((".json", ".json.gz", ".sqlite"))
    )


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_all(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_report_fits_a_page(path: Path) -> None:
    report = analyze_once(path)
    text = Terminal().render(report)
    lines = text.splitlines()
    findings = main_findings(report)

    assert len(lines) <= LONGER.get(path.name, PAGE_LINES)
    # A fix is there to be copied, so that its lines are not broken.
    fixes = [line.strip() for each in findings if each.fix for line in each.fix.splitlines()]
    assert all(len(line) <= 80 or any(fix[:20] in line for fix in fixes) for line in lines)
    assert all(each.rule in text for each in findings)
    if findings and findings[0].fix:
        assert findings[0].fix.splitlines()[0].partition("   # ")[0].rstrip() in text
