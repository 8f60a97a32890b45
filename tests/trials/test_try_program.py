"""The whole of `try` with a program in memory: what is measured, reported, resumed and interrupted."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from fake_program import FakeProgram, loaded, run_of

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.capture.launch import CaptureResult
from perfdoctor.errors import InputError, UsageError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.report.finding import Action, Finding
from perfdoctor.report.report import Report, StepSummary
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.reporters.trial_reports import TrialTerminal
from perfdoctor.savings.saving import Saving, SavingAlone
from perfdoctor.trials import diagnose_program
from perfdoctor.trials import try_program as trying
from perfdoctor.trials.diagnose_program import Diagnosis, explain_failure
from perfdoctor.trials.run_log import read_state
from perfdoctor.trials.try_program import TrySettings, make_trial_folder, try_program

MS = 1_000_000
COMMAND = ["python", "train.py"]
WORKERS = loaded("workers", tries=("2", "4"))
FUSED = loaded("fused", tries=("",), rules=("PD303",))


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.ended: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin_run(self, label: str, state: Any) -> None:
        assert state.expected_seconds >= 0, label

    def end_run(self, label: str, run: Any, state: Any) -> None:
        del run, state
        self.ended.append(label)


def diagnosis() -> Diagnosis:
    """A recording whose one finding promises 2 ms of a step of 10 ms."""
    saving = Saving(MS, 2 * MS, 3 * MS, "replayed", SavingAlone(MS, 2 * MS, 3 * MS))
    place = SourceLocation("/home/me/train.py", 12, "main")
    finding = Finding(
        "PD101",
        "dataloader-stall",
        "It waits",
        3 * MS,
        0.3,
        "high",
        saving,
        "Load.",
        location=place,
        actions=(Action("workers"),),
    )
    steps = StepSummary(20, "annotated", 10 * MS, variation=0.01, mean_ns=10 * MS)
    report = Report("1", (), steps, (), (), (finding,), ())
    facts = {"base_step_ns": [10 * MS], "steps_seen": 40, "exit": "exit", "world_size": 1}
    return Diagnosis(report, CapturedFacts.parse(facts))


@pytest.fixture
def attempt(monkeypatch, tmp_path):
    """Tries changes on a program in memory, in the folder `tmp_path`."""

    def run(program: FakeProgram, *, earlier=None, diagnosed: Diagnosis | None = None, **settings: Any):
        monkeypatch.setattr(trying.TrialProcess, "run", lambda _, name, arm: program(name, arm))
        monkeypatch.setattr(trying, "diagnose_program", lambda *_, **__: diagnosed or diagnosis())
        chosen = TrySettings(**({"wanted": ((WORKERS, None), (FUSED, None))} | settings))
        listener = Listener()
        report, ended_by = try_program(COMMAND, chosen, tmp_path, listener, earlier)
        written = json.loads((tmp_path / "report.json").read_text())
        jsonschema.Draft202012Validator(load_schema()).validate(written)
        return report, ended_by, listener, written

    return run


GOOD = {"workers=2": 0.8, "workers=4": 0.7, "fused": 0.9}


def test_a_promise_is_a_share_of_the_step_and_stands_beside_the_trial_as_such(attempt):
    report, _, _, _ = attempt(FakeProgram(GOOD, step_ms=30.0))
    first, (finding,) = report.trials[0], report.findings
    assert (first.before_ns, first.saved_ns) == (30 * MS, 6 * MS)
    assert (first.promised.low_ns, first.promised.expected_ns, first.promised.high_ns) == (3 * MS, 6 * MS, 9 * MS)
    assert (finding.saving.alone.expected_ns, finding.saving.promised.expected_ns) == (3 * MS, 2 * MS)


def test_changes_are_measured_combined_and_answer_their_findings(attempt):
    report, ended_by, listener, written = attempt(FakeProgram(GOOD, noise=0.002), only_advised=False)
    assert ended_by is None
    assert [(each.label, each.verdict) for each in report.trials] == [
        ("workers=2", "faster"), ("workers=4", "faster"), ("fused", "faster"), ("all", "faster"),
    ]  # fmt: skip
    assert report.trials[-1].setting == "workers=4 fused"
    assert report.trials[-1].ratio.median == pytest.approx(0.63, rel=0.01)
    (finding,) = report.findings
    assert (finding.saving.basis, finding.saving.promised.expected_ns) == ("measured", 2 * MS)
    assert finding.saving.alone.expected_ns == pytest.approx(3 * MS, rel=0.02)
    assert finding.fix == "workers(4)"
    fused = report.trials[2]
    assert fused.in_turn.expected_ns == pytest.approx(0.7 * MS, rel=0.1)  # a tenth of what workers=4 left
    assert (fused.promised, fused.rules) == (None, ())
    assert [row["change"] for row in written["trials"]] == ["workers", "workers", "fused", "all"]
    assert written["trials"][0]["saved_ns"] == pytest.approx(2 * MS, rel=0.02)
    assert written["findings"][0]["saving"]["promised"]["basis"] == "replayed"
    assert report.limit.after_fixes_ns == pytest.approx(7 * MS, rel=0.02)
    assert listener.ended[:2] == ["plain", "plain"]


def test_each_run_waits_for_a_quiet_machine_and_a_note_says_it(attempt, monkeypatch):
    looks = iter([True, True, False])
    monkeypatch.setattr(trying.QuietWait, "_is_busy", lambda _: next(looks, False))
    report, _, listener, _ = attempt(FakeProgram(GOOD), quiet_s=60.0)
    assert listener.said[0].startswith("waiting for other programs to leave the cores, at most 60 s in all")
    assert any(note.startswith("Waited 1 s") and note.endswith("they did.") for note in report.trial_summary.notes)


def test_only_what_a_finding_advises_is_tried_unless_more_is_wanted(attempt):
    report, _, listener, _ = attempt(FakeProgram())
    assert {each.change for each in report.trials} == {"workers"}
    assert "trying workers=2, workers=4" in listener.said
    report, _, listener, _ = attempt(FakeProgram(), wanted=((FUSED, None),))
    assert report.trials == ()
    assert any("--all tries every one that applies" in text for text in listener.said)


def test_where_nothing_helps_the_finding_sinks_and_nothing_is_combined(attempt):
    report, _, _, _ = attempt(FakeProgram(noise=0.002))
    assert {each.verdict for each in report.trials} == {"same"}
    assert (report.findings[0].severity, report.findings[0].saving.expected_ns) == ("info", 0)
    assert not any(each.change == "all" for each in report.trials)


def test_numerics_are_measured_and_left_out_of_the_combination_unless_allowed(attempt):
    half = loaded("autocast", tries=("",), alters_numerics=True)
    wanted = ((WORKERS, None), (half, None))
    factors = GOOD | {"autocast": 0.5}
    report, _, _, _ = attempt(FakeProgram(factors), wanted=wanted, only_advised=False)
    assert not any(each.change == "all" for each in report.trials)
    assert any("alters numerics: autocast; --allow-numerics" in note for note in report.trial_summary.notes)
    report, _, _, _ = attempt(FakeProgram(factors), wanted=wanted, only_advised=False, allow_numerics=True)
    assert report.trials[-1].setting == "autocast workers=4"


def test_losses_are_compared_and_said_to_be_expected_or_not(attempt):
    class Changing(FakeProgram):
        def __call__(self, name, arm):
            run = super().__call__(name, arm)
            return replace(run, losses={5: 0.5 * (1.01 if arm else 1.0)})

    rough = loaded("fused", tries=("",), effect_on_results="sums in another order")
    wanted = ((WORKERS, "2"), (rough, None))
    report, _, _, _ = attempt(Changing(), wanted=wanted, only_advised=False)
    assert [(each.is_loss_expected, round(each.loss_difference, 4)) for each in report.trials] == [
        (False, 0.0099), (True, 0.0099),
    ]  # fmt: skip


def test_losses_that_differ_without_any_change_are_not_compared(attempt):
    report, _, _, written = attempt(FakeProgram(losses_differ=True))
    assert {row["loss_difference"] for row in written["trials"]} == {None}
    assert any(note.startswith("Losses cannot be compared") for note in report.trial_summary.notes)


def test_without_a_diagnosis_the_steps_are_found_by_a_run_and_the_report_has_the_trials_alone(attempt):
    report, _, listener, written = attempt(FakeProgram(GOOD), diagnose=False, only_advised=False)
    assert listener.ended[0] == "plain"
    assert report.findings == ()
    assert written["steps"]["median_ns"] == 10 * MS
    assert len(written["trials"]) == 4


@pytest.mark.parametrize(("ended", "number"), [(KeyboardInterrupt(), 2), (SystemExit(128 + signal.SIGTERM), 15)])
def test_an_interrupted_try_has_its_table_and_goes_on_where_it_stopped(attempt, tmp_path, ended, number):
    cut = FakeProgram(GOOD, noise=0.002, interrupt_at=6, interrupt=ended)
    report, ended_by, _, _ = attempt(cut, only_advised=False)
    assert ended_by == number
    assert len(cut.runs) == 6
    assert {each.pairs for each in report.trials} == {1}
    rest = FakeProgram(GOOD, noise=0.002)
    report, ended_by, listener, _ = attempt(rest, only_advised=False, earlier=read_state(tmp_path))
    assert ended_by is None
    assert len(listener.ended) == len(rest.runs)
    assert "continuing after 6 runs, which are not repeated" in listener.said
    whole = FakeProgram(GOOD, noise=0.002)
    attempt(whole, only_advised=False)
    assert len(rest.runs) + 6 == len(whole.runs)
    assert report.trials[-1].change == "all"


def test_to_go_on_with_another_program_or_other_changes_is_refused(attempt, tmp_path):
    attempt(FakeProgram(GOOD, interrupt_at=5))
    earlier = read_state(tmp_path)
    with pytest.raises(UsageError, match="changes was"):
        attempt(FakeProgram(), earlier=earlier, wanted=((FUSED, None),))
    earlier["identity"]["command"] = ["python", "other.py"]
    with pytest.raises(UsageError, match="command was"):
        attempt(FakeProgram(), earlier=earlier)


def test_more_time_may_be_given_to_go_on(attempt, tmp_path):
    attempt(FakeProgram(noise=0.3, seed=2), budget_s=0.0)
    report, _, _, _ = attempt(FakeProgram(noise=0.3, seed=2), earlier=read_state(tmp_path), budget_s=None)
    assert all(each.pairs for each in report.trials)
    assert report.trials


def test_what_the_time_did_not_reach_is_named(attempt):
    report, _, _, _ = attempt(FakeProgram(), budget_s=0.0)
    assert report.trials == ()
    assert "Not tried, because time ran out: workers=2, workers=4; --resume continues." in report.trial_summary.notes


def test_what_too_few_pairs_could_not_decide_is_named(attempt):
    slightly = FakeProgram({"workers=2": 0.975}, interrupt_at=7)  # two pairs are too few for so small an effect
    report, _, _, _ = attempt(slightly, wanted=((WORKERS, "2"),))
    assert (report.trials[0].verdict, report.trials[0].pairs) == ("undecided", 2)
    shown = " ".join(TrialTerminal().render(report).split())
    assert "cannot tell yet" in shown
    assert "workers=2 is not decided yet: about 4 more pairs would do (--pairs 6 --resume)" in shown
    report, _, _, _ = attempt(FakeProgram({"workers=2": 0.975}), wanted=((WORKERS, "2"),))
    assert (report.trials[0].verdict, report.trials[0].pairs) == ("faster", 3)
    assert "cannot" not in TrialTerminal().render(report)
    assert report.trials[0].step_ns == round(report.trials[0].before_ns * report.trials[0].ratio.median)


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM)])
def test_to_interrupt_before_anything_is_measured_leaves_no_table(attempt, ended):
    with pytest.raises(type(ended)):
        attempt(FakeProgram(interrupt_at=1, interrupt=ended))


@pytest.mark.parametrize(("end", "runs"), [("SIGTERM", 1), ("running", 1), ("stopped", 0), ("exit", 0)])
def test_a_recording_that_was_ended_with_try_is_made_again(tmp_path, monkeypatch, end, runs):
    made = []
    monkeypatch.setattr(diagnose_program, "has_traces", lambda _: True)
    monkeypatch.setattr(diagnose_program, "read_facts", lambda *_: CapturedFacts.parse({"exit": end}))
    monkeypatch.setattr(diagnose_program, "find_traces", lambda _: [])
    monkeypatch.setattr(diagnose_program, "analyze_traces", lambda *_: None)
    monkeypatch.setattr(
        diagnose_program.launch, "run", lambda *args, **_: made.append(args) or CaptureResult(0, tmp_path)
    )
    diagnose_program.diagnose_program(COMMAND, tmp_path)
    assert len(made) == runs


def test_a_program_that_saves_is_warned_of(attempt):
    plain = run_of(saves=("train.py:99",))
    _, _, listener, _ = attempt(FakeProgram(special={"plain": plain}))
    assert any("saves at train.py:99" in text and "PERFDOCTOR_TRIAL=1" in text for text in listener.said)
    _, _, listener, _ = attempt(FakeProgram())
    assert not any("saves at" in text for text in listener.said)


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (
            run_of(exit_code=1, error="ValueError: no data"),
            r"fails without any change \(ValueError: no data\): let train",
        ),
        (run_of(exit_code=3, error="exit code 3"), r"fails without any change \(exit code 3\)"),
        (run_of(exit_code=1, error="EOFError: EOF when reading a line"), "asks for input, and nobody answers"),
        (run_of(steps=range(0), ranks=0), "no training step was seen"),
        (run_of(steps=range(5, 7)), "ended after 7 steps, before enough were timed"),
        (run_of(exit_code=143, timed_out=True, error="ended after 60 s"), "give more time with --timeout"),
    ],
)
def test_a_program_that_cannot_be_tried_is_refused_in_one_sentence(attempt, plain, words):
    with pytest.raises(InputError, match=words) as caught:
        attempt(FakeProgram(special={"plain": plain}))
    assert "\n" not in str(caught.value)


def test_a_program_that_is_shorter_than_thought_is_timed_as_far_as_it_goes(attempt):
    plain = run_of(steps=range(5, 12))
    report, _, _, _ = attempt(FakeProgram(special={"plain": plain}), diagnosed=Diagnosis(), diagnose=False)
    assert report.trial_summary.timed_steps <= 12 - 2


def test_a_failing_command_that_is_no_script_is_named_too():
    assert "let go.sh run by itself" in explain_failure(["bash", "go.sh"], 2, "")


def test_the_folder_is_named_after_the_script_and_never_used_twice(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first, second = make_trial_folder(COMMAND, None), make_trial_folder(COMMAND, None)
    assert first != second
    assert first.name.startswith("perfdoctor-try-train-")
