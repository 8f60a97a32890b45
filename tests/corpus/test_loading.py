"""What PD101 promises, against what came true: the same program recorded without workers and with four."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.diagnosis.report import Report
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.supply import wait_parts, worker_startups

pytestmark = pytest.mark.corpus


@pytest.mark.parametrize(
    ("pair", "promised_ms", "came_true_ms"), [("v100-bare-list", 46.9, 35.5), ("v100-legacy", 48.2, 47.1)]
)
def test_what_came_true_lies_within_what_was_promised(
    pair: str, promised_ms: float, came_true_ms: float, report_on: Callable[[str], Report]
) -> None:
    starved, fed = report_on(f"{pair}-workers0.json.gz"), report_on(f"{pair}-workers4.json.gz")
    before, after = (r.account[0].window_ns / r.steps.count for r in (starved, fed))
    assert (before - after) / 1e6 == pytest.approx(came_true_ms, abs=0.1)
    (finding,) = (f for f in starved.findings if f.rule == "PD101")
    assert (finding.saving.high_ns or 0) / 1e6 <= promised_ms + 0.1
    assert (finding.saving.low_ns or 0) <= before - after <= (finding.saving.high_ns or 0)
    assert "which has no workers; with 2 workers about" in finding.title


def test_collating_in_the_main_process_is_told_from_fetching(corpus: Path) -> None:
    parts = wait_parts(RankRun(perfdoctor.read(corpus / "v100-bare-list-workers0.json.gz")))
    assert round(parts.collate_ns / 1e6, 1) == 7.8  # torch.stack of 32 images
    assert round(parts.fetch_ns / 1e6, 1) == 39.2
    assert (parts.startup_ns, parts.copy_ns, parts.pin_ns) == (0, 0, 0)


def test_the_start_of_four_workers_is_seen(corpus: Path) -> None:
    """82 ms at the beginning of the recording, and 2 ms for every batch from then on."""
    rank = RankRun(perfdoctor.read(corpus / "v100-legacy-workers4.json.gz"))
    assert worker_startups(rank).tolist() == [True, False, False, False, False, False]
    assert not worker_startups(RankRun(perfdoctor.read(corpus / "v100-legacy-workers0.json.gz"))).any()
