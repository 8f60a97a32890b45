"""Process ids of a file into which a tool has merged the files of several ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable

RANK_STRIDE = 10**8
"""Tools that merge the files of ranks into one add rank x 1e8 to the process ids."""
MAX_RANKS = 10**6
"""More ranks than any job has."""

_PID = re.compile(r"[0-9]{1,14}(?=/)")  # up to MAX_RANKS; larger ids are something else


def ranks_of_threads(threads: Iterable[str]) -> tuple[int, ...]:
    """The rank that each ``"pid/tid"`` belongs to; empty when all belong to rank 0."""
    pids = (_PID.match(thread) for thread in threads)
    ranks = tuple(int(pid.group()) // RANK_STRIDE if pid else 0 for pid in pids)
    return ranks if any(ranks) else ()
