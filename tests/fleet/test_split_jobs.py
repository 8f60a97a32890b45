"""Which traces are ranks of one job, and which have nothing to do with each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoctor.fleet.discover import find_traces
from perfdoctor.fleet.split_jobs import split_jobs
from perfdoctor.testing import TraceBuilder


def write(path: Path, rank: int | None = None, world_size: int | None = None, device: str | None = "H100") -> None:
    builder = TraceBuilder(device=device)
    if rank is not None:
        job = {"rank": rank} if world_size is None else {"backend": "nccl", "rank": rank, "world_size": world_size}
        builder.header(distributedInfo=job)
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.kernel("sgemm", 10, 600).write(path)


def jobs_in(folder: Path, *, in_order: bool = False) -> list[list[str]]:
    jobs = split_jobs(find_traces([folder]), in_order=in_order)
    return [[str(Path(str(file.path)).relative_to(folder)) for file in job] for job in jobs]


@pytest.mark.parametrize(
    "ranks",
    [
        {"rank0.json": (0, 2), "rank1.json": (1, 2)},
        {"rank0.json": (None, None), "rank1.json": (None, None)},
        {"host_12.1698.pt.trace.json": (0, 2), "other_13.1699.pt.trace.json.gz": (1, 2)},
        {"out_0.json": (None, None), "out_1.json": (None, None)},
        {"rank0/trace.json": (None, None), "rank1/trace.json": (None, None)},
        {"rank0.host1.12.json": (0, 2), "rank1.host2.13.json": (None, None)},
        {"a.json": (0, None), "b.json": (1, None)},
        {"rank3.json": (3, 8), "rank5.json": (5, 8)},
    ],
)
def test_ranks_of_one_job_stay_together(tmp_path, ranks):
    for name, (rank, world_size) in ranks.items():
        write(tmp_path / name, rank, world_size)
    assert jobs_in(tmp_path) == [list(ranks)]


@pytest.mark.parametrize(
    "traces",
    [
        {"a.json": (None, None, "H100"), "b.json": (None, None, "H100")},
        {"a.json": (None, None, "H100"), "b.json": (None, None, "A100")},
        {"a.json": (0, 1, "H100"), "b.json": (0, 1, "H100")},
        {"a.json": (0, 2, "H100"), "b.json": (1, 4, "H100")},
        {"a.json": (0, 2, "H100"), "b.json": (1, 2, "A100")},
        {"a.json": (0, 2, "H100"), "b.json": (0, 2, "H100")},
        {"resnet_18.json": (None, None, "H100"), "vit.json": (None, None, "H100")},
        {"cpu-rank34.json": (34, 300, None), "old.json": (0, None, "P100"), "one.json": (None, None, "H100")},
    ],
)
def test_traces_of_different_jobs_are_jobs_of_their_own(tmp_path, traces):
    for name, (rank, world_size, device) in traces.items():
        write(tmp_path / name, rank, world_size, device)
    assert jobs_in(tmp_path) == [[name] for name in traces]


def test_two_jobs_of_two_ranks_each(tmp_path):
    for job, device in (("a", "H100"), ("b", "H100")):
        for rank in (0, 1):
            write(tmp_path / f"{job}_rank{rank}.json", rank, 2, device)
    assert jobs_in(tmp_path) == [["a_rank0.json", "a_rank1.json"], ["b_rank0.json", "b_rank1.json"]]


def test_windows_of_ranks_are_told_apart_by_their_order(tmp_path):
    for rank in (0, 1):
        for moment in (5, 9):
            write(tmp_path / f"host_{rank + 7}.{moment}.pt.trace.json", rank, 2)
    assert [len(job) for job in jobs_in(tmp_path)] == [2, 2]
    assert jobs_in(tmp_path)[0] == ["host_7.5.pt.trace.json", "host_8.5.pt.trace.json"]


def test_captures_of_single_processes_are_jobs_of_their_own_and_those_of_hosts_are_one(tmp_path):
    for capture, rank, size in (("one/x", 0, 1), ("one/y", 0, 1), ("hosts/x", 0, 2), ("hosts/y", 1, 2)):
        write(tmp_path / capture / f"rank{rank}" / "timing.json")
        (tmp_path / capture / f"rank{rank}" / "facts.json").write_text(json.dumps({"world_size": size}))
    assert len(jobs_in(tmp_path / "one")) == 2
    assert jobs_in(tmp_path / "hosts") == [["x/rank0/timing.json", "y/rank1/timing.json"]]


def test_what_cannot_be_read_is_a_rank_that_the_only_job_lacks(tmp_path):
    write(tmp_path / "a.json", 0, 2)
    write(tmp_path / "b.json", 1, 2)
    (tmp_path / "broken.json").write_text("no trace")
    assert jobs_in(tmp_path) == [["a.json", "b.json", "broken.json"]]
    write(tmp_path / "alone.json")
    assert jobs_in(tmp_path) == [["a.json", "b.json", "broken.json"], ["alone.json"]]


def test_files_that_were_named_in_order_are_ranks_unless_something_contradicts_it(tmp_path):
    write(tmp_path / "a.json")
    write(tmp_path / "b.json")
    assert jobs_in(tmp_path, in_order=True) == [["a.json", "b.json"]]
    write(tmp_path / "b.json", device="A100")
    assert len(jobs_in(tmp_path, in_order=True)) == 2


def test_the_corpus_is_split_as_its_folders_say(corpus):
    assert all(len(job) == 1 for job in split_jobs(find_traces([corpus])))
    folders = sorted(path for path in corpus.iterdir() if path.is_dir())
    for job in split_jobs(find_traces(folders)):
        assert len({Path(str(file.path)).parent for file in job}) == 1
    assert len(split_jobs(find_traces(folders))) == len(folders)
