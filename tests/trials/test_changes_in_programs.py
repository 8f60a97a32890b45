"""Several changes at once in programs as people write them: a plain loop, Lightning, Hugging Face Trainer, torchrun."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange, TrialOptions
from perfdoctor.capture.launch import run_trial

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

SKIP, BASE = 3, 4
# Of each change the setting that most programs have not.
EVERYWHERE = {
    "workers": "1",
    "fused": "fused",
    "zero-grad": "set-to-none",
    "channels-last": "on",
    "autocast-bf16": "on",
    "debug-off": "on",
    "deterministic-off": "on",
    "gc": "step-borders",
    "no-grad-evaluation": "on",
    "threads": "1",
    "tf32": "on",
}

LOOP = """
import gc
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(2)
torch.use_deterministic_algorithms(True)


class Adam(torch.optim.Adam):
    def __init__(self, params):
        super().__init__(params, lr=1e-3)


data = TensorDataset(torch.randn(60, 3, 8, 8), torch.randint(0, 4, (60,)))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = Adam(model.parameters())
loader = DataLoader(data, batch_size=4, shuffle=True)
with torch.autograd.set_detect_anomaly(True):
    for x, y in loader:
        model.train()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        model.eval()
        valid = model(torch.ones(1, 3, 8, 8)).argmax()
        gc.collect()
"""

LIGHTNING = """
import warnings
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main():
    data = TensorDataset(torch.randn(60, 3, 8, 8), torch.randint(0, 4, (60,)))
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, detect_anomaly=True)
    trainer.fit(Module(), DataLoader(data, batch_size=4))


if __name__ == "__main__":
    main()
"""

TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8), "labels": torch.tensor(index % 2)}


def main():
    model = BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))
    arguments = TrainingArguments("out", num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True, report_to=[],
                                  optim="adamw_torch", save_strategy="no", disable_tqdm=True)
    Trainer(model, arguments, train_dataset=Sentences()).train()


if __name__ == "__main__":
    main()
"""

RANKS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 4), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def specify(name: str, setting: str) -> TrialChange:
    module, _, class_name = {each.name: each.value for each in entry_points(group="perfdoctor.changes")}[
        name
    ].partition(":")
    spec = find_spec(module)
    assert spec is not None
    return TrialChange(name, str(spec.origin), class_name, setting)


def try_changes(
    folder: Path, source: str, changes: dict[str, str], launcher: tuple[str, ...] = (sys.executable,)
) -> list[dict[str, Any]]:
    """trial.json of each rank, after a trial that has ended as it should."""
    folder.mkdir(exist_ok=True)
    program = folder / "program.py"
    program.write_text(source)
    trial = TrialOptions(0, tuple(specify(name, setting) for name, setting in changes.items()))
    options = CaptureOptions(out=folder / "trial", skip=SKIP, base=BASE, trial=trial)
    # Lightning and transformers write to the working directory, or would.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PL_DISABLE_FORK": "1"}
    run = run_trial([*launcher, str(program)], options, environment, 120, log=folder / "output")
    assert (run.exit_code, run.timed_out) == (0, False), run.stderr_tail
    left = [json.loads((run.folder / f"rank{rank}" / "trial.json").read_text()) for rank in run.ranks]
    assert [each["exit_reason"] for each in left] == ["recorded"] * len(left)
    return left


def count_met(left: dict[str, Any]) -> set[str]:
    assert {name: each["error"] for name, each in left["changes"].items() if each["error"]} == {}
    return {name for name, each in left["changes"].items() if each["met"]}


def line_of(left: dict[str, Any], name: str, source: str) -> str:
    place = left["changes"][name]["locations"][0]
    assert Path(place["file"]).name == "program.py"
    return source.splitlines()[place["line"] - 1].strip()


def test_a_plain_loop_meets_every_change_that_it_has_a_place_for(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    exact = {name: setting for name, setting in EVERYWHERE.items() if name != "autocast-bf16"}
    (plain,) = try_changes(tmp_path / "plain", LOOP, {})
    (left,) = try_changes(tmp_path / "changed", LOOP, exact)
    assert count_met(left) == set(exact) - {"tf32"}
    assert line_of(left, "workers", LOOP).startswith("loader = ")
    assert line_of(left, "fused", LOOP).startswith("optimizer = Adam")
    assert line_of(left, "zero-grad", LOOP).startswith("optimizer.zero_grad")
    assert line_of(left, "no-grad-evaluation", LOOP).startswith("valid = ")
    assert line_of(left, "debug-off", LOOP).startswith("with torch.autograd.set_detect")
    assert list(left["losses"]) == list(plain["losses"])
    assert list(left["losses"].values()) == pytest.approx(list(plain["losses"].values()), rel=1e-4)


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (left,) = try_changes(tmp_path, LIGHTNING, EVERYWHERE)
    assert count_met(left) == {"workers", "fused", "channels-last", "autocast-bf16", "debug-off", "gc"}
    assert line_of(left, "fused", LIGHTNING).startswith("return torch.optim.AdamW")
    assert line_of(left, "workers", LIGHTNING).startswith("trainer.fit(Module(), DataLoader")


def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (left,) = try_changes(tmp_path, TRAINER, EVERYWHERE)
    assert count_met(left) == {"workers", "fused", "autocast-bf16", "gc"}
    assert line_of(left, "workers", TRAINER).startswith("Trainer(model")
    assert len(left["losses"]) == SKIP + BASE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="torchrun on Windows needs libuv")
def test_each_rank_of_torchrun_is_changed_and_ends_at_the_same_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = (str(Path(sysconfig.get_path("scripts")) / "torchrun"),)
    if not Path(torchrun[0]).exists():
        torchrun = (sys.executable, "-m", "torch.distributed.run")
    changes = {"ddp": "find_unused_parameters=False", "workers": "1"}
    left = try_changes(tmp_path, RANKS, changes, (*torchrun, "--nproc-per-node", "2", "--standalone"))
    assert [each["steps"] for each in left] == [SKIP + BASE] * 2
    assert [count_met(each) for each in left] == [{"ddp"}] * 2
    assert line_of(left[1], "ddp", RANKS).startswith("model = DistributedDataParallel")
