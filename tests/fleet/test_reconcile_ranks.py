"""The ranks of a folder of traces: their numbers, missing ones, and traces of different jobs or windows."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.errors import InputError
from perfdoctor.testing import SyntheticFleet, TraceBuilder


def trace(
    rank: int | None = None, world_size: int | None = None, first_step: int = 0, at_us: float = 0
) -> TraceBuilder:
    builder = TraceBuilder(rank=rank, world_size=world_size)
    for step in range(3):
        start = at_us + 1000 * step
        builder.step(start, 1000, first_step + step).kernel("ampere_sgemm_128x64_nn", start, 990, launch_us=start)
    return builder


def write(folder: Path, **traces: TraceBuilder) -> Path:
    for name, builder in traces.items():
        builder.write(folder / f"{name}.json")
    return folder


def numbers(folder: Path) -> list[int | None]:
    return [summary.rank for summary in perfdoctor.analyze(folder).traces]


def warnings(folder: Path) -> str:
    return "\n".join(w for summary in perfdoctor.analyze(folder).traces for w in summary.warnings)


def test_the_rank_in_the_trace_counts_before_the_name(tmp_path: Path) -> None:
    folder = write(tmp_path, rank7=trace(0, 2), rank1=trace(1, 2))
    assert sorted(numbers(folder), key=str) == [0, 1]
    assert "tell their ranks apart" not in warnings(folder)


@pytest.mark.parametrize("names", [("rank3", "rank5"), ("rank-3", "rank-5"), ("worker3", "worker5"), ("t_3", "t_5")])
def test_without_a_rank_in_the_trace_the_name_counts(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = write(tmp_path, **{name: trace() for name in names})
    assert numbers(folder) == [3, 5]
    assert warnings(folder) == ""


def test_without_a_rank_in_the_name_the_order_counts_and_a_warning_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, a=trace(), b=trace())
    assert numbers(folder) == [0, 1]
    assert "the files do not tell their ranks apart (2 of them do not say their rank)" in warnings(folder)


def test_ranks_with_the_same_number_are_numbered_anew_and_a_warning_names_it(tmp_path: Path) -> None:
    folder = write(tmp_path, a_rank0=trace(), b_rank0=trace(), c_rank1=trace())
    assert numbers(folder) == [0, 1, 2]
    assert "rank 0 comes more than once" in warnings(folder)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, **{f"r{rank}": trace(rank, 8) for rank in (1, 2, 7)})
    assert "5 of the job's 8 ranks have no trace here (0, 3-6)" in warnings(folder)


def test_no_rank_is_missing_of_a_single_trace_or_a_whole_job(tmp_path: Path) -> None:
    assert warnings(write(tmp_path, a=trace(3, 8))) == ""
    whole = SyntheticFleet(ranks=3, steps=2).write(tmp_path / "whole")
    assert "no trace" not in warnings(whole)


def test_the_rank_of_an_unreadable_file_is_not_missing_twice(tmp_path: Path) -> None:
    folder = write(tmp_path, rank0=trace(0, 3), rank1=trace(1, 3))
    (tmp_path / "rank2.json").write_text("no trace")
    assert "have no trace here" not in warnings(folder)


def test_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, a=trace(0, 2), b=trace(1, 4))
    with pytest.raises(
        InputError, match=r"a\.json is of a job of 2 ranks and .*b\.json of one of 4: .* different jobs"
    ):
        perfdoctor.analyze(folder)


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, a=trace(0, 2), b=trace(1, 2), c=trace(1, 2, first_step=50, at_us=1e6))
    with pytest.raises(InputError, match=r"b\.json and .*c\.json are both of rank 1"):
        perfdoctor.analyze(folder)


def test_different_windows_of_a_job_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, a=trace(0, 2), b=trace(1, 2, first_step=50, at_us=1e6))
    with pytest.raises(InputError, match=r"different windows: one has the steps 0-2 .*, another 50-52 "):
        perfdoctor.analyze(folder)


@pytest.mark.parametrize(
    "second",
    [trace(1, 2, first_step=50), trace(1, 2, at_us=1e12), trace(1, 2, first_step=2, at_us=1e12), trace(1, None)],
    ids=["same-time", "same-steps-other-clock", "one-step-shared", "size-unknown"],
)
def test_traces_that_may_be_of_one_job_are_not_refused(tmp_path: Path, second: TraceBuilder) -> None:
    folder = write(tmp_path, a=trace(0, 2), b=second)
    assert numbers(folder) == [0, 1]


def test_a_single_rank_of_refused_traces_can_be_analysed(tmp_path: Path) -> None:
    folder = write(tmp_path, a=trace(0, 2), b=trace(1, 4), rank0=trace(0, 2))
    with pytest.raises(InputError):
        perfdoctor.analyze(folder)
    assert [t.rank for t in perfdoctor.analyze(folder / "b.json").traces] == [1]
