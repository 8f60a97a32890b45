"""What reports promise against what the change gave: recordings of programs before and after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pairs import MAX_RATIO, MIN_RATIO, NOISE, Pair, read_pairs

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def pairs(corpus: Path) -> list[Pair]:
    folder = corpus.parent / "pairs"
    if not (folder / "PAIRS.csv").is_file():
        pytest.skip(f"{folder} has no pairs")
    return list(read_pairs(folder))


def test_a_promise_contains_what_the_change_gave(pairs: list[Pair]) -> None:
    comparable = [pair for pair in pairs if pair.measured_ms]
    assert comparable
    for pair in comparable:
        assert pair.promised is not None, pair.name
        assert pair.contains_measured, (pair.name, pair.promised, pair.measured_ms)
        assert pair.ratio is not None, pair.name
        assert MIN_RATIO <= pair.ratio <= MAX_RATIO, (pair.name, pair.ratio)


def test_nothing_is_promised_where_nothing_came(pairs: list[Pair]) -> None:
    without = [pair for pair in pairs if pair.measured_ms == 0]
    assert without
    for pair in without:
        high_ms = 0.0 if pair.promised is None else pair.promised.high_ms
        assert high_ms <= NOISE * pair.step_ms, (pair.name, pair.promised)


def test_no_advice_says_how_large_a_batch_would_keep_the_gpu_busy(pairs: list[Pair]) -> None:
    assert not [pair.name for pair in pairs if pair.promises_batch]
