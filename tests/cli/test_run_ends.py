"""How `perfdoctor run` ends where there is little or nothing to report: in one sentence."""

from __future__ import annotations

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
