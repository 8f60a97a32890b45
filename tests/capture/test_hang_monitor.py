"""When ranks stand still, what is read of processes and stacks, and a real job whose rank waits for a lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perfdoctor.capture.hang_monitor import Beat, find_stalled, note_going_on, parse_stack, read_beats
from perfdoctor.capture.inject._perfdoctor_inject.hang_files import BEAT, STACK_SIGNAL
from perfdoctor.capture.process_state import catches, look_at

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "hangs"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc says it")


def beat(rank: int, last_s: float, *, steps: int = 20, slowest_s: float = 0.1, ended: bool = False) -> Beat:
    return Beat(rank, 100 + rank, ended, steps, slowest_s, last_s)


@pytest.mark.parametrize(
    ("beats", "stalled"),
    [
        ([beat(0, 969.0), beat(1, 999.0)], [0]),
        ([beat(0, 971.0), beat(1, 999.0)], []),
        ([beat(0, 900.0, slowest_s=19.0)], [0]),
        ([beat(0, 900.0, slowest_s=21.0)], []),
        ([beat(0, 849.0, steps=0)], [0]),
        ([beat(0, 851.0, steps=0)], []),
        ([beat(0, 0.0, ended=True)], []),
        ([], []),
    ],
)
def test_a_rank_stands_still_after_the_floor_and_five_of_its_slowest_steps(
    beats: list[Beat], stalled: list[int]
) -> None:
    assert find_stalled(beats, 30.0, now_s=1000.0) == stalled


def test_of_a_rank_that_was_started_again_the_last_beat_counts(tmp_path: Path) -> None:
    markers = tmp_path / ".processes-1"
    markers.mkdir()
    (markers / "5.beat").write_bytes(BEAT.pack(1, 5, 0, 7, 0.5, 100.0))
    (markers / "6.beat").write_bytes(BEAT.pack(1, 6, 1, 9, 0.5, 200.0))
    (markers / "7.beat").write_bytes(b"cut")
    assert read_beats(tmp_path) == [Beat(1, 6, True, 9, 0.5, 200.0)]


def test_the_main_thread_stands_last_in_what_faulthandler_writes() -> None:
    text = (
        'Thread 0x01 (most recent call first):\n  File "/a/queue.py", line 3 in get\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/a/data.py", line 7 in load\n'
        '  File "/a/train.py", line 9 in <module>\n'
    )
    stack = parse_stack(text)
    assert stack is not None
    assert [(each["file"], each["line"]) for each in stack["frames"]] == [("/a/data.py", 7), ("/a/train.py", 9)]
    assert parse_stack("") is None


def test_a_job_that_goes_on_is_noted(tmp_path: Path) -> None:
    note_going_on(tmp_path, 3.0)  # nothing was collected
    (tmp_path / "hang").mkdir()
    path = tmp_path / "hang" / "processes.json"
    path.write_text('{"ranks": {}}')
    note_going_on(tmp_path, 12.34)
    assert json.loads(path.read_text()) == {"ranks": {}, "went_on_s": 12.3}


@linux_only
@pytest.mark.process
def test_how_a_process_waits_and_ends() -> None:
    waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        until_s = time.monotonic() + 20
        while look_at(waits.pid).call != "sleep" and time.monotonic() < until_s:
            time.sleep(0.05)
        assert look_at(waits.pid)[:4] == ("running", None, None, "sleep")
        assert STACK_SIGNAL is not None
        assert not catches(waits.pid, STACK_SIGNAL)
    finally:
        waits.kill()
    os.waitid(os.P_PID, waits.pid, os.WEXITED | os.WNOWAIT)
    assert look_at(waits.pid)[:3] == ("ended", None, signal.SIGKILL)
    waits.wait()
    assert look_at(waits.pid).state == "gone"


@linux_only
@pytest.mark.process
@pytest.mark.parametrize("asks", [False, True])
def test_a_job_whose_rank_waits_for_a_lock(tmp_path: Path, asks: bool) -> None:
    """Seen after the time that was asked for, or on SIGUSR1; and the program is left alone."""
    pytest.importorskip("torch")
    capture, errors = tmp_path / "capture", tmp_path / "errors"
    command = [sys.executable, "-m", "perfdoctor", "run", "--out", str(capture), "--no-report"]
    command += ["--hang-after", "600" if asks else "4", "--", sys.executable, str(PROGRAM / "launch.py"), "2"]
    with errors.open("wb") as file:
        process = subprocess.Popen([*command, str(PROGRAM / "program.py"), "lock", str(tmp_path)], stderr=file)
    timer = threading.Timer(240, process.kill)
    timer.start()
    try:
        while "no step any more" not in errors.read_text() and process.poll() is None:
            time.sleep(0.5)
            beats = read_beats(capture)
            if asks and len(beats) == 2 and all(each.steps > 5 and time.time() - each.last_s > 3 for each in beats):
                process.send_signal(signal.SIGUSR1)
                asks = False
        for each in read_beats(capture):
            assert look_at(each.pid).state == "running"
            os.kill(each.pid, signal.SIGKILL)
        process.wait(60)
    finally:
        timer.cancel()
    text = errors.read_text()
    assert "Rank 1 waits for a lock at program.py" in text
    assert "rank 0 waits for it in all_reduce" in text
    assert (capture / "hang" / "nccl_trace_rank_0").exists()


STUCK = """
import os, pathlib, time
import torch
from torch.utils.data import DataLoader
class Stuck:
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if index == 200:
            pathlib.Path("worker").write_text(str(os.getpid()))
            time.sleep(600)  # here
        return torch.ones(8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for batch in DataLoader(Stuck(), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""


@linux_only
@pytest.mark.process
def test_a_worker_that_is_killed_while_a_hang_is_watched_ends_the_program_as_ever(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-m", "perfdoctor", "run", "--out", "capture", "--hang-after", "3", "--json", "stuck.py"]
    with (tmp_path / "stderr").open("w") as stderr:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, text=True)
        until = time.monotonic() + 120
        while "no step any more" not in (tmp_path / "stderr").read_text() and time.monotonic() < until:
            time.sleep(0.2)
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
        printed, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    said = (tmp_path / "stderr").read_text()
    assert said.count("no step any more") == 1
    assert "waits in its loader for a worker" in said
    assert "is killed by signal: Killed" in said
    report = json.loads(printed)
    line = next(number for number, text in enumerate(STUCK.splitlines(), 1) if text.endswith("# here"))
    assert (report["hang"]["kind"], report["hang"]["location"]["line"]) == ("blocked", line)
