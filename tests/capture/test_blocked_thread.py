"""SIGTERM while the program is blocked in a call that does not return: it ends, and what was recorded is saved."""

from __future__ import annotations

import signal
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
# Another thread runs when the training thread, on its last line, is in a call that lets others run.
SAY_WHEN_BLOCKED = (
    "import threading; line = sys._getframe().f_lineno + 1; matrix = torch.randn(6000, 6000); "
    "threading.Thread(target=lambda frame: ([time.sleep(0.01) for _ in iter(lambda: frame.f_lineno < line, False)], "
    "open({0!r}, 'w').close()), args=(sys._getframe(),), daemon=True).start()"
)
COLLECTIVE = "dist.all_reduce(torch.ones(1))"
RecordBlocked = Callable[..., Any]


@pytest.fixture
def record_blocked(launcher: Any, capture_kit: dict[str, Any], tmp_path: Path) -> RecordBlocked:
    """Records a program that is blocked in the second step of the evidence window, until SIGTERM ends it."""

    def run(call: str) -> Any:
        ready = tmp_path / "ready"
        source = capture_kit["TRAIN"].replace("optimizer = ", f"{RANK_0_OF_2}\noptimizer = ")
        source += f"    if number == 10:\n        {SAY_WHEN_BLOCKED.format(str(ready))}\n        {call}\n"
        interrupt = capture_kit["signal_when_ready"](ready, signal.SIGTERM)
        recorded = launcher.record(source, str(tmp_path / "store"), while_running=interrupt)
        assert (recorded.exit_code, recorded.stderr) == (143, ""), "the parent did not kill it after its grace"
        assert recorded.facts()["exit"] == "SIGTERM"
        assert recorded.annotated_steps("timing") == [5, 6, 7]
        assert len(recorded.steps()) == 10
        return recorded

    return run


@pytest.mark.parametrize("call", [COLLECTIVE, "torch.linalg.svd(matrix)"])
def test_all_but_the_open_window_is_saved_and_the_line_is_named(record_blocked: RecordBlocked, call: str) -> None:
    recorded = record_blocked(call)
    assert recorded.files() == {"timing.json.gz", "facts.json", "steps.jsonl"}
    program = recorded.facts()["script"]
    line = (recorded.out.parent / program).read_text().splitlines().index(f"        {call}") + 1
    assert recorded.notes.startswith("SIGTERM came while the program was blocked in ")
    assert f"{program}:{line} (<module>)." in recorded.notes
    assert "the evidence window was lost: the training thread was gone or blocked in a call" in recorded.notes
