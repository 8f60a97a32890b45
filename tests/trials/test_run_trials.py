"""How a run is started: with which steps, changes, variables and limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_program import choice

from perfdoctor.capture.launch import TrialRun
from perfdoctor.trials import run_trials
from perfdoctor.trials.run_trials import HANG_EXTRA_S, TrialProcess
from perfdoctor.trials.step_counts import StepCounts


@pytest.fixture
def started(monkeypatch):
    """What `launch.run_trial` was called with; it leaves nothing and ends as asked."""
    calls = []

    def run_trial(command, options, environment, timeout_s, *, log, cwd):  # noqa: ARG001
        calls.append({"command": command, "options": options, "environment": environment, "limit_s": timeout_s})
        options.out.mkdir(parents=True)
        log.write_text("output")
        return TrialRun(1, options.out, False, "ValueError: no\n", 2.0)

    monkeypatch.setattr(run_trials.launch, "run_trial", run_trial)
    return calls


def test_a_run_gets_its_changes_their_variables_and_the_steps(started, tmp_path):
    process = TrialProcess(["python", "a.py"], tmp_path / "runs", StepCounts(3, 20))
    run = process.run("round1.1-workers=2+fused", (choice("workers", "2"), choice("fused", "")))
    assert (run.error, run.seconds) == ("ValueError: no", 2.0)
    options = started[0]["options"]
    assert (options.skip, options.base, options.out.name) == (3, 20, "round1.1-workers=2+fused")
    assert [(each.name, each.setting) for each in options.trial.changes] == [("workers", "2"), ("fused", "")]
    assert options.trial.changes[0].file == "/changes/workers.py"
    assert options.trial.seed == 0
    assert started[0]["environment"] == {"FAKE": ""}  # of two changes that set one variable the later one wins
    assert (options.out / "log.txt").read_text() == "output"


def test_plain_and_changed_runs_differ_in_their_changes_alone(started, tmp_path):
    process = TrialProcess(["a"], tmp_path, StepCounts())
    process.run("plain", ())
    process.run("changed", (choice(),))
    plain, changed = (each["options"] for each in started)
    assert plain.trial.changes == ()
    assert (plain.skip, plain.base, plain.trial.seed) == (changed.skip, changed.base, changed.trial.seed)
    assert started[0]["environment"] == {}


def test_a_run_that_was_interrupted_leaves_its_folder_alone(started, tmp_path):
    process = TrialProcess(["a"], tmp_path, StepCounts())
    (tmp_path / "plain1").mkdir()
    process.run("plain1", ())
    assert started[0]["options"].out == tmp_path / "plain1-2"


@pytest.mark.parametrize(
    ("plain_s", "timeout_s", "limit_s"),
    [(100.0, None, 500.0), (4.0, None, 4.0 + HANG_EXTRA_S), (100.0, 30.0, 30.0), (None, None, 3600.0)],
)
def test_a_run_is_ended_after_five_times_the_plain_one_or_when_the_user_says(
    started, tmp_path, plain_s, timeout_s, limit_s
):
    TrialProcess(["a"], Path(tmp_path), StepCounts(), timeout_s, plain_s).run("x", ())
    assert started[0]["limit_s"] == limit_s
