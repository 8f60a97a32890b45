"""The length of each step on each rank, from the accounts that a report keeps of all its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.report.chart_data import RankHeatMap
from perfdoctor.trace.arrays import NONE, Int64Array

_MAX_CELLS = 100_000


def rank_heat_map_of(
    accounts: Sequence[Account], late_ns: Mapping[int | None, int], max_cells: int = _MAX_CELLS
) -> RankHeatMap | None:
    """The heat map of some ranks; None for a single one.

    Beyond `max_cells` figures steps in a row are averaged.
    """
    if len(accounts) < 2:
        return None
    lengths = [_step_lengths(account) for account in accounts]
    longest = max(map(len, lengths))
    steps_per_cell = max(-(-longest * len(accounts) // max_cells), 1)
    cells = np.full((len(accounts), -(-longest // steps_per_cell)), NONE, np.int64)
    for row, steps_ns in zip(cells, lengths, strict=True):
        means_ns = _means(steps_ns, steps_per_cell)
        row[: len(means_ns)] = means_ns
    ranks = tuple(account.rank for account in accounts)
    late = tuple(late_ns.get(rank) for rank in ranks) if late_ns else None
    return RankHeatMap(ranks, cells, steps_per_cell, late)


def _step_lengths(account: Account) -> Int64Array:
    """The lengths of an account's steps; that of its window where it has none."""
    steps = account.steps
    return steps[:, 1] - steps[:, 0] if len(steps) else np.array([account.window_ns], np.int64)


def _means(values: Int64Array, count: int) -> Int64Array:
    """The mean of each `count` values in a row, the last of those that are left."""
    first = np.arange(0, len(values), count)
    sizes = np.diff(np.append(first, len(values)))
    return np.rint(np.add.reduceat(values, first) / sizes).astype(np.int64)
