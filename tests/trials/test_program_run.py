"""What a run leaves behind, read back: steps of a job, losses, errors, and the state that --resume reads."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fake_program import FakeProgram, choice, run_of
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.errors import InputError, UsageError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.trials.program_run import (
    ProgramRun,
    compare_losses,
    compare_steps,
    find_error,
    find_lost_loss,
    read_program_run,
)
from perfdoctor.trials.run_log import RunLog, check_same, read_state
from perfdoctor.trials.step_counts import StepCounts, count_steps, read_step_counts

pytestmark = pytest.mark.process

MS = 1_000_000


def write_rank(folder: Path, rank: int, steps: dict[int, int], **trial) -> None:
    path = folder / f"rank{rank}"
    path.mkdir(parents=True)
    rows = [{"step": n, "dur_ns": ns, "window": "skip" if n < 2 else "base"} for n, ns in steps.items()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "steps.jsonl").write_text(text + '{"step": 99, "dur')  # the process was killed while it wrote
    (path / "trial.json").write_text(json.dumps(trial))


def test_the_step_of_a_job_is_that_of_its_latest_rank(tmp_path):
    change = {"met": 1, "locations": [{"file": "a.py", "line": 3, "function": "f"}], "detail": "0 -> 2", "error": None}
    write_rank(
        tmp_path, 0, {0: 9 * MS, 1: 9 * MS, 2: 5 * MS, 3: 6 * MS, 4: 7 * MS}, losses={"2": 0.5, "3": "nan"},
        changes={"x": change}, peak_memory_bytes=10, memory_kind="rss", skipped_ns=18 * MS, saves=["a.py:9"],
    )  # fmt: skip
    write_rank(
        tmp_path, 1, {0: 9 * MS, 1: 9 * MS, 2: 8 * MS, 3: 4 * MS}, losses={"2": 9.0}, changes={"x": change},
        peak_memory_bytes=30, skipped_ns=20 * MS,
    )  # fmt: skip
    run = read_program_run(tmp_path, 0, 2.5)
    assert run.step_ns == {2: 8 * MS, 3: 6 * MS}  # step 4 was made by one rank only
    assert run.mean_step_ns == 7 * MS
    assert run.losses[2] == 0.5
    assert math.isnan(run.losses[3])
    assert run.changes["x"].met == 2
    assert run.changes["x"].locations == (("a.py", 3, "f"),)
    assert (run.peak_memory_bytes, run.memory_kind, run.skipped_ns) == (30, "rss", 20 * MS)
    assert (run.saves, run.ranks, run.steps_made, run.error) == (("a.py:9",), 2, 5, None)


def test_a_run_that_left_nothing_has_no_step(tmp_path):
    run = read_program_run(tmp_path, 0, 1.0)
    assert (run.mean_step_ns, run.ranks, run.peak_memory_bytes, run.losses) == (None, 0, None, {})


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        ("Traceback (most recent call last):\n  File ...\nValueError: no such thing\n", "ValueError: no such thing"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory\n", "torch.cuda.OutOfMemoryError: CUDA out of memory"),
        ("KeyError: 'x'\n\nDuring handling ...\nRuntimeError: y\n", "RuntimeError: y"),
        ("[rank0]: ValueError: in a rank\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
         "ValueError: in a rank"),
        ("AssertionError\n", "AssertionError"),
        ("EOFError: EOF when reading a line", "EOFError: EOF when reading a line"),
        ("some warning: Error rates are high\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_error_is_the_line_that_names_the_exception(tail, error):
    assert find_error(tail) == error


def test_a_run_that_failed_says_how(tmp_path):
    assert read_program_run(tmp_path, 3, 1.0).error == "exit code 3"
    assert read_program_run(tmp_path, 1, 1.0, stderr_tail="ValueError: a").error == "ValueError: a"
    assert read_program_run(tmp_path, 143, 25.2, timed_out=True, stderr_tail="x").error == "ended after 25 s"


def test_steps_are_compared_at_the_same_numbers():
    plain = run_of(step_ns={5: 10, 6: 20, 7: 30})
    assert compare_steps(run_of(step_ns={5: 5, 6: 10, 7: 15}), plain) == 0.5
    assert compare_steps(run_of(step_ns={5: 10, 6: 20}), plain) == 1.0
    assert compare_steps(run_of(step_ns={7: 30}), plain) is None  # too few in common
    assert compare_steps(run_of(step_ns={}), plain) is None


BUSY = {"core_share": 0.3}


@given(st.lists(st.integers(0, 15), max_size=5, unique=True), st.floats(1.1, 5))
def test_steps_that_others_lengthened_hardly_move_the_step(disturbed, factor):
    longer = {number: round(MS * (factor if number in disturbed else 1)) for number in range(16)}
    changed, plain = run_of(step_ns=longer, **BUSY), run_of(step_ns=dict.fromkeys(range(16), MS), **BUSY)
    assert compare_steps(changed, plain) == pytest.approx(1.0)
    quiet = run_of(step_ns=longer, core_share=0.99), run_of(step_ns=dict.fromkeys(range(16), MS), core_share=0.99)
    mean = 1 + len(disturbed) * (factor - 1) / 16
    assert compare_steps(*quiet) == pytest.approx(mean, rel=1e-3)  # nobody disturbed them: so the program is


def test_rare_steps_and_bursts_are_part_of_the_step_on_a_busy_machine():
    steps = {number: MS * (9 if number % 8 == 7 else 1) for number in range(16)}
    plain = run_of(step_ns=dict.fromkeys(range(16), MS), **BUSY)
    assert compare_steps(run_of(step_ns=steps, rare_steps=(7, 15), **BUSY), plain) == pytest.approx(2.0)
    assert compare_steps(run_of(step_ns=steps, workers=8, **BUSY), plain) == pytest.approx(2.0)
    assert compare_steps(run_of(step_ns=steps, **BUSY), plain) == pytest.approx(1.0)


def test_losses_are_compared_at_the_same_numbers():
    run = run_of(losses={1: 1.0, 2: 2.0, 3: math.nan})
    assert compare_losses(run, run_of(losses={1: 1.0, 2: 2.2, 3: 5.0, 4: 100.0})) == pytest.approx(0.2 / 2.2)
    assert compare_losses(run, run_of(losses={1: 1.0})) == 0
    assert compare_losses(run, run_of(losses={3: 1.0, 9: 1.0})) is None
    assert compare_losses(run_of(losses={1: 0.0}), run_of(losses={1: 0.0})) == 0
    assert find_lost_loss(run, run_of(losses={3: 1.0})) == 3
    assert find_lost_loss(run, run_of(losses={3: math.nan})) is None


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(st.integers(0, 1000), st.integers(1, 10**12)),
    st.dictionaries(st.integers(0, 1000), FINITE | st.sampled_from([math.inf, -math.inf])),
    st.none() | st.text(),
)
def test_a_run_survives_json(step_ns, losses, error):
    run = run_of(step_ns=step_ns, losses=losses, error=error)
    assert ProgramRun.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False))) == run


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 10**9), min_size=1), st.floats(0.1, 10))
def test_a_program_that_is_slower_by_a_factor_has_that_ratio(step_ns, factor):
    plain = run_of(step_ns={number: 1000 * ns for number, ns in step_ns.items()})
    changed = run_of(step_ns={number: round(1000 * ns * factor) for number, ns in step_ns.items()})
    assert compare_steps(changed, plain) == pytest.approx(factor, rel=0.02)


# The log -------------------------------------------------------------------------------------------------------------


def test_a_kept_run_is_not_made_again(tmp_path):
    program = FakeProgram(noise=0.1)
    log = RunLog(program, tmp_path / "state.json", {"command": ["a"]})
    arms = [(), (choice(),), ()]
    first = [log.run(f"k{number}", arm) for number, arm in enumerate(arms)]
    state = read_state(tmp_path)
    again = FakeProgram(interrupt_at=0)
    ended: list[str] = []
    resumed = RunLog(again, tmp_path / "state.json", runs=state["runs"], on_end=lambda label, _: ended.append(label))
    assert [resumed.run(f"k{number}", arm) for number, arm in enumerate(arms)] == first
    assert (again.runs, ended) == ([], [])
    assert resumed.noise == log.noise
    assert resumed.seconds == log.seconds == 9.0
    with pytest.raises(KeyboardInterrupt):
        resumed.run("k3", ())


def test_what_is_resumed_must_be_the_same():
    check_same({"command": ["a"], "--skip": None}, {"command": ("a",), "--skip": None})
    with pytest.raises(UsageError, match=r'command was \["a"\]: repeat the command as it was'):
        check_same({"command": ["a"]}, {"command": ["b"]})


@pytest.mark.parametrize("text", [None, "", "{}", '{"schema": "perfdoctor.trials/1"}', "[1]", '{"schema": "other/9"}'])
def test_a_folder_without_usable_trials_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=r"without --resume|no trials to go on with"):
        read_state(tmp_path)


# How many steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_ms", "made", "chosen", "expected"),
    [
        (None, None, (None, None), (5, 10)),
        (500.0, None, (None, None), (5, 10)),  # at least ten
        (10.0, None, (None, None), (5, 200)),  # about two seconds
        (0.1, None, (None, None), (5, 1000)),  # at most a thousand
        (10.0, 40, (None, None), (5, 35)),  # no more than the program makes
        (10.0, 8, (None, None), (2, 6)),
        (10.0, 40, (3, 12), (3, 12)),
        (10.0, 10, (3, 12), (3, 7)),
        (10.0, None, (0, 1), (0, 1)),
    ],
)
def test_how_many_steps_are_timed(step_ms, made, chosen, expected):
    counts = count_steps(None if step_ms is None else step_ms * MS, made, *chosen)
    assert counts == StepCounts(*expected)


@pytest.mark.parametrize(("made", "skip"), [(0, None), (1, None), (5, None), (10, 9), (20, 30)])
def test_too_few_steps_are_said_in_one_sentence(made, skip):
    with pytest.raises(InputError, match=f"the program makes {made} step.*let it run longer"):
        count_steps(10.0 * MS, made, skip, None)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, (None, None)),
        ({"base_step_ns": [10, 30, 20], "steps_seen": 40, "exit": "exit"}, (20, 40)),
        ({"base_step_ns": [10], "steps_seen": 42, "exit": "stopped"}, (10, None)),
    ],
)
def test_a_recording_says_how_long_and_how_many(facts, expected):
    assert read_step_counts(CapturedFacts.parse(facts)) == expected
