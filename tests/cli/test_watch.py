"""What `perfdoctor watch` says of ranks that run, wait, drift, fall silent and end."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from perfdoctor.capture.live_state import LiveCapture
from perfdoctor.cli.live_table import draw_job
from perfdoctor.cli.main import main

MS = 1_000_000


def write_rank(
    folder: Path,
    rank: int,
    times_ms: list[float],
    *,
    wait_ms: float = 0,
    cpu_ms: float | None = None,
    window: str = "after",
    exit_reason: str = "recorded",
    age_s: float = 0,
    pid: int | None = None,
) -> None:
    """A rank as the recorder leaves it while the program runs."""
    (folder / f"rank{rank}").mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{rank}" / "steps.jsonl"
    with path.open("a") as file:
        for number, dur_ms in enumerate(times_ms):
            row = {"step": number, "dur_ns": int(dur_ms * MS), "window": window, "loader_wait_ns": int(wait_ms * MS)}
            if cpu_ms is not None:
                row["cpu_ns"] = int(cpu_ms * MS)
            file.write(json.dumps(row) + "\n")
    written_s = time.time() - age_s
    os.utime(path, (written_s, written_s))
    facts = {"rank": rank, "pid": pid or os.getpid(), "exit": exit_reason, "steps_seen": len(times_ms)}
    (folder / f"rank{rank}" / "facts.json").write_text(json.dumps(facts))


def look(folder: Path, gpu: tuple[int | None, int | None] = (None, None)) -> Any:
    return LiveCapture(folder, lambda _pids: gpu).look()


def draw(folder: Path, **options: Any) -> str:
    """The table in a terminal of 80 columns."""
    stream = io.StringIO()
    Console(file=stream, width=80).print(draw_job("capture", look(folder, **options)))
    return stream.getvalue()


def test_a_running_rank_has_its_step_its_waits_and_its_memory(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [10.0] * 50, wait_ms=2.5, cpu_ms=6)
    text = draw(tmp_path, gpu=(87, 12_300_000_000))
    assert "1 rank running" in text
    for part in ("50", "10 ms", "25%", "87%", "12.3 GB"):
        assert part in text
    assert all(len(line) <= 80 for line in text.splitlines())
    state = look(tmp_path).ranks[0]
    assert (state.step, state.step_ns, state.busy_ns) == (50, 10 * MS, int(8.5 * MS))
    assert state.host_bytes > 10_000_000, "this process is looked at"


def test_only_what_was_added_is_read_and_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [10.0] * 30)
    live = LiveCapture(tmp_path, lambda _pids: (None, None))
    assert live.look().ranks[0].step == 30
    path = tmp_path / "rank0" / "steps.jsonl"
    row = json.dumps({"step": 30, "dur_ns": 40 * MS, "window": "after", "loader_wait_ns": 0})
    with path.open("a") as file:
        file.write(row[:20])
    assert live.look().ranks[0].step == 30
    with path.open("a") as file:
        file.write(row[20:] + "\nno json\n{}\n[]\n")
    state = live.look().ranks[0]
    assert state.step == 31
    assert state.recent_ns[-1] == 40 * MS


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    for rank, cpu_ms in enumerate((10, 18, 11, 10)):
        write_rank(tmp_path, rank, [20.0] * 40, cpu_ms=cpu_ms)
    assert look(tmp_path).slowest_rank == 1
    assert "rank 1 is the slowest: busy for 18 ms of a step, the others for 10 ms" in draw(tmp_path)


def test_no_rank_is_the_slowest_where_all_are_alike_or_it_is_alone(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [20.0] * 40, cpu_ms=10)
    assert look(tmp_path).slowest_rank is None
    write_rank(tmp_path, 1, [20.0] * 40, cpu_ms=10.3)
    assert look(tmp_path).slowest_rank is None
    assert "slowest" not in draw(tmp_path)


def test_a_drift_is_told_with_its_step(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [10.0 + 0.1 * (number % 7) for number in range(400)] + [15.0] * 400)
    drift = look(tmp_path).ranks[0].drift
    assert 390 <= drift.began <= 410
    assert "rank 0: steps are longer since about step 4" in draw(tmp_path)


def test_healthy_steps_get_no_sentence(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, [10.0 + (number % 50 == 0) * 100 + 0.1 * (number % 7) for number in range(2000)])
    assert len(draw(tmp_path).splitlines()) == 3


@pytest.mark.parametrize(("age_s", "step_ms", "silent"), [(100, 10, True), (10, 10, False), (100, 20_000, False)])
def test_a_rank_without_steps_is_silent_after_many_of_its_own(
    tmp_path: Path, age_s: float, step_ms: float, silent: bool
) -> None:
    write_rank(tmp_path, 0, [step_ms] * 30, age_s=age_s)
    assert look(tmp_path).ranks[0].state == ("silent" if silent else "running")
    assert ("has made no step for 100 s" in draw(tmp_path)) is silent


@pytest.mark.parametrize(
    ("window", "exit_reason", "state"),
    [
        ("after", "recorded", "running"),
        ("base", "running", "running"),
        ("requested", "recorded", "recording"),
        ("evidence", "running", "recording"),
        ("after", "exit", "ended"),
        ("after", "SIGTERM", "ended"),
    ],
)
def test_the_state_of_a_rank(tmp_path: Path, window: str, exit_reason: str, state: str) -> None:
    write_rank(tmp_path, 0, [10.0] * 5, window=window, exit_reason=exit_reason)
    assert look(tmp_path).ranks[0].state == state


def test_lines_of_json_are_for_others_to_read(tmp_path: Path, capsys: Any) -> None:
    write_rank(tmp_path / "capture", 0, [10.0] * 30, exit_reason="exit")
    log = tmp_path / "state.jsonl"
    for _ in range(2):
        assert main(["watch", str(tmp_path / "capture"), "--json", "-o", str(log)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == log.read_text().splitlines()
    assert len(printed) == 2
    state = json.loads(printed[0])
    assert set(state) == {"time_ns", "slowest_rank", "ranks"}
    assert state["ranks"][0]["state"] == "ended"
    assert state["ranks"][0]["step_ns"] == 10 * MS


def test_a_folder_without_ranks_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "holds no rank of a recording" in capsys.readouterr().err
