"""SIGTERM while the program is blocked in a call that does not return: it ends, and what was recorded is saved."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

RANK_0_OF_2 = """import torch.distributed as dist
first = os.fork()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0 if first else 1, world_size=2)
if not first:
    while os.getppid() != 1: time.sleep(0.05)  # never joins the collective; ends with its parent
    os._exit(0)
"""
COLLECTIVE = "dist.all_reduce(torch.ones(1))"
NO_UNUSED_SIGNAL = """
for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1): signal.signal(number, lambda *_: None)
"""
# By a signal that writes no core file: writing one can take any time.
FORKS_CRASH = """
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGKILL))
"""
FORKS_HANG = """
from _perfdoctor_inject import exit_handlers
exit_handlers.SAVE_TIMEOUT_S = 1.0
os.register_at_fork(after_in_child=lambda: time.sleep(60))
"""

RecordBlocked = Callable[..., Any]


@pytest.fixture
def record_blocked(launcher: Any, capture_kit: dict[str, Any], tmp_path: Path) -> RecordBlocked:
    """Records a program that is blocked in the second step of the evidence window, until SIGTERM ends it."""

    def run(setup: str = "", call: str = COLLECTIVE) -> Any:
        ready = tmp_path / "ready"
        source = capture_kit["TRAIN"].replace("optimizer = ", f"{RANK_0_OF_2}{setup}\noptimizer = ")
        source += f"    if number == 10:\n        open({str(ready)!r}, 'w').close()\n        {call}\n"
        interrupt = capture_kit["signal_when_ready"](ready, signal.SIGTERM, 1.0)  # by then the thread is in the call
        began = time.monotonic()
        recorded = launcher.record(source, str(tmp_path / "store"), while_running=interrupt)
        assert time.monotonic() - began < 25, "less than the parent's grace: the parent did not kill it"
        assert (recorded.exit_code, recorded.stderr) == (143, "")
        assert recorded.facts()["exit"] == "SIGTERM"
        assert recorded.annotated_steps("timing") == [5, 6, 7]
        assert len(recorded.steps()) == 10
        return recorded

    return run


def test_the_window_that_is_open_in_a_collective_is_saved(record_blocked: RecordBlocked) -> None:
    recorded = record_blocked()
    assert recorded.annotated_steps("evidence") == [9]
    window = recorded.facts()["windows"]["evidence"]
    assert (window["steps"], window["complete"]) == (1, False)
    program = recorded.facts()["script"]
    line = (recorded.out.parent / program).read_text().splitlines().index(f"        {COLLECTIVE}") + 1
    assert recorded.notes.startswith("SIGTERM came while the program was blocked in ")
    assert f"{program}:{line} (<module>)." in recorded.notes
    waiting = [e for e in recorded.trace("evidence")["traceEvents"] if e["name"].endswith(f"{program}:{line} <module>")]
    assert max(event["dur"] for event in waiting) > 1_000_000, "the line that was blocked, for the time that it was"
    ids = {(event["pid"], event["tid"]) for event in waiting}
    assert ids == {(recorded.facts()["pid"],) * 2}, "those of the process, not of the forked child that saved it"


def test_the_window_that_is_open_in_a_long_computation_is_saved(record_blocked: RecordBlocked) -> None:
    recorded = record_blocked(call="torch.linalg.svd(torch.randn(6000, 6000))")
    assert recorded.annotated_steps("evidence") == [9]


@pytest.mark.parametrize("setup", [NO_UNUSED_SIGNAL, FORKS_CRASH, FORKS_HANG], ids=["no signal", "crash", "hang"])
def test_a_window_that_cannot_be_saved_is_noted_and_the_others_stay(record_blocked: RecordBlocked, setup: str) -> None:
    recorded = record_blocked(setup)
    assert "the evidence window was lost" in recorded.notes
    assert recorded.files() == {"timing.json.gz", "facts.json", "steps.jsonl"}
