"""Who is missing, in which collective, at which line, of what kind; and as many jobs in which nobody is."""

from __future__ import annotations

import os
import re
import signal
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flight_recorder_dumps import START_NS, WORLD, call, dump, write_dumps

from perfdoctor.facts.part import CapturedLine
from perfdoctor.run_watch.hang import Hang
from perfdoctor.run_watch.judge_hang import HangInputs, judge_hang
from perfdoctor.run_watch.rank_state import ProcessState, ProcessStates, RankAnswer, ThreadState
from perfdoctor.run_watch.read_hang import find_hang_files, read_hang
from perfdoctor.trace.flight_recorder import read_dump

DONE = call(number=1, state="completed")
WAITS = dump(DONE, call(number=2))
BEHIND = dump(DONE)
SUBGROUPS = {"0": ("default_pg", WORLD), "7": ("pair", (0, 1)), "8": ("pair", (1, 2))}


def stack(*lines: tuple[str, int, str]) -> ThreadState:
    frames = tuple(CapturedLine(file=file, line=line, function=function) for file, line, function in lines)
    return ThreadState(name="MainThread", is_main=True, frames=frames)


USER = ("/home/me/train.py", 44, "load")
LOADER = ("/lib/site-packages/torch/utils/data/dataloader.py", 700, "_next_data")
FETCH = ("/lib/site-packages/torch/utils/data/_utils/fetch.py", 54, "fetch")


def state(**values: Any) -> ProcessStates:
    of_rank = ProcessState(**{"state": "running", "answered": True, "idle_s": 30.0, "is_moving": False} | values)
    return ProcessStates(world_size=3, ranks={"1": of_rank})


def judge(tmp_path: Path, dumps: dict[int, Any], **more: Any) -> Hang | None:
    folder = write_dumps(tmp_path, dumps)
    read = {rank: read_dump(folder / f"nccl_trace_rank_{rank}", rank) for rank in dumps}
    processes, moving = more.get("processes", ProcessStates()), more.get("moving", frozenset())
    return judge_hang(HangInputs(read, more.get("answers", {}), processes, moving))


def ask_torch(folder: Path) -> set[int]:
    """The ranks that torch's own analyzer calls missing in its first finding; it logs what does not match."""
    pytest.importorskip("torch.distributed.flight_recorder")
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.loader import read_dir

    details, version = read_dir(Namespace(prefix="nccl_trace_rank_", trace_dir=str(folder)))
    options = Namespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10)
    database = build_db(details, options, version)
    return next((set(each.missing_ranks) for each in database.collectives if each.missing_ranks), set())


def test_a_rank_that_has_not_come(tmp_path: Path) -> None:
    hang = judge(tmp_path, {0: WAITS, 1: BEHIND, 2: WAITS})
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.collective.waiting) == ("missing", (1,), (0, 2))
    assert (hang.collective.name, hang.collective.number, hang.collective.group) == ("all_reduce", 2, "default_pg")
    assert str(hang.location) == "/home/me/train.py:30"
    assert ask_torch(tmp_path) == set(hang.ranks)


@pytest.mark.parametrize(
    ("odd", "mismatch"),
    [
        (call("broadcast", 2, line=60), "COLLECTIVE_TYPE_MISMATCH"),
        (call(number=2, sizes=(5,), line=60), "SIZE_OR_SYNTAX_MISMATCH"),
        (call(number=2, dtype="Double", line=60), "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_another_collective_size_or_type(
    tmp_path: Path, odd: dict[str, Any], mismatch: str, caplog: pytest.LogCaptureFixture
) -> None:
    hang = judge(tmp_path, {0: WAITS, 1: dump(DONE, odd), 2: WAITS})
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.location.line) == ("mismatch", (1,), 60)
    ask_torch(tmp_path)
    assert f"Culprit rank 1; Error type: {mismatch}" in caplog.text


def test_of_two_ranks_that_differ_both_are_named(tmp_path: Path) -> None:
    group = {"0": ("default_pg", (0, 1))}
    hang = judge(
        tmp_path, {0: dump(call(number=2), groups=group), 1: dump(call("broadcast", 2, line=60), groups=group)}
    )
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("mismatch", (0, 1))


def test_the_way_over_other_ranks_leads_to_the_one_at_fault(tmp_path: Path) -> None:
    """Rank 0 waits for 1 in a group of these, 1 waits for 2 in another one, and 2 has not come."""
    first = dump(call(number=4, group=("7", "pair"), record=1), groups=SUBGROUPS)
    second = dump(call(number=9, group=("8", "pair"), record=1), groups=SUBGROUPS)
    last = dump(DONE, groups=SUBGROUPS)
    hang = judge(tmp_path, {0: first, 1: second, 2: last})
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.collective.number, hang.collective.waiting) == ("missing", (2,), 9, (1,))


def test_two_groups_in_another_order_on_two_ranks(tmp_path: Path) -> None:
    groups = {"1": ("first", (0, 1)), "2": ("second", (0, 1))}
    hang = judge(
        tmp_path,
        {
            0: dump(call(number=1, group=("1", "first")), groups=groups),
            1: dump(call(number=1, group=("2", "second")), groups=groups),
        },
    )
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("mismatch", (0, 1))


def test_names_of_groups_are_local_to_a_rank(tmp_path: Path) -> None:
    here = {"5": ("pair", (0, 1)), "9": ("pair", (1, 2))}
    there = {"6": ("pair", (0, 1))}
    hang = judge(
        tmp_path,
        {
            0: dump(call(number=3, group=("6", "pair")), groups=there),
            1: dump(call(number=2, group=("5", "pair"), state="completed"), groups=here),
        },
    )
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("missing", (1,))


def test_a_send_waits_for_the_rank_that_receives(tmp_path: Path) -> None:
    hang = judge(tmp_path, {0: dump(call("send 0->2", 5)), 1: BEHIND, 2: BEHIND})
    assert hang is not None
    assert (hang.ranks, hang.collective.name) == ((2,), "send 0->2")


def test_a_gpu_that_ends_nothing(tmp_path: Path) -> None:
    later = dump(DONE, call(number=2, state="completed"), call(number=3))
    stuck = dump(DONE, call(number=2), call(number=3))
    hang = judge(tmp_path, {0: later, 1: stuck, 2: later})
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("dead", (1,))
    assert "GPU" in hang.sentence


def test_all_have_come_and_it_does_not_end(tmp_path: Path) -> None:
    hang = judge(tmp_path, dict.fromkeys(WORLD, WAITS))
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("unknown", WORLD)


@pytest.mark.parametrize(
    ("values", "answer", "kind", "words"),
    [
        ({"state": "ended", "signal": signal.SIGKILL, "answered": False}, None, "dead", "killed by SIGKILL"),
        ({"state": "ended", "exit_code": 3, "answered": False}, None, "dead", "exit code 3"),
        ({"state": "gone", "ended_by_itself": True, "answered": False}, None, "dead", "in the ordinary way"),
        ({}, RankAnswer(error=CapturedLine(file=USER[0], line=9), error_type="ValueError"), "dead", "ValueError"),
        ({"state": "stopped", "answered": False}, None, "blocked", "is stopped"),
        ({"call": "lock"}, RankAnswer(threads=(stack(USER),)), "blocked", "lock at train.py:44"),
        ({"call": "read", "file": "/data/pipe"}, RankAnswer(threads=(stack(USER),)), "blocked", "read /data/pipe"),
        ({"answered": False, "thread": stack(USER)}, None, "blocked", "(GIL)"),
        ({"call": "poll"}, RankAnswer(threads=(stack(LOADER, USER),)), "blocked", "loader"),
        ({"call": "sleep"}, RankAnswer(threads=(stack(USER),)), "slow", "sleeps at train.py:44"),
        ({"is_moving": True}, RankAnswer(threads=(stack(USER),)), "slow", "still works at train.py:44"),
        ({}, RankAnswer(threads=(stack(USER),)), "missing", "it is at train.py:44"),
    ],
)  # fmt: skip
def test_what_the_missing_rank_does(
    tmp_path: Path, values: dict[str, Any], answer: RankAnswer | None, kind: str, words: str
) -> None:
    answers = {} if answer is None else {1: answer}
    hang = judge(tmp_path, {0: WAITS, 2: WAITS}, answers=answers, processes=state(**values))
    assert hang is not None
    assert (hang.kind, hang.ranks) == (kind, (1,))
    assert words in hang.sentence


def test_a_worker_that_blocks_is_named_with_its_line(tmp_path: Path) -> None:
    in_data_set, in_queue = stack(("/home/me/data.py", 7, "get"), FETCH), stack(("/lib/python3.11/queue.py", 1, "get"))
    worker = ProcessState(state="running", call="lock", is_moving=False, thread=in_data_set)
    idle = ProcessState(state="running", call="poll", is_moving=False, thread=in_queue)
    processes = ProcessStates(ranks=state().ranks, workers={"1": (idle, worker)})
    answers = {1: RankAnswer(threads=(stack(LOADER, USER),))}
    hang = judge(tmp_path, {0: WAITS, 2: WAITS}, answers=answers, processes=processes)
    assert hang is not None
    assert (hang.kind, str(hang.location)) == ("blocked", "/home/me/data.py:7")


def test_what_went_on_was_slow(tmp_path: Path) -> None:
    processes = ProcessStates(ranks=state(call="lock").ranks, went_on_s=75.0)
    answers = {1: RankAnswer(threads=(stack(USER),))}
    hang = judge(tmp_path, {0: WAITS, 1: BEHIND, 2: WAITS}, answers=answers, processes=processes)
    assert hang is not None
    assert (hang.kind, hang.sentence.endswith("it went on after 75 s")) == ("slow", True)


def test_one_process_on_a_lock(tmp_path: Path) -> None:
    processes = ProcessStates(ranks={"0": state(call="lock").ranks["1"]})
    hang = judge(tmp_path, {}, answers={0: RankAnswer(threads=(stack(USER),))}, processes=processes)
    assert hang is not None
    assert (hang.kind, hang.collective, hang.sentence[:24]) == ("blocked", None, "The program waits for a ")


QUIET = {
    "all calls have ended": dict.fromkeys(WORLD, BEHIND),
    "nothing was called": dict.fromkeys(WORLD, dump()),
    "sizes of an exchange differ": {
        rank: dump(call("all_to_all", 1, sizes=(rank + 1,), state="completed")) for rank in WORLD
    },
    "a size that differed, and did no harm": {
        rank: dump(call(number=1, sizes=(rank + 1,), state="completed")) for rank in WORLD
    },
    "one rank only": {0: dump(DONE, groups={"0": ("default_pg", (0,))})},
}


@pytest.mark.parametrize("name", QUIET)
def test_healthy_dumps(tmp_path: Path, name: str) -> None:
    assert judge(tmp_path, QUIET[name]) is None


def test_calls_of_ranks_that_move_do_not_wait(tmp_path: Path) -> None:
    dumps = {0: WAITS, 1: BEHIND, 2: WAITS}
    assert judge(tmp_path, dumps, moving=frozenset({0, 2})) is None
    assert judge(tmp_path, dumps, answers=dict.fromkeys(WORLD, RankAnswer(calls_made=3))) is None


@pytest.mark.parametrize(
    "values", [{"is_moving": True}, {"idle_s": None}, {"state": "gone", "ended_by_itself": True}, {"state": "gone"}]
)
def test_a_process_alone_that_works_or_has_ended(tmp_path: Path, values: dict[str, Any]) -> None:
    """An evaluation, a checkpoint, a process without a beat, the end."""
    answers = {1: RankAnswer(threads=(stack(USER),))} if values.get("is_moving") else {}
    assert judge(tmp_path, {}, answers=answers, processes=state(**values)) is None


def test_a_young_call_is_on_its_way(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path, {0: WAITS, 1: BEHIND, 2: WAITS})
    assert read_hang(find_hang_files([folder])).hang is not None
    for path in folder.iterdir():
        os.utime(path, ns=(START_NS, START_NS + 10**9))
    assert read_hang(find_hang_files([folder])).hang is None


def faulty_ranks(log: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"^Rank (\d+)", log.read_text(), re.MULTILINE)))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("job", "kind", "direct"),
    [("gpu_error_1st", "dead", {13, 15}), ("lock_gil_1st", "missing", {8, 10, 11, 12, 13, 15})],
)
def test_real_jobs_with_planted_faults(shared: Path, job: str, kind: str, direct: Iterable[int]) -> None:
    folder = shared / "flight_recorder" / job
    hang = read_hang(find_hang_files([folder])).hang
    assert hang is not None
    assert hang.ranks == faulty_ranks(folder / "fault_injection.log")
    assert (hang.kind, set(hang.collective.waiting)) == (kind, set(direct))
