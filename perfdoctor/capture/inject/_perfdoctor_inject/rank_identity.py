"""Which rank of the job this process is."""

from __future__ import annotations

import os
import sys

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def read_number(names: tuple[str, ...]) -> int | None:
    """The first number among these environment variables, None when none of them is a number."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def rank_and_world_size() -> tuple[int, int]:
    """Rank and world size: of torch.distributed once it is initialised, else of the launcher, else 0 of 1."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank = read_number(RANK_VARIABLES)
    world_size = read_number(WORLD_SIZE_VARIABLES)
    return rank or 0, max(world_size or 1, (rank or 0) + 1)
