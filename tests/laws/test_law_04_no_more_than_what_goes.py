"""Law 4: no fix saves more than the thing that goes: its time, and the idle gaps that end with it, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import find_once
from recordings import list_recordings, name_recording

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.pipeline import price_rank
from perfdoctor.rank import Rank
from perfdoctor.report import pricers
from perfdoctor.report.finding import Finding
from perfdoctor.savings.edits import Edit, remove_items
from perfdoctor.savings.fix_order import SavingRange, order_fixes_greedily
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.savings.saving_bounds import SavingBounds
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.rows import GpuRows

MS = 1_000

# From, to, the share of it that goes, and what it belongs to.
Cover = tuple[int, int, float, str]


def list_files() -> list[Path]:
    """Each file of a rank."""
    found = []
    for path in list_recordings():
        found += sorted(path.glob("*.json*")) if path.is_dir() else [path]
    return found


def bound_by_hand(rank: Rank, edit: Edit) -> float:
    """What the things that an edit takes away take of a step, by a sweep over the instants at which anything changes.

    Written without the code of the product: a timeline of what covers what, by stream and by kind.
    """
    gpu, calls = rank.trace.gpu, rank.trace.calls
    covered: list[Cover] = []
    for row, after_ns in zip(edit.items.index.tolist(), edit.dur_ns.tolist(), strict=True):
        start, end = int(gpu.start_ns[row]), int(gpu.end_ns[row])
        if end > start:
            covered.append((start, end, max(1 - after_ns / (end - start), 0), f"stream {gpu.stream[row]}"))
    waits = edit.unblocked_calls.index
    ends = calls.end_ns[waits].tolist()
    covered += [(start, end, 1.0, "waits") for start, end in zip(calls.start_ns[waits].tolist(), ends, strict=True)]
    for number, removed in enumerate(edit.removed_cpu_time):
        share = 1 - removed.remaining_share
        covered += [(start, end, share, f"CPU time {number}") for start, end in removed.intervals.tolist()]
    covered += gaps_before(rank, set(edit.items.index[edit.dur_ns == 0].tolist()))
    spans = rank.steps.intervals if rank.steps.count else rank.window
    return sum(weighted_length(covered, start, end) for start, end in spans.tolist()) / max(rank.steps.count, 1)


def gaps_before(rank: Rank, removed: set[int]) -> Iterator[Cover]:
    """The idle gaps that end with a removed item."""
    gpu = rank.trace.gpu
    latest = None
    for row in np.argsort(gpu.start_ns, kind="stable").tolist() if removed else ():
        if latest is not None and gpu.start_ns[row] > latest and row in removed:
            yield int(latest), int(gpu.start_ns[row]), 1.0, "gaps"
        latest = max(latest or 0, int(gpu.end_ns[row]))


def weighted_length(covered: list[Cover], begin: int, end: int) -> float:
    """The length of what is covered in [begin, end): an instant counts once, with the most that any layer has of it."""
    inside = [(max(a, begin), min(b, end), w, layer) for a, b, w, layer in covered if a < end and b > begin and w > 0]
    if not inside:
        return 0.0
    edges = np.unique(np.array([edge for a, b, *_ in inside for edge in (a, b)]))
    weights: dict[str, np.ndarray] = {}
    for a, b, w, layer in inside:
        low, high = np.searchsorted(edges, (a, b))
        weights.setdefault(layer, np.zeros(len(edges) - 1))[low:high] += w
    most = np.minimum(np.max(list(weights.values()), axis=0), 1)
    return float((most * np.diff(edges)).sum())


def check_bound(rank: Rank, made: Finding, priced: Finding) -> None:
    """No figure of a price is larger than what the fix takes away."""
    edits = () if made.edit is None else made.edit.variants()
    bound_ns = max((bound_by_hand(rank, edit) for edit in edits), default=0.0)
    if made.edit is None or not made.claim.kernels:
        bound_ns = max(bound_ns, made.claim.total_ns / max(rank.steps.count, 1))
    if made.edit is None and not made.claim.total_ns:
        return  # nothing is said of where the time goes
    for saving in (priced.saving, priced.saving.alone):
        for figure in (saving.low_ns, saving.expected_ns, saving.high_ns):
            assert (figure or 0) <= bound_ns * 1.001 + 2_000, (made.title, figure, bound_ns)


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_files(), ids=name_recording)
def test_no_recorded_fix_saves_more_than_what_goes(path: Path) -> None:
    for rank, found in find_once(path):
        priced = {finding.key: finding for finding in price_rank(rank, found)}
        for made in found:
            if made.key in priced:
                check_bound(rank, made, priced[made.key])


def test_steps_that_are_longer_without_the_profiler_lose_more_than_was_recorded() -> None:
    trace = TraceBuilder(device=None).step(0, 10 * MS).step(10 * MS, 10 * MS).trace()
    rank = Rank(trace, facts=CapturedFacts.parse({"base_step_ns": [30_000_000] * 4}))
    assert rank.time_scale == 3
    assert rank.saving_bounds.of_claim(Claim(rank.window)) == 30_000_000
    assert rank.saving_bounds.of_claim(Claim(unshared_ns=10_000_000)) == 15_000_000


def copies_beside(allocating_ms: int, steps: int = 4, cats: int = 3, copy_ms: int = 2) -> TraceBuilder:
    """Steps of `cats` copies between products, and a sync; in the first step each copy asks the driver for memory."""
    trace = TraceBuilder()
    at = 0
    for step in range(steps):
        begin = busy_until = at
        for _ in range(cats):
            first = allocating_ms * MS if step == 0 else 0
            trace.op("aten::cat", at, first + 20)
            if first:
                trace.call("cudaMalloc", at + 2, first)
            for name, took, launch in (
                ("CatArrayBatchedCopy", copy_ms * MS, at + first + 10),
                ("sgemm", 10 * MS, at + first + 25),
            ):
                start = max(busy_until, launch + 10)
                trace.kernel(name, start, took, launch_us=launch)
                busy_until = start + took
            at += first + 40
        trace.call("cudaDeviceSynchronize", at, busy_until - at + 5)
        at = busy_until + 20
        trace.step(begin, at - begin)
    return trace


def finding_of(rank: Rank, edit: Edit) -> Finding:
    """A finding that says that all of the step goes."""
    step_ns = rank.mean_step_ns
    return Finding(
        rule="PD999",
        name="copies",
        title="copies",
        cost_ns=step_ns,
        share_of_step=None,
        severity="high",
        saving=Saving(0, None, step_ns, "bounded"),
        advice="",
        claim=Claim(rank.time_in_window(edit.items.index), kernels=True),
        edit=edit,
    )


@given(st.integers(0, 200), st.integers(3, 6), st.integers(1, 4), st.integers(1, 5))
def test_a_copy_of_every_step_is_not_the_one_that_allocated(allocating: int, steps: int, cats: int, copy: int) -> None:
    rank = Rank(copies_beside(allocating, steps, cats, copy).trace())
    rows = np.flatnonzero(rank.kernels.named("Cat").mask)
    made = finding_of(rank, remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)))
    (priced,) = price_rank(rank, [made])
    check_bound(rank, made, priced)
    assert (priced.saving.high_ns or 0) <= cats * (copy * 1_000_000 + 100_000)
    assert priced.cost_ns <= cats * (copy * 1_000_000 + 100_000)


def test_copies_that_take_the_step_are_still_sold_for_what_they_take() -> None:
    rank = Rank(copies_beside(0, copy_ms=5).trace())
    rows = np.flatnonzero(rank.kernels.named("Cat").mask)
    (priced,) = price_rank(rank, [finding_of(rank, remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)))])
    assert priced.saving.high_ns == pytest.approx(15_000_000, rel=0.05)


def test_the_bound_holds_whatever_a_replay_says_and_not_without_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(copies_beside(0).trace())
    rows = np.flatnonzero(rank.kernels.named("Cat").mask)
    made = finding_of(rank, remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)))
    order_fixes = order_fixes_greedily

    def promise_the_step(*args: Any) -> Any:
        step_ns = rank.mean_step_ns
        whole = SavingRange(step_ns, step_ns, step_ns)
        fixes = order_fixes(*args)
        return [replace(fix, alone=whole, in_turn=whole, cost_ns=step_ns, limit_ns=step_ns) for fix in fixes]

    monkeypatch.setattr(pricers, "order_fixes_greedily", promise_the_step)
    (priced,) = price_rank(rank, [made])
    check_bound(rank, made, priced)
    monkeypatch.setattr(SavingBounds, "of_fix", lambda *_: None)
    (priced,) = price_rank(rank, [made])
    with pytest.raises(AssertionError):
        check_bound(rank, made, priced)
