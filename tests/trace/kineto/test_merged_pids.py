"""The rank that a process id of a merged file belongs to."""

from __future__ import annotations

import pytest

from perfdoctor.trace.kineto.merged_pids import ranks_of_threads


@pytest.mark.parametrize(
    ("threads", "ranks"),
    [
        (["7/1", "100000007/1", "300000000/2"], (0, 1, 3)),
        (["7/1", "99999999/1"], ()),
        (["python/1", "-100000000/1", "200000001/stream 7"], (0, 0, 2)),
        (["99999999999999/1", "100000000000000/1"], (999_999, 0)),
        ([f"{10**18}/1", "9" * 5000 + "/1"], ()),
        ([], ()),
    ],
)
def test_the_rank_of_a_thread_is_told_by_its_process_id(threads: list[str], ranks: tuple[int, ...]) -> None:
    assert ranks_of_threads(threads) == ranks
