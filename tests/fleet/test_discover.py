"""Which traces a path means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.errors import InputError, TraceError
from perfdoctor.fleet.discover import TraceFile, find_traces
from perfdoctor.trace.io.untrusted_files import read_beside_trace


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return root


def names(root: Path, *paths: str) -> list[tuple[str, int | None]]:
    files = find_traces([root / path for path in paths])
    return [(file.path.relative_to(root).as_posix(), file.rank) for file in files]


def test_a_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    make(tmp_path, "report.json", "x.txt")
    assert names(tmp_path, "report.json", "x.txt") == [("report.json", None), ("x.txt", None)]


def test_a_missing_file_is_left_to_the_reader(tmp_path: Path) -> None:
    assert find_traces([tmp_path / "gone.json"]) == (TraceFile(tmp_path / "gone.json"),)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("sampled_rank-1.json", 1),
        ("trace_8_rank_1.json", 1),
        ("worker12.pt.trace.json", 12),
        ("Rank 7.json", 7),
        ("host_85866.1698107929560561434.pt.trace.json", None),
        ("resnet_18.json", None),
        ("v100-torchrec-4ranks.json", None),
        ("num_workers_4.json", None),
        ("frank2.json", None),
    ],
)
def test_the_rank_is_in_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    make(tmp_path, name)
    assert names(tmp_path, name) == [(name, rank)]


def test_a_folder_gives_its_traces_by_rank(tmp_path: Path) -> None:
    make(tmp_path, "rank10.json.gz", "rank9.json", "rank0.json.gz", "zero.json", "deeper/rank1.json")
    assert names(tmp_path, ".") == [
        ("rank0.json.gz", 0),
        ("rank9.json", 9),
        ("rank10.json.gz", 10),
        ("zero.json", None),
    ]


def test_names_without_a_rank_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    make(tmp_path, "b.json", "a10.json", "a9.json")
    assert [name for name, _ in names(tmp_path, ".")] == ["a9.json", "a10.json", "b.json"]


def test_files_that_differ_in_a_trailing_number_have_it_as_rank(tmp_path: Path) -> None:
    make(tmp_path, "out_0.json", "out_10.pt.trace.json", "out_2.json.gz")
    assert [rank for _, rank in names(tmp_path, ".")] == [0, 2, 10]


@pytest.mark.parametrize("other", ["else_1.json", "plain.json", "rank1.json"])
def test_trailing_numbers_of_different_names_are_no_ranks(tmp_path: Path, other: str) -> None:
    make(tmp_path, "out_0.json", other)
    assert ("out_0.json", None) in names(tmp_path, ".")


def test_reports_and_facts_in_a_folder_are_no_traces(tmp_path: Path) -> None:
    make(
        tmp_path,
        "t.json",
        "report.json",
        "facts.json",
        "my-report.json",
        "t.html",
        "steps.jsonl",
        ".hidden.json",
        "config.json",
    )
    assert names(tmp_path, ".") == [("t.json", None)]


def test_rank_folders_are_searched(tmp_path: Path) -> None:
    make(tmp_path, "rank1/trace.json", "rank0/trace.json", "other/trace.json")
    assert names(tmp_path, ".") == [("rank0/trace.json", 0), ("rank1/trace.json", 1)]


def test_a_capture_gives_timing_with_facts_and_evidence(tmp_path: Path) -> None:
    for rank in (0, 1):
        make(tmp_path / f"rank{rank}", "timing.json.gz", "evidence.json.gz", "facts.json", "steps.jsonl")
    make(tmp_path, "report.json", "report.html")
    assert find_traces([tmp_path]) == tuple(
        TraceFile(folder / "timing.json.gz", rank, folder / "facts.json", folder / "evidence.json.gz")
        for rank, folder in enumerate([tmp_path / "rank0", tmp_path / "rank1"])
    )


def test_a_capture_of_evidence_only_gives_that(tmp_path: Path) -> None:
    make(tmp_path, "rank2/evidence.json.gz")
    assert find_traces([tmp_path]) == (TraceFile(tmp_path / "rank2/evidence.json.gz", 2),)
    assert find_traces([tmp_path / "rank2"]) == (TraceFile(tmp_path / "rank2/evidence.json.gz", 2),)


def test_captures_of_several_hosts_in_one_folder_are_one_fleet(tmp_path: Path) -> None:
    for rank in range(4):
        make(tmp_path / f"host{rank // 2}" / f"rank{rank}", "timing.json.gz", "facts.json")
    make(tmp_path / "host0", "report.json")
    found = find_traces([tmp_path])
    assert [file.rank for file in found] == [0, 1, 2, 3]
    assert [file.path.parent.parent.name for file in found] == ["host0", "host0", "host1", "host1"]
    assert find_traces([tmp_path / "host*"]) == found


def test_folders_beside_traces_are_not_searched(tmp_path: Path) -> None:
    make(tmp_path / "before" / "rank0", "timing.json.gz")
    make(tmp_path, "t.json")
    assert names(tmp_path, ".") == [("t.json", None)]


@pytest.mark.parametrize("name", ["x" * 5000, "1" * 5000, "/".join(["y" * 200] * 100)])
def test_a_name_that_is_too_long_is_left_to_the_reader(name: str) -> None:
    assert [str(file.path) for file in find_traces([name])] == [name]


def test_a_pattern_gives_each_match_once(tmp_path: Path) -> None:
    make(tmp_path, "a.json", "b.json", "report.json", "c/rank0.json")
    assert names(tmp_path, "*.json", "a.json", "b*") == [("a.json", None), ("b.json", None)]
    assert names(tmp_path, "[c]") == [("c/rank0.json", 0)]
    assert names(tmp_path, "rep*.json") == [("report.json", None)]


def test_a_file_with_brackets_in_its_name_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "t[1].json", "t1.json")
    assert names(tmp_path, "t[1].json") == [("t[1].json", None)]


def test_an_empty_folder_and_an_empty_pattern_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "notes.txt", "inner/t.json")
    with pytest.raises(InputError, match="no traces in this folder"):
        find_traces([tmp_path])
    with pytest.raises(InputError, match="no file matches this pattern"):
        find_traces([tmp_path / "*.json"])


@pytest.mark.nonroot
def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        with pytest.raises(InputError, match="no permission to list"):
            find_traces([tmp_path])
    finally:
        tmp_path.chmod(0o700)


def test_exports_of_nsight_systems_are_read_when_there_are_no_other_traces(tmp_path: Path) -> None:
    make(tmp_path, "rank0.sqlite", "rank1.SQLITE", "rank0.nsys-rep")
    assert names(tmp_path, ".") == [("rank0.sqlite", 0), ("rank1.SQLITE", 1)]
    make(tmp_path, "t.json.zst")
    assert names(tmp_path, ".") == [("t.json.zst", None)]


def urls(*paths: str) -> list[tuple[str, int | None]]:
    return [(os.fspath(file.path), file.rank) for file in find_traces(paths)]


@pytest.mark.usefixtures("memory")
def test_a_url_is_itself_and_standard_input_too() -> None:
    assert urls("memory://x/rank3.json", "-") == [("memory://x/rank3.json", 3), ("-", None)]
    assert urls("https://host/rank1.json?sig=a*b[c]") == [("https://host/rank1.json?sig=a*b[c]", 1)]


def test_a_folder_behind_a_url_gives_its_traces(memory: Any) -> None:
    for name in ("rank10.json.gz", "rank9.json", "report.json", "notes.txt", ".hidden.json", "deeper/rank1.json"):
        memory.pipe(f"/run/{name}", b"{}")
    assert urls("memory://run") == [("memory:///run/rank9.json", 9), ("memory:///run/rank10.json.gz", 10)]
    assert urls("memory://run/") == urls("memory://run")


def test_a_capture_behind_a_url_gives_timing_with_facts_and_evidence(memory: Any) -> None:
    for rank in (0, 1):
        for name in ("timing.json.gz", "evidence.json.gz", "facts.json"):
            memory.pipe(f"/run/rank{rank}/{name}", b"{}")
    found = find_traces(["memory://run"])
    assert [file.rank for file in found] == [0, 1]
    assert [os.fspath(file.path) for file in found] == [f"memory:///run/rank{rank}/timing.json.gz" for rank in (0, 1)]
    assert all(file.facts_path is not None and read_beside_trace(file.facts_path) == b"{}" for file in found)
    assert [os.fspath(file.evidence_path or "") for file in found] == [
        f"memory:///run/rank{rank}/evidence.json.gz" for rank in (0, 1)
    ]


def test_a_pattern_in_a_url_gives_its_matches(memory: Any) -> None:
    for name in ("a.json", "b.json", "report.json"):
        memory.pipe(f"/run/{name}", b"{}")
    assert urls("memory://run/*.json") == [("memory:///run/a.json", None), ("memory:///run/b.json", None)]


def test_a_url_is_a_prefix_when_nothing_has_that_name(memory: Any) -> None:
    for name in ("rank0.json", "rank1.json", "rank1", "other.json"):
        memory.pipe(f"/run/{name}", b"{}")
    assert urls("memory://run/rank") == [
        ("memory:///run/rank0.json", 0),
        ("memory:///run/rank1", 1),
        ("memory:///run/rank1.json", 1),
    ]
    assert urls("memory://run/rank1") == [("memory://run/rank1", 1)]
    assert urls("memory://run/gone") == [("memory://run/gone", None)]


def test_a_url_without_traces_is_refused(memory: Any) -> None:
    memory.pipe("/run/notes.txt", b"{}")
    with pytest.raises(InputError, match="memory://run: no traces in this folder"):
        find_traces(["memory://run"])
    with pytest.raises(InputError, match="no file matches this pattern"):
        find_traces(["memory://run/*.json"])
    with pytest.raises(TraceError, match="nothing is known that reads nonsense://"):
        find_traces(["nonsense://host/run"])
