"""Which synchronisations of real recordings wait for the GPU, how many per step, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.analyzers._blocking_calls import COPY, IF, ITEM, MASK, PAGEABLE, PINNED, TO_CPU, find_blocking_calls
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report

pytestmark = pytest.mark.corpus


def rank_of(path: Path) -> Rank:
    return Rank(read_once(path))


def cost_of_syncs(rank: Rank) -> float:
    """Idle time after syncs as a share of the window."""
    return rank.account.detail["idle_sync"] / rank.window_ns


def test_not_one_of_945_item_calls_waits_for_the_gpu(corpus: Path, report_on: Callable[[str], Report]) -> None:
    """The item calls read tensors on the CPU. 15 copies per step do wait: they block the CPU for 123 of 215 ms.

    The GPU is busy all the while, so only 0.3 % of the step is idle after them.
    """
    name = "a100-negative-queue/rank0.json.gz"
    rank = rank_of(corpus / name)
    assert int(rank.trace.match_rows(rank.trace.ops, "^aten::item$").sum()) == 945
    syncs = find_blocking_calls(rank)
    assert ITEM not in syncs.cause
    assert set(syncs.cause) == {TO_CPU, PAGEABLE, PINNED, "synchronize"}
    calls = Counter(rank.trace.strings[rank.trace.calls.name[row]] for row in syncs.call)
    assert calls == {"cudaStreamSynchronize": 73, "cudaMemcpyAsync": 31, "cudaDeviceSynchronize": 1}
    waits = len(set(syncs.wait.tolist())) - 1  # the profiler's own cudaDeviceSynchronize ends the recording
    assert waits / rank.steps.count == pytest.approx(15, abs=0.5)
    assert 0 < cost_of_syncs(rank) < 0.005
    assert not any(f.rule == "PD102" for f in report_on(name).findings)


def test_the_276_stream_syncs_of_segment_anything_are_masks_and_copies_that_cost_much_together(
    corpus: Path, report_on: Callable[[str], Report]
) -> None:
    name = "a100-sam-fp32.json.gz"
    rank = rank_of(corpus / name)
    assert int(rank.trace.match_rows(rank.trace.calls, "Synchronize$").sum()) == 276
    syncs = find_blocking_calls(rank)
    found = Counter(syncs.cause)
    assert found[MASK] == 145  # 80 masks, most as a copy and the wait for it
    assert len({w for w, cause in zip(syncs.wait.tolist(), syncs.cause, strict=True) if cause == MASK}) == 80
    assert found[ITEM] == 67
    assert found[IF] == 32
    assert COPY not in found  # every copy has a direction
    # Right behind them the GPU idles for half a percent. Without all of them its queue would not run dry any more.
    assert 0 < cost_of_syncs(rank) < 0.006
    (together,) = [f for f in report_on(name).findings if f.rule == "PD102"]
    assert 0.02 < (together.share_of_step or 0) < 0.08
    assert "a boolean mask" in together.title
