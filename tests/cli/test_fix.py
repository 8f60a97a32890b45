"""`perfdoctor fix` on a real program: what it measures, what it leaves out, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoctor.fixes.choose_edits import EDITS
from perfdoctor.fixes.fix_program import fix_program
from perfdoctor.fixes.source_edit import SourceEdit
from perfdoctor.fixes.source_file import Splice
from perfdoctor.trials.try_program import TrySettings

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

pytest.importorskip("torch")

# Two threads of the loader's time pass in sleep: a worker hides it, whatever else uses the cores.
TRAIN = """\
import torch
from data import Slow
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=2)  # rows
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
DATA = """\
import time
import torch
from torch.utils.data import Dataset

class Slow(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((8,), index / 64), torch.zeros(1)
"""


def git(*words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    return subprocess.run(["git", *who, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a git repository, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("data.py").write_text(DATA)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "A program")
    return tmp_path


def fix(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfdoctor", "fix", *words], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.usefixtures("program")
def test_a_program_is_fixed_and_the_patch_applied_and_taken_back():
    ended = fix(
        "--pairs", "2", "--wait", "0", "--skip", "2", "--base", "12", "--out", "out", "-o", "fix.pr.md", "train.py"
    )
    assert ended.returncode == 0, ended.stderr
    assert git("status", "--porcelain", "--untracked-files=no") == ""
    patch = Path("out/perfdoctor.patch").read_text()
    assert "+loader = DataLoader(Slow(), batch_size=2, num_workers=" in patch
    assert "losses same" in patch
    assert patch in ended.stdout
    report = json.loads(Path("out/report.json").read_text())
    workers = next(each for each in report["trials"] if each["change"] == "workers")
    assert workers["verdict"] == "faster"
    assert workers["loss_difference"] == 0
    comment = Path("fix.pr.md").read_text()
    assert "num_workers=" in comment
    (row,) = [line for line in comment.splitlines() if line.startswith("| workers=")]
    assert [cell.strip() for cell in row.split("|")][7:9] == ["same", "faster"]
    assert " cores, PyTorch " in patch

    assert fix("--apply", "out/perfdoctor.patch").returncode == 0
    assert "num_workers=" in Path("train.py").read_text()
    subprocess.run([sys.executable, "train.py"], check=True)
    refused = fix("--apply", "out/perfdoctor.patch")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "not committed" in refused.stderr
    assert fix("--undo", "out/perfdoctor.patch").returncode == 0
    assert Path("train.py").read_text() == TRAIN


def test_an_edit_that_changes_the_losses_is_measured_marked_and_left_out(program, monkeypatch):
    def change_results(_finding, setting, project):
        source = project.source("data.py")
        [call] = source.calls(lambda meaning: meaning == "time.sleep")
        rows = source.calls(lambda meaning: meaning == "torch.full")[0].args[1]
        splices = (Splice(*source.span(call), "0"), Splice(*source.span(rows), "index / 32"))
        return SourceEdit("workers", setting, source, 10, splices, "0")

    monkeypatch.setitem(EDITS, "workers", change_results)
    command, silent = [sys.executable, "train.py"], _Silent()
    settings = TrySettings(wanted=(), pairs=2, budget_s=200, skip=2, base=12)
    (program / "out").mkdir()
    fixed = fix_program(command, settings, program / "out", silent, None)
    trial = next(each for each in fixed.report.trials if each.change == "workers")
    assert trial.verdict == "faster"
    assert trial.loss_difference > 0.01
    assert trial.is_loss_expected is False
    assert fixed.patch is None
    assert any("alters numerics: workers" in note for note in fixed.report.trial_summary.notes)


class _Silent:
    """Hears of the trials, and says nothing."""

    def say(self, text: str) -> None: ...
    def begin_run(self, label: str, state: object) -> None: ...
    def end_run(self, label: str, run: object, state: object) -> None: ...


@pytest.mark.usefixtures("program")
def test_of_a_recording_the_patch_is_printed_and_said_to_be_unproven():
    run = [sys.executable, "-m", "perfdoctor", "run", "--no-report", "--out", "capture", "train.py"]
    subprocess.run(run, check=True, capture_output=True)
    ended = fix("--out", "proposed", "capture")
    assert ended.returncode == 0
    assert Path("proposed/perfdoctor.patch").read_text() == ended.stdout
    assert "none of them was measured" in ended.stdout
    assert "+loader = DataLoader(Slow(), batch_size=2, num_workers=" in ended.stdout
    Path("some.patch").write_text(ended.stdout)
    git("apply", "--check", "some.patch")
    assert "--apply takes what was measured" in fix("--apply", "capture").stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Nothing to fix"),
        (("--apply", "--undo", "x.patch"), "exclude each other"),
        (("gone.py",), "no such file"),
        (("gone",), "no such file"),
        (("--undo",), "perfdoctor.patch: no such file"),
        (("x.patch",), "give --apply or --undo"),
        (("--pairs", "0", "train.py"), "--pairs 0"),
    ],
)
@pytest.mark.usefixtures("program")
def test_what_cannot_be_done_gets_one_sentence(words, why):
    ended = fix(*words)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert why in ended.stderr


def test_without_a_repository_apply_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("open('ran', 'w')\n")
    ended = fix("--apply", "train.py")
    assert (ended.returncode, Path("ran").exists()) == (2, False)
    assert "no git repository" in ended.stderr
