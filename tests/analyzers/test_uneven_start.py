"""PD409's look at the collector, and the starts of passes in columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from perfdoctor.analysis.communication.pass_starts import time_since_pass_start
from perfdoctor.analyzers._late_rank_causes import collector_ns_per_step, collects_apart
from perfdoctor.facts.captured import CapturedFacts


def rank(*pauses: object) -> Any:
    return SimpleNamespace(facts=CapturedFacts.parse({"base_gc_ns": list(pauses)}))


def test_collections_in_different_steps_keep_ranks_apart() -> None:
    apart = [rank(10_000, 0, 0, 0), rank(0, 10_000, 0, 0)]
    assert collector_ns_per_step(apart[0]) == 2_500
    assert collects_apart(apart, 5_000)
    assert not collects_apart(apart, 20_000)


def test_collections_in_the_same_step_keep_nobody_waiting() -> None:
    assert not collects_apart([rank(10_000, 0), rank(10_000, 0)], 5_000)


def test_what_was_not_captured_is_no_collection() -> None:
    unknown: Any = SimpleNamespace(facts=CapturedFacts())
    assert collector_ns_per_step(unknown) == 0
    assert not collects_apart([unknown, rank(10_000)], 100)
    assert not collects_apart([rank("?"), rank(10_000)], 100)


def test_the_first_collective_of_a_pass_knows_when_that_began() -> None:
    since = time_since_pass_start(np.array([10, 50, 70]), np.array([20, 30, 90]))
    assert since.tolist() == [10, -1, 40]
    assert time_since_pass_start(np.array([10]), np.empty(0, np.int64)).tolist() == []
    assert time_since_pass_start(np.empty(0, np.int64), np.array([5, 6])).tolist() == [-1, -1]
