"""Law 5: no fix goes below a floor, and "after all fixes" is one replay of all of them.

Generated traces with workers that keep their own time are in tests/savings/test_fix_order.py; here are the recordings,
and what becomes of a report without the floors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from loader_bound import loader_bound, remove_loader_waits
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor.rank import Rank
from perfdoctor.report import pricers
from perfdoctor.savings import fix_order, what_if
from perfdoctor.savings.edits import Edit, busiest_ns, move_work, scale_durations
from perfdoctor.savings.fix_order import OrderedFix, order_fixes_greedily
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.tables.rows import GpuRows


class Ladder(NamedTuple):
    """The fixes of one rank in their order, and what they were priced by."""

    replay: Replay
    edits: Mapping[int, Edit]
    fixes: list[OrderedFix]

    def find_below_floor(self) -> list[str]:
        """Where the step after all fixes is shorter than their replay together, or than a resource is busy."""
        after_ns = self.replay.baseline_step_ns - sum(fix.in_turn.expected_ns for fix in self.fixes)
        done = [self.edits[fix.number] for fix in self.fixes if fix.in_turn.expected_ns]
        expected = [(edit, 0.5 if edit.is_upper_bound else 1.0) for edit in done]
        floors = {"their replay together": self.replay.step_ns(expected), "a resource": busiest_ns(expected)}
        return [f"{after_ns} is below {name}: {ns}" for name, ns in floors.items() if after_ns < ns - 2 * len(done) - 2]


@pytest.fixture
def ladders(monkeypatch: pytest.MonkeyPatch) -> list[Ladder]:
    """Each ladder that is priced from now on."""
    found: list[Ladder] = []

    def order(replay: Replay, edits: Mapping[int, Edit], confidence: Mapping[int, float]) -> Iterable[OrderedFix]:
        fixes = order_fixes_greedily(replay, edits, confidence)
        found.append(Ladder(replay, edits, fixes))
        return fixes

    monkeypatch.setattr(pricers, "order_fixes_greedily", order)
    return found


@pytest.mark.corpus
@pytest.mark.parametrize("path", [each for each in list_recordings() if "recordings" in each.parts], ids=name_recording)
def test_all_fixes_together_save_what_one_replay_of_them_saves(path: Path, ladders: list[Ladder]) -> None:
    perfdoctor.analyze(path)
    assert [text for ladder in ladders for text in ladder.find_below_floor()] == []


def preprocessing(ahead_us: float) -> tuple[Rank, dict[int, Edit]]:
    """Steps that wait for their batch, which a worker would make in `ahead_us`, and kernels that get twice as fast."""
    rank = loader_bound()
    faster = scale_durations(GpuRows(rank.trace.gpu, np.arange(8)), 0.5, is_upper_bound=False)
    return rank, {0: move_work(remove_loader_waits(rank), "worker", round(ahead_us * 1000)), 1: faster}


@pytest.mark.parametrize("ahead_us", [300, 500, 590])
def test_preprocessing_in_a_worker_leaves_the_workers_time(ahead_us: float) -> None:
    rank, edits = preprocessing(ahead_us)
    assert rank.replay is not None
    fixes = order_fixes_greedily(rank.replay, edits)
    saved_ns = sum(fix.in_turn.expected_ns for fix in fixes)
    assert 1_000_000 - saved_ns == max(ahead_us * 1000, 250_000)
    assert Ladder(rank.replay, edits, fixes).find_below_floor() == []


def test_without_the_law_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, edits = preprocessing(500)
    assert rank.replay is not None

    monkeypatch.setattr(what_if, "busiest_ns", lambda _: 0)
    monkeypatch.setattr(fix_order, "busiest_ns", lambda _: 0)

    assert Ladder(rank.replay, edits, order_fixes_greedily(rank.replay, edits)).find_below_floor()
