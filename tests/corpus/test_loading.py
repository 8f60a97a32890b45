"""What PD101 promises, against what came true: the same program recorded without workers and with four."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.analyzers._loader_wait_parts import split_waits
from perfdoctor.analyzers.pd101_dataloader_stall import DataLoaderStall
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules.analyzer import Run

pytestmark = pytest.mark.corpus


def find_stall(rank: Rank) -> Finding:
    (finding,) = DataLoaderStall().analyze(Run((rank,)))
    return finding


@pytest.mark.parametrize(
    ("pair", "promised_ms", "came_true_ms"), [("v100-bare-list", 46.9, 35.5), ("v100-legacy", 48.2, 47.1)]
)
def test_what_came_true_lies_within_what_the_rule_promises(
    pair: str, promised_ms: float, came_true_ms: float, corpus: Path
) -> None:
    """The saving before the replay, which may know better: its upper bound must hold and not be far off."""
    starved, fed = (Rank(read_once(corpus / f"{pair}-workers{n}.json.gz")) for n in (0, 4))
    before, after = (rank.window_ns / rank.steps.count for rank in (starved, fed))
    assert (before - after) / 1e6 == pytest.approx(came_true_ms, abs=0.1)
    finding = find_stall(starved)
    assert (finding.saving.high_ns or 0) / 1e6 == pytest.approx(promised_ms, abs=0.1)
    assert 0.7 * (finding.saving.high_ns or 0) <= before - after <= (finding.saving.high_ns or 0)
    assert "which has no workers" in finding.title


def test_collating_in_the_main_process_is_separated_from_fetching(corpus: Path) -> None:
    rank = Rank(read_once(corpus / "v100-bare-list-workers0.json.gz"))
    parts = split_waits(rank, rank.worker_startups, 0.0)
    assert round(parts.collate_ns / 1e6, 1) == 7.8  # torch.stack of 32 images
    assert round(parts.fetch_ns / 1e6, 1) == 39.2
    assert (parts.startup_ns, parts.copy_ns, parts.pin_ns) == (0, 0, 0)


def test_the_start_of_four_workers_is_found(corpus: Path) -> None:
    """82 ms at the beginning of the recording, and 2 ms for every batch from then on."""
    rank = Rank(read_once(corpus / "v100-legacy-workers4.json.gz"))
    assert rank.worker_startups.tolist() == [True, False, False, False, False, False]
    rank = Rank(read_once(corpus / "v100-legacy-workers0.json.gz"))
    assert not rank.worker_startups.any()
