"""`perfdoctor try` on real programs, and what it says of wrong options."""

from __future__ import annotations

import difflib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from perfdoctor.cli.trial_options import parse_duration
from perfdoctor.errors import UsageError
from perfdoctor.reporters.json_ import load_schema

pytestmark = pytest.mark.process

torch = pytest.importorskip("torch")

# The step waits 24 ms for its two samples without workers, and next to nothing with two.
SLOW_LOADER = """\
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.012)
        return torch.full((8,), index / 64), torch.zeros(1)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
open("seen.txt", "a").write(os.environ.get("PERFDOCTOR_TRIAL", "0") + "\\n")
for x, y in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step(); time.sleep(0.006)
    torch.save(model.state_dict(), "last.pt")
print("trained")
"""
# Two workers make a batch each 12 ms in place of 24, and hide the 6 ms of the loop as well: 0.6 of a step, not half.


def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return path


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--only", "worker", "train.py"], "there is no change 'worker': did you mean workers?"),
        (["--only", "zzz", "train.py"], "perfdoctor try --list names those that there are"),
        (["--only", ",", "train.py"], "--only names no change"),
        (["--only", "workers", "--all", "train.py"], "--only and --all exclude each other"),
        (["--pairs", "0", "train.py"], "--pairs 0 must be from 1 to 100"),
        (["--budget", "soon", "train.py"], "--budget soon is not a time: give one such as --budget 10m"),
        (["--timeout", "0s", "train.py"], "--timeout 0s is not a time"),
        (["--wait", "soon", "train.py"], "--wait soon is not a time"),
        (["--out", "a", "--resume", "b", "train.py"], "--resume continues in its own folder"),
        (["--resume", "b", "train.py"], "b holds no trials to go on with"),
        ([], "Nothing to try: give a script"),
        (["trian.py"], "trian.py: no such file; did you mean train.py?"),
        (["sh", "-c", "true"], "perfdoctor try -- sh -c true"),
        (["--nonsense", "train.py"], "--nonsense is not an option of try"),
        (["-o", "r.docx", "train.py"], "the suffix of an output file"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(perfdoctor, argv, words):
    write("train.py", "open('ran', 'w')")
    ended = perfdoctor("try", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.line
    assert not Path("ran").exists()
    assert not list(Path().glob("perfdoctor-try-*"))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PERFDOCTOR_DISABLE": "1"}, "PERFDOCTOR_DISABLE is set, so that nothing can be measured: unset it"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "put it in front of the launcher"),
    ],
)
def test_where_nothing_can_be_measured_one_sentence_says_so(perfdoctor, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = perfdoctor("try", write("train.py", "open('ran', 'w')"))
    assert (ended.code, Path("ran").exists()) == (2, False)
    assert words in ended.line


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("90s", 90), ("90", 90), ("1h30m", 5400), ("1h2m3s", 3723), (" 5m ", 300)]
)
def test_times_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "0", "m", "5 m", "-5m", "5x", "1.5m", "5m1h"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--budget .* is not a time"):
        parse_duration(text, "--budget")


def test_the_list_says_what_can_be_tried_and_what_it_may_change(perfdoctor):
    ended = perfdoctor("try", "--list")
    assert ended.code == 0
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    names = {line.split(" ")[0] for line in ended.out.splitlines()}
    assert {"workers", "fused", "threads", "zero-grad", "autocast-bf16"} <= names
    assert "(needs a GPU)" in ended.out
    assert "numerics: " in ended.out


@pytest.mark.usefixtures("forks")
def test_a_slow_loader_is_tried_with_workers_and_the_table_says_what_they_are_worth(perfdoctor):
    options = [
        "--wait",
        "0",
        "--only",
        "workers=2,zero-grad=set-to-none",
        "--no-diagnose",
        "--pairs",
        "1",
        "--skip",
        "4",
        "--base",
        "12",
    ]
    ended = perfdoctor("try", *options, "--out", "kept", "-o", "r.md", write("train.py", SLOW_LOADER))
    assert ended.code == 0, ended.err
    report = json.loads(Path("kept/report.json").read_bytes())
    jsonschema.Draft202012Validator(load_schema()).validate(report)
    rows = {row["change"]: row for row in report["trials"]}
    assert rows["workers"]["verdict"] == "faster"
    assert 0.5 < rows["workers"]["saved_ns"] / rows["workers"]["before_ns"] < 1
    assert rows["workers"]["loss_difference"] == 0  # the same samples in the same order
    assert min(rows["workers"]["peak_memory_bytes"], rows["workers"]["memory_before_bytes"]) > 10_000_000
    assert rows["zero-grad"]["verdict"] == "not applicable"  # it is the default
    assert ended.out.startswith("workers=2 makes the step ")
    assert "1. workers=2, at train.py:16 in <module>" in ended.out
    assert "DataLoader(..., num_workers=2" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines() if "DataLoader(" not in line)
    assert "the program saves at train.py:20, in every trial" in ended.err
    assert "| workers=2 |" in Path("r.md").read_text()
    assert set(Path("seen.txt").read_text().split()) == {"1"}
    assert "trained" not in ended.out + ended.err
    assert Path("train.py").read_text() == SLOW_LOADER
    runs = sorted(path.name for path in Path("kept/runs").iterdir())
    assert all((Path("kept/runs") / name / "log.txt").exists() for name in runs)
    assert (Path("kept/runs") / runs[0] / "rank0" / "trial.json").exists()


@pytest.mark.usefixtures("forks")
def test_a_patch_of_anybody_is_measured_and_the_program_left_as_it_is(perfdoctor):
    write("train.py", SLOW_LOADER)
    edited = SLOW_LOADER.replace("batch_size=2", "batch_size=2, num_workers=2")
    lines = (each.splitlines(keepends=True) for each in (SLOW_LOADER, edited))
    write("change.diff", "".join(difflib.unified_diff(*lines, "a/train.py", "b/train.py")))
    options = ["--wait", "0", "--no-diagnose", "--pairs", "1", "--skip", "4", "--base", "12", "--out", "kept"]
    ended = perfdoctor("try", "--patch", "change.diff", *options, "train.py")
    assert ended.code == 0, ended.err
    [row] = json.loads(Path("kept/report.json").read_bytes())["trials"]
    assert (row["change"], row["verdict"], row["loss_difference"]) == ("change.diff", "faster", 0)
    assert "git apply change.diff" in ended.out
    assert Path("train.py").read_text() == SLOW_LOADER
    ended = perfdoctor("try", "--patch", "change.diff", "--only", "workers", "train.py")
    assert (ended.code, "exclude one another" in ended.err) == (2, True)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("name = input('name? ')\n", "the program asks for input, and nobody answers in a trial"),
        ("raise ValueError('no data')\n", "the program fails without any change (ValueError: no data)"),
        ("print('done')\n", "no training step was seen"),
    ],
    ids=["input", "fails", "no step"],
)
def test_a_program_that_cannot_be_tried_gets_one_sentence(perfdoctor, program, words):
    options = ["--wait", "0", "--no-diagnose", "--base", "4", "--only", "workers=2"]
    ended = perfdoctor("try", "-q", *options, write("train.py", program))
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_the_table_so_far_and_leaves_no_process(tmp_path, number):
    write(str(tmp_path / "train.py"), SLOW_LOADER)
    options = ["--wait", "0", "--only", "workers=2", "--no-diagnose", "--pairs", "50", "--skip", "2", "--base", "8"]
    child = subprocess.Popen(
        [sys.executable, "-m", "perfdoctor", "try", *options, "--out", "kept", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 600
        runs = tmp_path / "kept" / "runs"
        # The second round has begun: there is a pair, and a run to be ended.
        while not list(runs.glob("round2*/log.txt")) and time.monotonic() < until and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode == 128 + number, err
    assert "workers=2" in out
    assert "to go on: perfdoctor try --resume kept" in err
    assert json.loads((tmp_path / "kept" / "report.json").read_bytes())["trials"][0]["pairs"] == 1
    until = time.monotonic() + 60  # what was killed takes a moment to disappear
    while (left := list_processes(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


STUBBORN = """
import os, signal, sys
from pathlib import Path
from perfdoctor.capture.process_group import run_with_limit
waits = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w'); time.sleep(600)"
mark = {"PERFDOCTOR_CAPTURE_MARKS": os.getcwd()}
with open(os.devnull, "wb") as nowhere:
    run_with_limit([sys.executable, "-c", waits], {**os.environ, **mark}, None, nowhere, nowhere, *mark)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_impatient_signal_leaves_no_process(tmp_path, number):
    # What a shell starts in the background ignores Ctrl-C, and what nohup starts a lost terminal.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    begin = f"{heard}; signal.signal(signal.SIGHUP, signal.SIG_DFL)" + STUBBORN
    child = subprocess.Popen([sys.executable, "-c", begin], cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "up").exists() and time.monotonic() < until:
        time.sleep(0.02)
    for _ in range(3):
        child.send_signal(number)
        time.sleep(0.4)
    assert child.wait(60)
    assert not list_processes(str(tmp_path))


def list_processes(folder: str) -> list[str]:
    """The commands of the processes that belong to the trials in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"PERFDOCTOR_CAPTURE_MARKS={folder}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found
