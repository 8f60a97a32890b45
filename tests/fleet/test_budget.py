"""How many processes share the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfdoctor.fleet import budget
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.trace.io.remote_path import RemotePath

MB = 1_000_000


def files(folder: Path, *sizes: int, name: str = "rank{}.json") -> list[TraceFile]:
    """Files of so many bytes, which take none on disk."""
    made = []
    for rank, size in enumerate(sizes):
        path = folder / name.format(rank)
        with path.open("wb") as out:
            out.truncate(size)
        made.append(TraceFile(path, rank=rank))
    return made


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, and 10 GB for all."""
    monkeypatch.setattr(budget, "cores", lambda: 8)
    monkeypatch.setattr(budget, "budget_bytes", lambda: 10_000 * MB)


def test_one_file_needs_no_other_process(tmp_path: Path) -> None:
    assert budget.jobs_for(files(tmp_path, 900 * MB), None) == 1


def test_small_files_are_read_before_a_process_has_started(tmp_path: Path) -> None:
    assert budget.jobs_for(files(tmp_path, *[MB] * 16), None) == 1


def test_as_many_as_there_are_files_and_no_more_than_cores(tmp_path: Path) -> None:
    assert budget.jobs_for(files(tmp_path, *[60 * MB] * 3), None) == 3
    assert budget.jobs_for(files(tmp_path, *[20 * MB] * 64), None) == 8


def test_no_more_than_fit_into_memory(tmp_path: Path) -> None:
    large = files(tmp_path, *[2000 * MB] * 8)
    together = [budget.needed_bytes(file) for file in large]
    jobs = budget.jobs_for(large, None)
    assert sum(together[:jobs]) <= 10_000 * MB < sum(together[: jobs + 1])


def test_what_is_too_large_for_memory_is_tried_alone(tmp_path: Path) -> None:
    assert budget.jobs_for(files(tmp_path, 20_000 * MB, 20_000 * MB), None) == 1


def test_the_users_number_is_taken_but_for_idle_ones(tmp_path: Path) -> None:
    small = files(tmp_path, *[1000] * 4)
    assert [budget.jobs_for(small, wanted) for wanted in (1, 2, 12)] == [1, 2, 4]


def test_standard_input_is_read_by_this_process() -> None:
    assert budget.jobs_for([TraceFile(RemotePath("-")), TraceFile(Path("a.json"))], 4) == 1


def test_compressed_files_hold_more_than_their_size_and_unseen_ones_something(tmp_path: Path) -> None:
    (plain,), (packed,) = files(tmp_path, MB), files(tmp_path, MB, name="rank{}.json.gz")
    assert budget.text_bytes(plain) == MB < budget.text_bytes(packed)
    assert budget.text_bytes(TraceFile(tmp_path / "gone.json")) == 0
    assert budget.text_bytes(TraceFile(RemotePath("s3://bucket/rank0.json"))) > MB
    both = TraceFile(plain.path, evidence=packed.path)
    assert budget.text_bytes(both) == budget.text_bytes(plain) + budget.text_bytes(packed)


def test_memory_is_what_the_machine_and_the_container_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < budget.budget_bytes() < 10**15
    assert 1 <= budget.cores() <= (os.cpu_count() or 1)
