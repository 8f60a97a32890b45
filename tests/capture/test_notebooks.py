"""Recording in a notebook: a real one, run by nbclient in a kernel of ipykernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.capture import session as session_module
from perfdoctor.capture.session import choose_interactive_folder, is_interactive
from perfdoctor.errors import CaptureError

pytest.importorskip("torch")

DEFINITIONS = """\
import time, torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
import perfdoctor
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(8), torch.zeros(1)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
RECORDING = """\
sizes = dict(skip=1, base=2, warmup=1, timing=4, evidence=2)
with perfdoctor.profile("out", **sizes) as session:
    for x, y in tqdm(DataLoader(Slow(), batch_size=2)):
        with session.step():
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
session.report()
"""
PRINTING = """\
session.report().print()
print(session.folder.name, len(list(session.folder.glob("rank*"))))
"""


def run_notebook(folder: Path, *cells: str) -> list[dict[str, Any]]:
    """The executed cells of a notebook."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return list(book.cells)


def text_of(cell: dict[str, Any], name: str) -> str:
    return "".join(output["text"] for output in cell["outputs"] if output.get("name") == name)


def shown(cell: dict[str, Any]) -> dict[str, str]:
    return next(output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result")


@pytest.mark.filterwarnings("default")
def test_a_notebook_records_twice_names_its_cells_and_shows_the_report(tmp_path: Path) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    _, first, again, printed = run_notebook(tmp_path, DEFINITIONS, RECORDING, RECORDING, PRINTING)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for cell, number in ((first, 2), (again, 3)):
        data = shown(cell)
        assert "PD101" in data["text/markdown"]
        assert f"In[{number}]:3" in data["text/plain"]
        assert "ipykernel_" not in data["text/plain"] + data["text/markdown"]
        assert "DataLoader(Slow(), batch_size=2)" in data["text/markdown"]  # the line of the cell
    assert text_of(printed, "stdout").startswith("Training: ")
    assert text_of(printed, "stdout").endswith("\nout 1\n")
    # The progress bar has its line for itself.
    assert "perfdoctor" not in text_of(first, "stderr")
    note, bar = text_of(again, "stderr").split("\n", 1)
    assert note == "perfdoctor: out was recorded by this notebook or prompt before, and is replaced"
    assert "12/12" in bar
    assert "perfdoctor" not in bar


@pytest.mark.filterwarnings("default")
def test_after_a_restart_the_folder_gets_a_number(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    _, cell, printed = run_notebook(tmp_path, DEFINITIONS, RECORDING, PRINTING)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-2"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]
    assert "perfdoctor: out is not empty: this recording goes to out-2; force=True" in text_of(cell, "stderr")
    assert text_of(printed, "stdout").endswith("\nout-2 1\n")


def test_a_program_that_nobody_types_replaces_nothing(tmp_path: Path) -> None:
    assert not is_interactive()
    from perfdoctor.capture.session import profile

    sizes = {"skip": 1, "base": 1, "warmup": 1, "timing": 1, "evidence": 0}
    with profile(tmp_path / "out", **sizes) as session, session.step():
        pass
    with pytest.raises(CaptureError, match="force=True"), profile(tmp_path / "out", **sizes):
        pass


def test_only_folders_of_this_process_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert choose_interactive_folder(folder) == (folder, False)
    (folder / "rank0").mkdir(parents=True)
    assert choose_interactive_folder(folder) == (tmp_path / "out-2", False)
    monkeypatch.setattr(session_module, "_own_folders", {folder.resolve()})
    assert choose_interactive_folder(folder) == (folder, True)
    assert capsys.readouterr().err.count("\n") == 2
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert is_interactive()
