"""How many worker processes analyse the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfdoctor.fleet import worker_count
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.worker_count import choose_worker_count, estimate_text_bytes
from perfdoctor.trace.io.remote_path import RemotePath

MB = 1_000_000


def files(folder: Path, *sizes: int, name: str = "rank{}.json") -> list[TraceFile]:
    """Sparse files of these sizes in bytes."""
    traces = []
    for rank, size in enumerate(sizes):
        path = folder / name.format(rank)
        with path.open("wb") as out:
            out.truncate(size)
        traces.append(TraceFile(path, rank=rank))
    return traces


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, and 10 GB for all workers."""
    monkeypatch.setattr(worker_count, "core_count", lambda: 8)
    monkeypatch.setattr(worker_count, "memory_budget_bytes", lambda: 10_000 * MB)


def test_one_file_needs_no_other_process(tmp_path: Path) -> None:
    assert choose_worker_count(files(tmp_path, 900 * MB), None) == 1


def test_small_files_are_read_before_a_process_has_started(tmp_path: Path) -> None:
    assert choose_worker_count(files(tmp_path, *[MB] * 16), None) == 1


def test_many_small_files_are_shared_unless_a_rule_wants_all_ranks_in_one_process(tmp_path: Path) -> None:
    small = files(tmp_path, *[MB // 2] * 64)
    assert choose_worker_count(small, None) == 8
    assert choose_worker_count(small, None, prefers_one=True) == 1


def test_there_are_no_more_workers_than_files_or_cores(tmp_path: Path) -> None:
    assert choose_worker_count(files(tmp_path, *[60 * MB] * 3), None) == 3
    assert choose_worker_count(files(tmp_path, *[20 * MB] * 64), None) == 8


def test_all_workers_together_fit_into_memory(tmp_path: Path) -> None:
    large = files(tmp_path, *[2000 * MB] * 8)
    needed_bytes = [worker_count.estimate_worker_bytes(file) for file in large]
    workers = choose_worker_count(large, None)
    assert sum(needed_bytes[:workers]) <= 10_000 * MB < sum(needed_bytes[: workers + 1])


def test_a_file_that_is_too_large_for_memory_is_read_by_one_process(tmp_path: Path) -> None:
    assert choose_worker_count(files(tmp_path, 20_000 * MB, 20_000 * MB), None) == 1


def test_the_number_that_the_user_asks_for_counts_but_none_is_idle(tmp_path: Path) -> None:
    small = files(tmp_path, *[1000] * 4)
    assert [choose_worker_count(small, requested) for requested in (1, 2, 12)] == [1, 2, 4]


def test_standard_input_is_read_by_this_process() -> None:
    assert choose_worker_count([TraceFile(RemotePath("-")), TraceFile(Path("a.json"))], 4) == 1


def test_the_text_of_compressed_and_remote_files_is_estimated(tmp_path: Path) -> None:
    (plain,), (compressed,) = files(tmp_path, MB), files(tmp_path, MB, name="rank{}.json.gz")
    assert estimate_text_bytes(plain) == MB < estimate_text_bytes(compressed)
    assert estimate_text_bytes(TraceFile(tmp_path / "gone.json")) == 0
    assert estimate_text_bytes(TraceFile(RemotePath("s3://bucket/rank0.json"))) > MB
    both = TraceFile(plain.path, evidence_path=compressed.path)
    assert estimate_text_bytes(both) == estimate_text_bytes(plain) + estimate_text_bytes(compressed)


def test_memory_and_cores_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < worker_count.memory_budget_bytes() < 10**15
    assert 1 <= worker_count.core_count() <= (os.cpu_count() or 1)
