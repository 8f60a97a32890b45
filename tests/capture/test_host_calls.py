"""Calls that keep a step waiting, in programs really recorded: how often, how long, at which line, reported once."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")

# A `gc.collect` in each step, a line on disk, copies in every second step, checkpoints in every fourth one.
PROGRAM = """
import copy, gc, io, os, threading
import torch._dynamo
class Loud:
    def __reduce__(self):
        raise ValueError("cannot be saved")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = open("log.txt", "w")
big = {"weights": torch.zeros(300_000)}
elsewhere = threading.Thread(target=lambda: [torch.save(big, f"thread{number}.pt") for number in range(20)])
torch.save(big, "before.pt")
def fit(steps):
    for number in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.tensors[0][:4]), data.tensors[1][:4])
        loss.backward()
        optimizer.step()
        os.fsync(log.fileno())  # line of fsync
        gc.collect()  # line of collect
        if number % 2: best = copy.deepcopy(big)
        copy.deepcopy([1, 2])
        if number % 4 == 3: torch.save(big, "last.pt")  # line of save
        if number == 12: elsewhere.start()
        if number == 13: torch.save(big, io.BytesIO())
        if number == 14:
            try: torch.save(Loud(), "loud.pt")
            except ValueError as error:
                names = [each.tb_frame.f_code.co_filename for each in walk(error.__traceback__)]
                assert not any("perfdoctor" in name for name in names), names
def walk(traceback):
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
fit(32)
elsewhere.join()
@torch.compile(backend="eager")
def copies(x):
    return copy.deepcopy({"x": x + 1})["x"] + 1
assert copies(torch.ones(2)).tolist() == [3, 3]
assert copy.deepcopy({"a": [1]}) == {"a": [1]} and gc.collect() >= 0
print("deepcopy", copy.deepcopy.__name__, "done")
"""


@pytest.fixture(scope="module")
def recorded(launcher: Any, capture_kit: dict[str, Any]) -> Any:
    done = launcher.record(capture_kit["PRELUDE"] + PROGRAM)
    assert done.exit_code == 0, done.stderr
    assert "deepcopy deepcopy done" in done.stdout
    return done


def line_of(launcher: Any, mark: str) -> int:
    text = next(launcher.folder.glob("program*.py")).read_text()
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


def test_each_call_stands_in_the_facts_with_its_line(launcher: Any, recorded: Any) -> None:
    facts = recorded.facts()
    steps = facts["run"]["unprofiled_steps"]
    assert steps > 15
    lines = {each["location"]["line"]: each for each in facts["host_calls"]}
    saves = lines[line_of(launcher, "# line of save")]
    assert saves["call"] == "torch.save"
    assert saves["location"]["function"] == "fit"
    assert 3 <= saves["count"] == saves["steps"] <= steps // 4 + 1
    assert saves["bytes"] > 1_200_000 * saves["count"]
    assert saves["ns"] < saves["step_ns"] < facts["run"]["unprofiled_ns"]
    assert saves["ns"] / saves["steps"] <= saves["largest_step_ns"]
    assert saves["checksum"] is None  # there is one rank
    copies = [each for each in facts["host_calls"] if each["call"] == "copy.deepcopy"]
    assert [each["copied"] for each in copies] == ["dict with 1 entry"]
    assert [each["steps"] for each in copies] in ([steps // 2], [steps // 2 + 1])  # none of the small list


def test_calls_of_another_thread_and_from_before_the_steps_are_not_counted(recorded: Any) -> None:
    saves = [each for each in recorded.facts()["host_calls"] if each["call"] == "torch.save"]
    assert sum(each["count"] for each in saves) <= 10


def test_collections_are_told_apart_by_who_began_them(launcher: Any, recorded: Any) -> None:
    facts = recorded.facts()
    collector = facts["collector"]
    assert collector["enabled"] is True
    assert collector["collect_calls"] == collector["collect_steps"] == facts["run"]["unprofiled_steps"]
    assert collector["location"]["line"] == line_of(launcher, "# line of collect")
    assert collector["collect_ns"] <= collector["collect_step_ns"] == facts["run"]["unprofiled_ns"]
    assert collector["collections"] <= 2  # explicit calls are no automatic ones


def test_each_step_says_what_it_waited(recorded: Any) -> None:
    facts = recorded.facts()
    rows = [row for row in recorded.steps() if row["window"] in ("base", "after")]
    assert all(0 < row["gc_ns"] < row["dur_ns"] for row in rows)
    assert sum(row["host_call_ns"] for row in rows) == sum(each["ns"] for each in facts["host_calls"])
    assert facts["base_gc_ns"] == [row["gc_ns"] for row in rows if row["window"] == "base"]
    assert len(facts["timing_host_call_ns"]) == len(facts["timing_step_ns"])
    assert sum("save" in row.get("contains", ()) for row in recorded.steps()) >= 7


def test_recorded_calls_are_ranges_of_the_trace(recorded: Any) -> None:
    names = recorded.names("timing")
    assert names.count("perfdoctor::gc.collect") >= 3  # one a step
    assert "perfdoctor::copy.deepcopy" in names


def test_a_call_inside_another_one_counts_once(launcher: Any, capture_kit: dict[str, Any]) -> None:
    """Saving into a file that is flushed to disk is saving; ranks that save the same have the same checksum."""
    source = """
    import os, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = open(f"log{rank}.txt", "w")
    class Flush:
        def __reduce__(self):
            os.fsync(log.fileno())
            return (int, ())
    for number in range(24):
        optimizer.zero_grad()
        model(data.tensors[0][:4]).sum().backward()
        optimizer.step()
        torch.save([torch.zeros(300_000), Flush()], f"same{rank}.pt")
        torch.save([torch.full((300_000,), rank)], f"own{rank}.pt")
    leave_group()
    """
    script = launcher.write(capture_kit["PRELUDE"] + "\n".join(line[4:] for line in source.splitlines()), "ranks.py")
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    recorded = launcher.run("--", sys.executable, *run, str(script))
    assert recorded.exit_code == 0, recorded.stderr
    sites = [sorted(recorded.facts(rank)["host_calls"], key=lambda site: site["location"]["line"]) for rank in (0, 1)]
    assert [[site["call"] for site in each] for each in sites] == [["torch.save"] * 2] * 2
    (same, own), (same_there, own_there) = ([site["checksum"] for site in each] for each in sites)
    assert same == same_there is not None
    assert own != own_there
