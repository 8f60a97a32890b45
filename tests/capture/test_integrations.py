"""The callbacks, under the real trainers on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.integrations.session_callback import SessionCallback  # noqa: E402

SIZES = {"skip": 1, "base": 1, "warmup": 1, "timing": 2, "evidence": 1}
STEPS = 9


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "rank0" / "facts.json").read_text())


@pytest.mark.process
def test_the_package_imports_no_framework() -> None:
    code = (
        "import sys, perfdoctor.integrations; assert dir(perfdoctor.integrations);"
        "sys.exit(bool({'torch', 'lightning', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_callback_is_an_attribute_error() -> None:
    import perfdoctor.integrations

    with pytest.raises(AttributeError, match="KerasCallback"):
        _ = perfdoctor.integrations.KerasCallback


@pytest.fixture
def frameworks_may_warn() -> Any:
    """The frameworks' own warnings are theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def lightning_fit(callback: Any, folder: Path, fail_at: int | None = None) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            if index == fail_at:
                raise ValueError("bad batch")
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.ones(2 * STEPS, 4))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[callback],
        **quiet,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data))


@pytest.mark.process
@pytest.mark.usefixtures("frameworks_may_warn")
def test_lightning_steps_are_optimizer_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    from perfdoctor.integrations import LightningCallback

    callback = LightningCallback(tmp_path / "out", **SIZES)
    lightning_fit(callback, tmp_path)
    printed = capsys.readouterr()
    assert "Training: a step takes " in printed.out
    assert f"perfdoctor: recorded in {tmp_path / 'out'}\n" in printed.err
    facts = facts_of(tmp_path / "out")
    assert (facts["steps_seen"], facts["step_source"], facts["exit"]) == (STEPS, "session", "session")
    assert facts["windows"]["timing"]["complete"]
    assert facts["windows"]["evidence"]["complete"]
    assert facts["loaders"][0]["dataset"] == "TensorDataset"


@pytest.mark.process
@pytest.mark.usefixtures("frameworks_may_warn")
def test_an_exception_under_lightning_leaves_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    from perfdoctor.integrations import LightningCallback

    with pytest.raises(ValueError, match="bad batch"):
        lightning_fit(LightningCallback(tmp_path / "out", **SIZES), tmp_path, fail_at=9)
    assert "a step takes" not in capsys.readouterr().out
    facts = facts_of(tmp_path / "out")
    assert (facts["exit"], facts["windows"]["timing"]["steps"]) == ("exception", 1)


@pytest.mark.process
@pytest.mark.usefixtures("frameworks_may_warn")
def test_transformers_steps_are_optimizer_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from perfdoctor.integrations import TransformersCallback

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:  # noqa: ARG002
            return {"loss": self.layer(x).square().mean()}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "model"),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(2 * STEPS)]
    callback = TransformersCallback(tmp_path / "out", **SIZES)
    transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()
    assert "Training: a step takes " in capsys.readouterr().out
    facts = facts_of(tmp_path / "out")
    assert (facts["steps_seen"], facts["step_source"], facts["exit"]) == (STEPS, "session", "session")
    assert facts["windows"]["timing"]["complete"]


def record_by_callback(folder: Path, steps: int = STEPS, **options: Any) -> None:
    """What a trainer does with a callback."""
    callback = SessionCallback(folder, **{**SIZES, **options})
    layer = torch.nn.Linear(4, 1)
    callback.begin()
    for _ in range(steps):
        layer(torch.ones(2, 4)).sum().backward()
        callback.step()
    callback.end()
    callback.end()


def test_a_report_that_nobody_wants_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_by_callback(tmp_path / "out", print_report=False)
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "out" / "rank0" / "facts.json").exists()


def test_a_training_that_is_too_short_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_by_callback(tmp_path / "out", steps=1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "was not reported: the program ended after 1 steps" in printed.err


def test_ranks_name_the_command_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        record_by_callback(tmp_path / "out")
    printed = capsys.readouterr()
    out = tmp_path / "out"
    assert printed.out == ""
    assert printed.err == f"perfdoctor: recorded in {out}; when all ranks have ended: perfdoctor analyze {out}\n"


def test_under_run_the_report_is_that_of_run(launcher: Any) -> None:
    recorded = launcher.record(
        """
        import torch
        from perfdoctor.integrations.session_callback import SessionCallback
        callback = SessionCallback(skip=1, base=1, warmup=1, timing=2, evidence=1)
        layer = torch.nn.Linear(4, 1)
        callback.begin()
        for _ in range(9):
            layer(torch.ones(2, 4)).sum().backward()
            callback.step()
        callback.end()
        print("done")
        """
    )
    assert (recorded.exit_code, recorded.stdout, recorded.stderr) == (0, "done\n", "")
    assert recorded.ranks == [0]


def test_accelerate_launch_is_recorded(launcher: Any, capture_kit: dict[str, Any]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    script = launcher.write(
        capture_kit["PRELUDE"]
        + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
""",
        "accelerated.py",
    )
    # Several processes on CPUs need mpirun there; ranks are those of torchrun.
    launch = ("--num_processes", "1", "--num_machines", "1", "--cpu", "--mixed_precision", "no")
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, "--dynamo_backend", "no", script.name]
    recorded = launcher.run("--", *command, is_forked=False)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.ranks == [0]
    # It asks for a batch ahead: nothing is asked for, and nothing ends, behind the last of the 28 steps.
    assert recorded.facts()["steps_seen"] == 27
    assert recorded.annotated_steps("timing") == [5, 6, 7]
