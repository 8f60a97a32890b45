"""What docs/start.md says of trainers and notebooks: its own lines are run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
STEPS = 32


def snippet(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own warnings are theirs
        yield


@pytest.mark.process
def test_the_lines_for_lightning(capsys: pytest.CaptureFixture[str]) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:  # noqa: ARG002
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(STEPS, 4))
    exec(snippet("lightning"), {"lightning": lightning, "model": Module(), "loader": loader})
    check_capture(capsys.readouterr().out)


@pytest.mark.process
def test_the_lines_for_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:  # noqa: ARG002
            return {"loss": self.layer(x).square().mean()}

    arguments = transformers.TrainingArguments(
        output_dir="model",
        max_steps=STEPS,
        per_device_train_batch_size=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
    )
    dataset = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(STEPS)]
    names = {"transformers": transformers, "model": Model(), "arguments": arguments, "dataset": dataset}
    exec(snippet("transformers"), names)
    check_capture(capsys.readouterr().out)


def test_the_lines_for_notebooks(capsys: pytest.CaptureFixture[str]) -> None:
    import perfdoctor

    layer = torch.nn.Linear(4, 1)

    def train_step(batch: Any) -> None:
        layer(batch).sum().backward()

    loader = torch.utils.data.DataLoader(torch.ones(STEPS, 4))
    names: dict[str, Any] = {"perfdoctor": perfdoctor, "loader": loader, "train_step": train_step}
    exec(snippet("notebook"), names)
    names["session"].report().print()
    check_capture("\n" + capsys.readouterr().out)


def check_capture(printed: str) -> None:
    assert re.search(r"step\s+takes ", printed), printed
    assert {path.name for path in Path("capture/rank0").iterdir()} >= {"timing.json.gz", "evidence.json.gz"}
