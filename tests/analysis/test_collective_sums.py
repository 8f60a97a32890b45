"""What ranks did at each collective is summed in a tree: every tree gives the sums of the plain loop, to the bit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.communication import collective_sums
from perfdoctor.analysis.communication.collective_sums import CollectiveSums, merge_sums, sum_ranks
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.rank_clocks import RankClock
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.trace.arrays import Int64Array

NEVER = np.iinfo(np.int64).min
Ranks = tuple[list[CollectiveTable], list[RankClock], list[Int64Array]]


@st.composite
def ranks(draw: st.DrawFn) -> Ranks:
    """Some ranks that take part in some of nine collectives, many with the same rows, and few different times."""
    shared = draw(st.lists(st.permutations(range(9)), min_size=1, max_size=3))
    cut = [np.array(each[: draw(st.integers(1, 9))], np.int64) for each in shared]
    numbers = draw(st.lists(st.sampled_from(range(len(cut))), min_size=1, max_size=9))
    tables, clocks = [], []
    for index, which in enumerate(numbers):
        count = len(cut[which])
        column = st.lists(st.integers(0, 5), min_size=count, max_size=count)
        start, took, step = (np.array(draw(column), np.int64) for _ in range(3))
        tables.append(
            CollectiveTable(
                rank=index,
                start_ns=start,
                end_ns=start + took,
                kind=took.astype(np.int8),
                group=(step - 1).astype(np.int32),
                step=(step - 2).astype(np.int32),
                preceding_phase_ns=np.outer(start, np.arange(len(PHASES))).astype(np.float32) * 1e9,
                preceding_once_ns=took,
                step_start_ns=np.zeros(index % 2, np.int64),
            )
        )
        clocks.append(RankClock(draw(st.integers(-3, 3))))
    return tables, clocks, [cut[which] for which in numbers]


def sum_plainly(given_ranks: Ranks) -> dict[int, dict[str, Any]]:
    """By number of a collective its sums, rank after rank."""
    found: dict[int, dict[str, Any]] = {}
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for index, number in enumerate(given_ranks[2]):
        for row, each in enumerate(number.tolist()):
            rows.setdefault(each, []).append(
                (index, row, int(given_ranks[0][index].start_ns[row]) + given_ranks[1][index].offset_ns)
            )
    for number, some in rows.items():
        arrivals = sorted(start for *_, start in some)
        index, row, last = max(some, key=lambda each: (each[2], -each[0]))
        table = given_ranks[0][index]
        found[number] = {
            "count": len(some),
            "last_rank": index,
            "last_ns": last,
            "second_ns": arrivals[-2] if len(some) > 1 else NEVER,
            "wait_ns": sum(last - start for start in arrivals),
            "end_ns": max(int(given_ranks[0][i].end_ns[r]) + given_ranks[1][i].offset_ns for i, r, _ in some),
            "kind": table.kind[row],
            "step": table.step[row],
            "in_window": table.in_window[row],
            "has_group": table.group[row] >= 0,
            "last_before_ns": before(table, row),
            "before_ns": np.sum([before(given_ranks[0][i], r) for i, r, _ in some], axis=0).tolist(),
        }
    return found


def before(table: CollectiveTable, row: int) -> list[float]:
    return [*table.preceding_phase_ns[row].astype(np.float64).tolist(), float(table.preceding_once_ns[row])]


def check_equal(sums: CollectiveSums, plain: dict[int, dict[str, Any]]) -> None:
    assert sums.number.tolist() == sorted(plain)
    for row, number in enumerate(sums.number.tolist()):
        for name, value in plain[number].items():
            assert np.array_equal(getattr(sums, name)[row], value), name


@given(ranks(), st.data())
def test_any_tree_gives_the_plain_sums(given_ranks: Ranks, data: st.DataObject) -> None:
    tables, clocks, numbers = given_ranks
    parts = []
    for index in range(len(tables)):
        one = sum_ranks(tables[index : index + 1], clocks[index : index + 1], numbers[index : index + 1])
        own = {each.name: getattr(one, each.name) for each in fields(one)}
        parts.append(CollectiveSums(**(own | {"last_rank": np.full_like(one.last_rank, index)})))
    parts = data.draw(st.permutations(parts))
    while len(parts) > 1:
        first = data.draw(st.integers(0, len(parts) - 2))
        last = data.draw(st.integers(first + 2, len(parts)))
        parts = [*parts[:first], merge_sums(parts[first:last]), *parts[last:]]
    check_equal(parts[0], sum_plainly(given_ranks))


@given(given_ranks=ranks(), fan_in=st.integers(2, 5))
def test_any_number_at_a_time_gives_the_plain_sums(given_ranks: Ranks, fan_in: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_sums, "FAN_IN", fan_in)
        check_equal(sum_ranks(*given_ranks), sum_plainly(given_ranks))
