"""Trials of real programs: what is timed, what is left behind, and that no process outlives its trial."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange, TrialOptions, parse_settings
from perfdoctor.capture.launch import TrialRun, run_trial
from perfdoctor.errors import CaptureError, UsageError

pytestmark = pytest.mark.process

SKIP, BASE = 3, 4

TRAIN = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(60, 8), torch.randint(2, (60,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.save(model.state_dict(), f"{__file__}.model")
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
print("the loop has ended")
"""

# What the file of a change is: a class in a file that imports the standard library alone.
CHANGES = """
class Spy:
    name = "spy"

    def apply(self, setting, program):
        import torch

        def wrap(original):
            def relu(*args, **kwargs):
                if not self.steps_seen:
                    program.met(self, program.location_of_caller(), setting)
                self.steps_seen.append(1)
                return original(*args, **kwargs)
            return relu

        self.steps_seen = []
        program.patch(torch.nn.functional, "cross_entropy", wrap)
        program.on_first_forward(lambda module, args, kwargs: program.met("spy", None, type(module).__name__))


class Breaks:
    name = "breaks"

    def apply(self, setting, program):
        if setting == "at once":
            raise ValueError("no such setting")
        program.edit_arguments(self, __import__("torch").optim.SGD, "__init__", self.edit)
        program.on_step(self.fail)

    def edit(self, optimizer, given):
        return {"lr": given["no such argument"]}

    def fail(self, steps):
        raise RuntimeError("the first error is kept, not this one")
"""


@dataclass
class Trial:
    """A trial that has ended, and the files of its first rank."""

    run: TrialRun
    log: Path

    @property
    def stdout(self) -> str:
        return self.log.read_text()

    @property
    def left(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.run.folder / "rank0" / "trial.json").read_text())
        return values

    @property
    def rows(self) -> list[dict[str, Any]]:
        lines = (self.run.folder / "rank0" / "steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def try_program(
    folder: Path,
    source: str,
    *changes: TrialChange,
    timeout_s: float = 600.0,
    environment: dict[str, str] | None = None,
    seed: int | None = 0,
) -> Trial:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    log = folder / "output"
    options = CaptureOptions(out=folder / "trial", skip=SKIP, base=BASE, trial=TrialOptions(seed, changes))
    variables = {"OMP_NUM_THREADS": "1", **(environment or {})}
    return Trial(run_trial([sys.executable, str(program)], options, variables, timeout_s, log=log), log)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, as_forks: Any) -> Trial:
    pytest.importorskip("torch")
    with as_forks():
        return try_program(tmp_path_factory.mktemp("plain"), TRAIN)


INFER = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2))
if SETTING:
    model.eval()
for _ in range(40):
    with torch.no_grad():
        {"logits": model(torch.randn(4, 8))}
"""


@pytest.mark.usefixtures("forks")
def test_a_program_that_only_infers_leaves_the_norms_of_its_outputs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    outputs = []
    for name, setting in (("first", ""), ("again", ""), ("eval", "1")):
        (tmp_path / name).mkdir()
        outputs.append(try_program(tmp_path / name, INFER.replace("SETTING", repr(setting))).left["losses"])
    first, again, other = outputs
    assert len(first) >= SKIP
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[step] != other[step] for step in first)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, as_forks: Any) -> Trial:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("changed")
    file = folder / "my_changes.py"
    file.write_text(CHANGES)
    changes = (
        TrialChange("breaks", str(file), "Breaks", "later"),
        TrialChange("spy", str(file), "Spy", "seen"),
        TrialChange("missing", str(folder / "missing.py"), "Missing", ""),
    )
    with as_forks():
        return try_program(folder, TRAIN, *changes)


def test_steps_are_skipped_and_timed_and_then_the_program_ends(plain: Trial) -> None:
    assert (plain.run.exit_code, plain.run.timed_out, plain.run.ranks) == (0, False, (0,))
    assert [row["window"] for row in plain.rows] == ["skip"] * SKIP + ["base"] * BASE
    assert all(row["dur_ns"] > 10_000_000 for row in plain.rows)
    assert "the loop has ended" not in plain.stdout
    assert plain.left["exit_reason"] == "recorded"
    assert plain.left["skipped_ns"] == sum(row["dur_ns"] for row in plain.rows[:SKIP])


def test_a_trial_leaves_losses_memory_and_saves_but_no_trace(plain: Trial) -> None:
    assert list(plain.left["losses"]) == [str(step) for step in range(SKIP + BASE)]
    assert all(0 < loss < 10 for loss in plain.left["losses"].values())
    assert plain.left["memory_kind"] == "rss"
    assert 50e6 < plain.left["peak_memory_bytes"] < 2e9
    (place,) = plain.left["saves"]
    assert place.endswith("program.py:10")
    assert {path.name for path in (plain.run.folder / "rank0").iterdir()} == {"steps.jsonl", "trial.json"}
    assert not list(plain.run.folder.glob(".processes-*"))


def test_seeds_make_the_losses_of_two_trials_equal(plain: Trial, changed: Trial) -> None:
    assert changed.left["losses"] == plain.left["losses"]


def test_what_a_change_has_met_is_left_with_its_line(changed: Trial) -> None:
    spy = changed.left["changes"]["spy"]
    assert spy["met"] == 2
    assert spy["detail"] == "Sequential; seen"
    (location,) = spy["locations"]
    assert (Path(location["file"]).name, location["line"]) == ("program.py", 12)


def test_a_change_that_fails_leaves_the_program_as_it_is(changed: Trial) -> None:
    assert changed.run.exit_code == 0
    assert changed.left["changes"]["breaks"]["error"] == "KeyError: 'no such argument'"
    assert changed.left["changes"]["breaks"]["met"] == 0
    assert changed.left["changes"]["missing"]["error"].startswith("FileNotFoundError")
    assert "the change breaks failed" in changed.run.stderr_tail


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    source = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)
        print(child.pid, flush=True)
        time.sleep(900)
    """
    for timeout_s in (1.5, 20, 300):  # until it has come so far
        (tmp_path / str(timeout_s)).mkdir()
        trial = try_program(tmp_path / str(timeout_s), source, timeout_s=timeout_s)
        assert trial.run.timed_out
        if trial.stdout:
            break
    assert trial.run.exit_code == 128 + 15
    assert trial.run.ranks == ()
    until = time.monotonic() + 60
    while time.monotonic() < until and is_running(int(trial.stdout)):
        time.sleep(0.05)
    assert not is_running(int(trial.stdout))


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not os.path.exists("/proc/self/stat")


def test_a_script_that_asks_for_input_finds_none(tmp_path: Path) -> None:
    trial = try_program(tmp_path, "import os\nprint(os.environ['PERFDOCTOR_TRIAL'])\ninput('how many steps? ')")
    assert trial.run.exit_code == 1
    assert trial.stdout.startswith("1\n")
    assert trial.run.stderr_tail.rstrip().endswith("EOFError: EOF when reading a line")


def test_a_command_that_cannot_be_started_is_one_sentence(tmp_path: Path) -> None:
    options = CaptureOptions(out=tmp_path / "trial", trial=TrialOptions())
    with pytest.raises(CaptureError, match="cannot be started"):
        run_trial(["/no/such/program"], options, log=tmp_path / "log")


def test_options_of_a_trial_travel_as_json(tmp_path: Path) -> None:
    trial = TrialOptions(7, (TrialChange("workers", "/x/workers.py", "Workers", "2"),))
    settings = parse_settings(CaptureOptions(skip=1, base=2, trial=trial).to_json(tmp_path))
    assert settings.trial == trial
    assert (settings.skip, settings.base, settings.warmup, settings.timing, settings.evidence) == (1, 2, 0, 0, 0)
    assert not settings.adapts
    assert parse_settings(CaptureOptions().to_json(tmp_path)).trial is None


def test_a_trial_without_timed_steps_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"at least one\.$"):
        CaptureOptions(base=0, trial=TrialOptions())
