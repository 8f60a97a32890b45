"""The whole of `fix` with a program in memory: copies, what is kept, the patch and its message, and git."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_program import FakeProgram, run_of
from plain_finding import finding_at

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.capture.launch import TrialRun
from perfdoctor.cli.main import main
from perfdoctor.errors import InputError, UsageError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.fixes import fix_program as fixing
from perfdoctor.fixes import patch as patching
from perfdoctor.fixes import propose_patch as proposing
from perfdoctor.fixes.fix_program import EditedProcess, fix_program, project_of
from perfdoctor.report.finding import Action, Finding
from perfdoctor.report.report import Report, StepSummary
from perfdoctor.reporters.trial_reports import TrialTerminal
from perfdoctor.savings.saving import Saving, SavingAlone
from perfdoctor.trials import run_trials
from perfdoctor.trials import try_program as trying
from perfdoctor.trials.diagnose_program import Diagnosis
from perfdoctor.trials.step_counts import StepCounts
from perfdoctor.trials.try_program import TrySettings

MS = 1_000_000
COMMAND = [sys.executable, "train.py", "--epochs", "1"]
TRAIN = """\
import torch
from torch.utils.data import DataLoader
loader = DataLoader(rows)
other = DataLoader(tests)
optimizer = torch.optim.Adam(model.parameters())
"""


def finding(rule: str, line: int, *actions: Action) -> Finding:
    saving = Saving(MS, 2 * MS, 3 * MS, "replayed", SavingAlone(MS, 2 * MS, 3 * MS))
    place = SourceLocation("train.py", line, None)
    return Finding(rule, rule, "It waits", 3 * MS, 0.3, "high", saving, "Do.", location=place, actions=actions)


FINDINGS = (
    finding("PD101", 3, Action("workers", 2)),
    finding("PD112", 4, Action("workers", 4)),
    finding("PD303", 5, Action("fused", "fused"), Action("detach")),
    finding("PD104", 5, Action("compile", "default")),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    report = Report("1", (), StepSummary(20, "annotated", 10 * MS, mean_ns=10 * MS), (), (), FINDINGS, ())
    facts = CapturedFacts.parse(
        {"base_step_ns": [10 * MS], "steps_seen": 40, "exit": "exit", "world_size": 1, "torch": "2.13.0"}
        | {"cores": {"available": 4.0}}
    )
    monkeypatch.setattr(trying, "diagnose_program", lambda *_, **__: Diagnosis(report, facts))
    monkeypatch.setattr(proposing, "analyze_traces", lambda *_: report)
    monkeypatch.setattr(proposing, "find_traces", lambda paths: paths)
    return tmp_path


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin_run(self, label: str, state: Any) -> None: ...

    def end_run(self, label: str, run: Any, state: Any) -> None: ...


def fix(monkeypatch: pytest.MonkeyPatch, program: FakeProgram, **settings: Any) -> tuple[fixing.Fixed, Listener]:
    """Fix the program of this folder, whose runs are made in memory."""
    monkeypatch.setattr(trying.TrialProcess, "run", lambda _, name, arm: program(name, arm))
    Path("out").mkdir()
    listener = Listener()
    return fix_program(COMMAND, TrySettings(wanted=(), **settings), Path("out").absolute(), listener, None), listener


GOOD = {"workers@train.py:3=2": 0.5, "workers@train.py:4=4": 1.3, "fused=fused": 0.8, "compile=default": 0.6}


def test_what_pays_is_in_the_patch_with_its_proof_and_the_rest_is_not(project, monkeypatch):
    fixed, _ = fix(monkeypatch, FakeProgram(GOOD, noise=0.002))
    assert Path("train.py").read_text() == TRAIN
    assert fixed.root == project
    text = fixed.patch.read_text()
    head, _, diff = text.partition("diff --git")
    assert "Measured: perfdoctor fix train.py --epochs 1, on 4 cores, PyTorch 2.13.0\n" in head
    assert "- train.py:3: loader = DataLoader(rows, num_workers=2, persistent_workers=True)\n  0.50 of the step" in head
    assert "losses same" in head
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "+loader = DataLoader(rows, num_workers=2, persistent_workers=True)",
        "+model.compile()",
        "+optimizer = torch.optim.Adam(model.parameters(), fused=True)",
    ]
    answered = {each.rule: each.saving.basis for each in fixed.report.findings}
    assert answered == {"PD101": "measured", "PD112": "measured", "PD303": "measured", "PD104": "measured"}
    refused = [each.label for each in fixed.report.trials if each.verdict == "not applicable"]
    assert refused == ["detach"]


def test_without_an_edit_that_pays_there_is_no_patch(project, monkeypatch):
    fixed, _ = fix(monkeypatch, FakeProgram({}, noise=0.002))
    assert fixed.patch is None
    assert not (project / "out/perfdoctor.patch").exists()


@pytest.mark.parametrize(("losses", "kept"), [({5: 0.5}, True), ({5: 0.500004}, True), ({5: 0.51}, False), ({}, False)])
def test_what_changes_losses_is_left_out_unless_the_user_wants_it(project, monkeypatch, losses, kept):
    special = {"compile=default": run_of(6.0, changes=FakeProgram()("", ()).changes, losses=losses)}
    program = FakeProgram({}, noise=0.002, special=special)

    def run(name, arm):
        made = program(name, arm)
        met = FakeProgram()(name, arm).changes
        return fixing.replace(made, changes=met)

    fixed, _ = fix(monkeypatch, run)
    assert (fixed.patch is not None) == kept
    notes = " ".join(fixed.report.trial_summary.notes)
    assert ("alters numerics: compile=default" in notes) != kept
    for path in sorted((project / "out").iterdir()):
        path.unlink()
    (project / "out").rmdir()
    fixed, _ = fix(monkeypatch, run, allow_numerics=True)
    assert fixed.patch is not None


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("others", "kept"), [(0.52, True), (0.5, False)])
def test_other_random_numbers_are_no_other_results(monkeypatch, others, kept):
    """Workers change losses by 2 %; plain runs that draw other numbers differ by 4 % or not at all."""
    special = {
        "plain": run_of(losses={5: 0.5}),
        "workers@train.py:3=2": run_of(5.0, losses={5: 0.51}),
        "other-random-numbers=1": run_of(losses={5: others}),
        "other-random-numbers=2": run_of(losses={5: 0.5}),
    }
    program = FakeProgram({}, noise=0.002, special=special)
    fixed, _ = fix(monkeypatch, lambda name, arm: replace(program(name, arm), changes=FakeProgram()(name, arm).changes))
    assert (fixed.patch is not None) == kept
    (workers,) = [each for each in fixed.report.trials if each.label == "workers@train.py:3=2"]
    assert workers.is_loss_expected == kept
    notes = " ".join(fixed.report.trial_summary.notes)
    assert ("draws other random numbers: its losses differ by 2e-02" in notes) == kept
    assert ("alters numerics: workers" in notes) != kept


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("core_share", [0.6, 0.99, None])
def test_settings_for_these_cores_are_left_out_where_other_programs_use_them(monkeypatch, core_share):
    """Plain runs differ by 40 %; that alone may be the program's own."""
    program = FakeProgram({"workers@train.py:3=2": 0.2}, noise=0.4)
    fixed, _ = fix(monkeypatch, lambda name, arm: replace(program(name, arm), core_share=core_share), pairs=12)
    notes = " ".join(fixed.report.trial_summary.notes)
    assert ("workers@train.py:3=2, because other programs used the cores" in notes) == (core_share == 0.6)
    assert (fixed.patch is None) == (core_share == 0.6)


SCALED = """\
import torch
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
loader = torch.utils.data.DataLoader(rows)
for step in range(9):
    torch.save(model, "last.pt")
"""
ON_PURPOSE = (
    finding("PD505", 3, Action("unscale")),
    finding("PD101", 5, Action("workers", 2)),
    finding("PD113", 7, Action("less-often", 10)),
)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("allowed", [False, True])
def test_what_changes_results_or_files_on_purpose_has_to_be_allowed(monkeypatch, allowed):
    Path("train.py").write_text(SCALED)
    report = Report("1", (), StepSummary(20, "annotated", 10 * MS, mean_ns=10 * MS), (), (), ON_PURPOSE, ())
    facts = CapturedFacts.parse({"base_step_ns": [10 * MS], "steps_seen": 40, "exit": "exit", "world_size": 1})
    monkeypatch.setattr(trying, "diagnose_program", lambda *_, **__: Diagnosis(report, facts))
    program = FakeProgram({"workers=2": 0.5, "less-often=10": 0.7, "unscale": 1.3}, noise=0.002)
    fixed, _ = fix(monkeypatch, program, allow_changes=allowed)
    verdicts = {each.change: each.verdict for each in fixed.report.trials}
    assert verdicts["unscale"] == "repair"
    assert verdicts["less-often"] == verdicts["workers"] == "faster"
    bases = {each.rule: each.saving.basis for each in fixed.report.findings}
    assert bases == {"PD505": "replayed", "PD101": "measured", "PD113": "measured"}
    text, notes = fixed.patch.read_text(), " ".join(fixed.report.trial_summary.notes)
    assert "+loader = torch.utils.data.DataLoader(rows, num_workers=2, persistent_workers=True)" in text
    for line, why in (
        ("+scaler.unscale_(optimizer)", "repairs results, which are others then: unscale"),
        ("+    if step % 10 == 0:", "changes what the program writes or keeps: less-often=10"),
    ):
        assert (line in text) == allowed
        assert (f"{why}; --allow-changes" in notes) != allowed
    assert ("it repairs results, so that they differ on purpose" in text) == allowed
    table = TrialTerminal().render(fixed.report)
    assert "repair" in table
    assert "it changes what is written or kept" in table


@pytest.mark.usefixtures("project")
def test_a_repair_alone_is_a_patch_that_is_never_called_faster(monkeypatch):
    Path("train.py").write_text(SCALED)
    report = Report("1", (), StepSummary(20, "annotated", 10 * MS, mean_ns=10 * MS), (), (), ON_PURPOSE[:1], ())
    monkeypatch.setattr(trying, "diagnose_program", lambda *_, **__: Diagnosis(report, CapturedFacts.parse({})))
    fixed, _ = fix(monkeypatch, FakeProgram({"unscale": 0.5}, noise=0.002), allow_changes=True)
    assert fixed.patch.read_text().startswith(
        "perfdoctor: unscale repairs results; no change makes the step shorter.\n"
    )


def test_a_run_starts_a_copy_with_its_edits_and_names_the_users_line(project, monkeypatch):
    started = []

    def run_trial(command, options, environment, timeout_s, *, log, cwd):
        started.append((command, environment, timeout_s, log.name, cwd, options.trial.changes))
        return TrialRun(0, options.out, False, "", 1.0, (0,))

    found, _ = fixing.choose_edits([finding_at(3, "workers", "2")], project_of(COMMAND))
    candidate = fixing.make_candidate(found[0], is_alone=True)
    made = run_of(5.0, changes={"workers": FakeProgram()("", (candidate.choice,)).changes["workers"]})
    monkeypatch.setattr(run_trials.launch, "run_trial", run_trial)
    monkeypatch.setattr(run_trials, "read_program_run", lambda *_, **__: made)
    process = EditedProcess(COMMAND, project / "out" / "runs", StepCounts())
    process.project = project_of(COMMAND)
    run = process.run("round1", (candidate.choice,))
    process.run("round2", ())
    assert run.changes["workers"].locations == ((str(project / "train.py"), 3, None),)
    (command, environment, _, _, cwd, changes), (_, _, _, _, plain, _) = started
    assert (command, environment) == (tuple(COMMAND), {"PYTHONPATH": ""})
    assert "num_workers=2" in (cwd / "train.py").read_text()
    assert (plain / "train.py").read_text() == TRAIN
    assert [(each.name, each.class_name) for each in changes] == [("workers", "EditedSource")]


def test_a_package_is_taken_from_the_copy(project, monkeypatch):
    (project / "pyproject.toml").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{project}/lib")
    path = fixing.make_search_path(project_of(COMMAND), Path("/copy"))
    assert path.split(":") == ["/copy", "/copy/src", "/elsewhere", "/copy/lib"]


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({}, ""),
        ({"torch": "2.13.0", "cores": {"available": 2.0}}, ", on 2 cores, PyTorch 2.13.0"),
        ({"devices": [{"name": "NVIDIA H100"}] * 2, "cores": {"available": 2.0}}, ", on 2 x NVIDIA H100"),
        ({"devices": [{"name": "NVIDIA H100"}]}, ", on NVIDIA H100"),
    ],
)
def test_a_patch_says_where_it_was_measured(facts, where):
    assert fixing.describe_machine(CapturedFacts.parse(facts)) == where


def test_a_command_is_shown_as_one_types_it():
    assert fixing.describe_command([sys.executable, "a b.py"]) == "perfdoctor fix 'a b.py'"
    assert fixing.describe_command(["torchrun", "train.py"]) == "perfdoctor fix -- torchrun train.py"


@pytest.mark.usefixtures("project")
def test_a_patch_for_a_recording_is_said_to_be_unproven(capsys):
    assert main(["fix", "--out", "proposed", "capture"]) == 0
    printed = capsys.readouterr()
    assert printed.out == Path("proposed/perfdoctor.patch").read_text()
    assert printed.out.startswith("perfdoctor: edits for a recording; none of them was measured\n")
    assert "+optimizer = torch.optim.Adam(model.parameters(), fused=True)" in printed.out
    assert "model.compile" not in printed.out
    assert "compile=default has no edit: it alters numerics" in printed.err
    assert "detach has no edit" in printed.err
    Path("train.py").write_text("x = 1\n")
    assert main(["fix", "capture"]) == 0
    assert "no finding of this recording has an edit" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("allowed", [False, True])
def test_of_a_recording_too_what_changes_results_has_to_be_allowed(monkeypatch, capsys, allowed):
    Path("train.py").write_text(SCALED)
    report = Report("1", (), StepSummary(), (), (), ON_PURPOSE, ())
    monkeypatch.setattr(proposing, "analyze_traces", lambda *_: report)
    assert main(["fix", *["--allow-changes"] * allowed, "capture"]) == 0
    printed = capsys.readouterr()
    assert ("+scaler.unscale_(optimizer)" in printed.out) == allowed
    marked = "train.py:3: scaler.unscale_(optimizer); it repairs results, so that they differ on purpose\n"
    assert (marked in printed.out) == allowed
    assert ("unscale has no edit: it repairs results" in printed.err) != allowed
    assert "num_workers=2" in printed.out


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What git is asked for; it answers that all is well."""
    asked: list[tuple[str, ...]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(tuple(command[3:]))
        out = "1\t1\ttrain.py\n" if "--numstat" in command else ""
        return subprocess.CompletedProcess(command, 0, out.encode(), b"")

    monkeypatch.setattr(patching.subprocess, "run", run)
    return asked


def test_a_patch_is_applied_to_a_clean_tree_and_the_latest_is_taken_back(project, git, capsys):
    (project / ".git").mkdir()
    folder = project / "perfdoctor-fix-train-1"
    folder.mkdir()
    patch = folder / "perfdoctor.patch"
    patch.write_text("")
    assert main(["fix", "--apply", str(patch)]) == 0
    assert main(["fix", "--undo"]) == 0
    assert capsys.readouterr().err == "perfdoctor: changed: train.py\nperfdoctor: changed back: train.py\n"
    assert git == [
        ("status", "--porcelain", "--untracked-files=no"),
        ("apply", "--numstat", str(patch)),
        ("apply", str(patch)),
        ("apply", "--numstat", "--reverse", str(patch)),
        ("apply", "--reverse", str(patch)),
    ]


@pytest.mark.parametrize(
    ("answers", "error", "why"),
    [
        ({"status": (0, b" M train.py\n", b"")}, UsageError, "train.py has changes"),
        ({"apply": (1, b"", b"error: patch failed: train.py:3\n")}, InputError, "does not fit the files any more"),
        ({"status": OSError(2, "No such file")}, InputError, "git cannot be started"),
    ],
)
def test_what_git_refuses_is_one_sentence(project, monkeypatch, answers, error, why):
    def run(command, **_):
        answer = answers.get(command[3], (0, b"", b""))
        if isinstance(answer, OSError):
            raise answer
        return subprocess.CompletedProcess(command, *answer)

    monkeypatch.setattr(patching.subprocess, "run", run)
    (project / ".git").mkdir()
    Path("x.patch").write_text("")
    with pytest.raises(error, match=why):
        patching.apply_patch(Path("x.patch"), project)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Nothing to fix"),
        (("--apply", "--undo", "x.patch"), "exclude each other"),
        (("--undo",), "perfdoctor.patch: no such file"),
        (("x.patch",), "give --apply or --undo"),
        (("--apply", "capture"), "give the program"),
        (("--apply", "train.py"), "no git repository"),
        (("--resume", "a", "--out", "b", "train.py"), "leave --out away"),
    ],
)
def test_what_cannot_be_done_gets_one_sentence(project, capsys, words, why):
    if why.startswith("perfdoctor.patch"):
        (project / ".git").mkdir()
    assert main(["fix", *words]) == 2
    printed = capsys.readouterr().err
    assert why in printed
    assert printed.count("\n") == 1


def test_the_command_prints_the_table_and_the_patch_and_applies_it(project, git, monkeypatch, capsys):
    program = FakeProgram(GOOD, noise=0.002)
    monkeypatch.setattr(trying.TrialProcess, "run", lambda _, name, arm: program(name, arm))
    (project / ".git").mkdir()
    assert main(["fix", "-q", "--wait", "0", "--out", "out", "--apply", "train.py"]) == 0
    printed = capsys.readouterr()
    assert Path("out/perfdoctor.patch").read_text() in printed.out
    assert "changed: train.py" in printed.err
    assert ("apply", str(project / "out/perfdoctor.patch")) in git
    program.factors = {}
    assert main(["fix", "--wait", "0", "--out", "again", "train.py"]) == 0
    assert "there is no patch" in capsys.readouterr().err
