"""How `perfdoctor run` ends where there is little or nothing to report: in one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
pytest.importorskip("torch")

STEPS = """\
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(3):
    optimizer.zero_grad(); model(torch.randn(4, 8)).sum().backward(); optimizer.step()
"""


@pytest.mark.usefixtures("forks")
def test_a_program_that_fails_before_it_trains_keeps_its_own_words(perfdoctor):
    Path("train.py").write_text("import torch\nraise ValueError('no data')\n")
    ended = perfdoctor("run", "--out", "kept", "train.py")
    assert ended.code == 1
    said = [line for line in ended.err.splitlines() if line.startswith("perfdoctor:")]
    expected = "perfdoctor: nothing was recorded: the program ended with exit code 1 before a training step was seen."
    assert said == [expected]
    assert not Path("kept").exists()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("asks", [False, True])
def test_three_steps_get_a_sentence_and_a_report_only_where_one_is_asked_for(perfdoctor, asks):
    Path("train.py").write_text(STEPS)
    ended = perfdoctor("run", "--out", "kept", *(["--json"] if asks else []), "train.py")
    assert ended.code == 0
    assert "before a whole step was recorded: let it run for six steps and more." in ended.err
    assert ended.out.startswith("{") is asks
    assert bool(ended.out) is asks
    assert Path("kept/rank0/steps.jsonl").exists()


@pytest.mark.usefixtures("forks")
def test_a_kill_while_a_trace_is_written_leaves_whole_files_that_say_so(perfdoctor):
    killed_in_a_write = """\
    if number == 9:
        import os, sys
        sys.modules["_perfdoctor_inject.rank_folder"].copy_trace = lambda *_: os.kill(os.getpid(), 9)
"""
    Path("train.py").write_text(STEPS.replace("range(3)", "range(60)") + killed_in_a_write)
    ended = perfdoctor("run", "--no-report", "--out", "kept", "train.py")
    assert ended.code == 137
    assert "the end of the program was not recorded: it was killed" in ended.err
    assert "the program made" not in ended.err
    for path in map(Path("kept/rank0").joinpath, ("facts.json", "timing.json.gz", "evidence.json.gz")):
        json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    analyzed = perfdoctor("analyze", "kept", "--json")
    assert "the end of the program is not recorded: it was killed" in analyzed.out
    assert len(Path("kept/rank0/steps.jsonl").read_text().splitlines()) > 10


@pytest.mark.usefixtures("forks")
def test_ctrl_c_in_the_first_steps_is_clean(perfdoctor):
    Path("train.py").write_text(STEPS + "    if number == 1: import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    ended = perfdoctor("run", "--out", "kept", "train.py")
    assert ended.code == 130
    said = [line for line in ended.err.splitlines() if line.startswith("perfdoctor:")]
    assert len(said) == 2
    assert "before a whole step was recorded" in said[0]
    assert [path.name for path in Path("kept").iterdir()] == ["rank0"]
    assert not list(Path("kept/rank0").glob(".*"))
