"""The rank of a process: by torch.distributed, by its launcher, or alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("torch")

from perfdoctor.capture.capture_folder import launcher_rank
from perfdoctor.capture.inject._perfdoctor_inject.rank_identity import rank_and_world_size

NAMES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected", "launched"),
    [
        ({}, (0, 1), None),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8), 3),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, 4), 2),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}, (5, 6), 5),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2), None),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2), 1),
        ({"RANK": "4"}, (4, 5), None),  # a size that is not given is at least this
        ({"RANK": "zero", "WORLD_SIZE": "2"}, (0, 2), None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1), None),  # srun around torchrun: one task
    ],
)
def test_the_rank_is_read_from_the_variables_of_the_launcher(
    environment: Mapping[str, str], expected: tuple[int, int], launched: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world_size() == expected
    assert launcher_rank() == launched


def test_torch_distributed_comes_before_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="this torch has no fake backend")
    import torch.distributed as dist

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group(backend="fake", rank=3, world_size=8, store=fake.FakeStore())
    try:
        assert rank_and_world_size() == (3, 8)
    finally:
        dist.destroy_process_group()
    assert rank_and_world_size() == (0, 1)
