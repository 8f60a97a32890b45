"""A recorder that comes into a running loop, records its windows, and goes again; and the socket that asks for it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from perfdoctor.capture.control_client import find_sockets, record_window  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.attached_recorder import AttachedRecorder  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.control_socket import SOCKET_NAME, ControlSocket  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import RecorderSettings  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks  # noqa: E402
from perfdoctor.errors import CaptureError  # noqa: E402

SIZES: Any = {"skip": 1, "base": 2, "warmup": 1, "timing": 3, "evidence": 2}


def train(steps: int, before_step: Callable[[int], None] = lambda _: None) -> list[float]:
    """A loop of so many steps; returns its weights."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(steps * 2, 8)), batch_size=2)):
        before_step(number)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.weight.flatten().tolist()


def patched() -> list[Any]:
    """What the recorder replaces, as it is now."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    return [iterator.__next__, torch.Tensor.backward, torch.optim.Optimizer.zero_grad, DataLoader.__init__]


def test_it_comes_into_a_loop_records_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plain, before = train(30), patched()
    ended: list[AttachedRecorder] = []
    recorder = AttachedRecorder(RecorderSettings(folder=str(tmp_path), **SIZES), ended.append)
    weights = train(30, lambda number: recorder.attach() if number == 5 else None)
    assert ended == [recorder]
    assert recorder.finished
    assert patched() == before
    assert weights == plain
    facts = json.loads((tmp_path / "rank0" / "facts.json").read_text())
    assert facts["exit"] == "detached"
    assert facts["windows"]["timing"]["steps"] == 3
    assert facts["windows"]["evidence"]["steps"] in (1, 2), "on a busy machine one step with stacks is enough"
    assert facts["optimizers"], "an optimizer that was there before is found"


def test_a_loop_that_ends_first_leaves_what_it_has(tmp_path: Path) -> None:
    before = patched()
    recorder = AttachedRecorder(RecorderSettings(folder=str(tmp_path), **SIZES))
    train(12, lambda number: recorder.attach() if number == 4 else None)
    assert not recorder.finished
    recorder.finish("exit")
    recorder.finish("exit")
    assert patched() == before
    assert json.loads((tmp_path / "rank0" / "facts.json").read_text())["exit"] == "exit"


def test_a_folder_that_cannot_be_written_leaves_the_program_alone(tmp_path: Path, capsys: Any) -> None:
    plain, before = train(20), patched()
    recorder = AttachedRecorder(RecorderSettings(folder=str(tmp_path / "missing"), **SIZES))
    assert train(20, lambda number: recorder.attach() if number == 2 else None) == plain
    assert patched() == before
    assert "cannot write" in capsys.readouterr().err


def test_a_torch_unlike_those_known_is_left_alone(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    before = patched()
    monkeypatch.setattr(Hooks, "_wrap_profile_hook_step", None)
    recorder = AttachedRecorder(RecorderSettings(folder=str(tmp_path), **SIZES))
    recorder.attach()
    assert recorder.finished
    assert patched() == before
    assert "the program runs on" in capsys.readouterr().err


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder as `perfdoctor run --watch` installs it."""
    settings = RecorderSettings(folder=str(tmp_path), watch=True, **SIZES)
    recorder = Recorder(settings)
    recorder.control = ControlSocket(settings, AttachedRecorder)
    hooks = Hooks(recorder)
    hooks.install()
    yield recorder
    recorder.finish("test")
    hooks.remove()


class Asking(threading.Thread):
    """Somebody who asks for a window beside the loop, from one of its steps on."""

    def __init__(self, capture: Path, **sizes: int) -> None:
        super().__init__(daemon=True)
        self.capture, self.sizes = capture, {"base": 2, "timing": 3, "evidence": 2, **sizes}
        self.result: Any = None

    def run(self) -> None:
        self.result = record_window(self.capture, timeout_s=60, **self.sizes)  # type: ignore[arg-type]


def train_while_asked(asking: Asking, *, until_recorded: bool = True) -> list[float]:
    """A loop that somebody asks for a window after 15 steps, and that waits for the question to come."""

    def before_step(number: int) -> None:
        if number == 15:
            asking.start()
        if 15 <= number < 20 and until_recorded:
            asking.join(0.05)

    return train(60, before_step)


@pytest.mark.process
def test_a_window_that_was_asked_for_is_a_capture_of_its_own(tmp_path: Path, watched: Recorder) -> None:
    asking = Asking(tmp_path)
    weights = train_while_asked(asking)
    asking.join(60)
    assert asking.result.ranks == (0,)
    assert asking.result.folder == tmp_path / "window-1"
    names = {path.name for path in (tmp_path / "window-1" / "rank0").iterdir()}
    assert names == {"facts.json", "steps.jsonl", "timing.json.gz", "evidence.json.gz", "calls.json"}
    rows = [json.loads(line) for line in (tmp_path / "rank0" / "steps.jsonl").read_text().splitlines()]
    windows = [row["window"] for row in rows]
    assert windows.count("requested") >= 8
    assert windows[-1] == "after"
    watched.finish("test")
    facts = json.loads((tmp_path / "rank0" / "facts.json").read_text())
    assert facts["windows"]["timing"]["steps"] == 3, "the windows of the run stay"
    assert not facts["run"]["unrecorded"], "our own profiler is not called the program's"
    assert weights == train(60)


@pytest.mark.process
def test_each_window_has_a_number_of_its_own(tmp_path: Path, watched: Recorder) -> None:
    first, second = Asking(tmp_path), Asking(tmp_path, evidence=0)

    def before_step(number: int) -> None:
        for asking, start in ((first, 15), (second, 45)):
            if number == start:
                asking.start()
            if start <= number < start + 5:
                asking.join(0.05)

    train(100, before_step)
    first.join(60)
    second.join(60)
    assert [first.result.folder.name, second.result.folder.name] == ["window-1", "window-2"]
    assert not (tmp_path / "window-2" / "rank0" / "evidence.json.gz").exists()
    assert watched.step >= 99


@pytest.mark.process
def test_a_program_that_ends_says_so_to_who_waits(tmp_path: Path, watched: Recorder) -> None:
    asking = Asking(tmp_path, timing=1000)
    train_while_asked(asking)
    watched.finish("exit")
    asking.join(60)
    assert asking.result.ranks == (0,), "what was recorded until then is there"
    other = Asking(tmp_path)
    with pytest.raises(CaptureError, match="its program has ended"):
        other.run()


@pytest.mark.process
def test_the_socket_is_the_users_alone_and_goes_with_the_recorder(tmp_path: Path, watched: Recorder) -> None:
    train(4)
    path = tmp_path / "rank0" / SOCKET_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.is_socket()
    watched.finish("test")
    assert not path.exists()


NO_REQUESTS = (
    b"",
    b"\n",
    b"not json\n",
    b"[]\n",
    b'{"command": "record"}\n',
    b'{"command": "record", "from_step": 0, "folder": "../../x", "base": 1, "timing": 1, "evidence": 1}\n',
    b'{"command": "record", "from_step": 0, "folder": "window-1", "base": -1, "timing": 1, "evidence": 1}\n',
    b'{"command": "record", "from_step": 0, "folder": "window-1", "base": 1, "timing": 1e9, "evidence": 1}\n',
    b'{"command": "record", "from_step": {}, "folder": "window-1", "base": 1, "timing": 1, "evidence": 1}\n',
    b"x" * 100_000,
)


@pytest.mark.process
def test_what_is_no_request_disturbs_nothing(tmp_path: Path, watched: Recorder) -> None:
    train(4)
    for text in NO_REQUESTS:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(tmp_path / "rank0" / SOCKET_NAME))
            connection.settimeout(10)
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
    asking = Asking(tmp_path)
    train_while_asked(asking)
    asking.join(60)
    assert asking.result.ranks == (0,)
    assert watched.step >= 60


@pytest.mark.process
def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    (folder / "rank0").mkdir(parents=True)
    control = ControlSocket(RecorderSettings(folder=str(folder), **SIZES), AttachedRecorder)
    control.open(str(folder / "rank0"))
    try:
        assert find_sockets(folder, None) == {0: folder / "rank0"}
        asking = Asking(folder)
        asking.start()
        for step in range(1000):
            control.end_step(step)
            asking.join(0.01)
            if control.is_recording:
                break
        assert control.is_recording
    finally:
        control.close("test")
    asking.join(60)
    assert not asking.result.ranks
    assert "ended" in asking.result.why_not[0]


def test_a_folder_without_a_socket_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is no capture folder"):
        record_window(tmp_path, base=1, timing=1, evidence=1)
    (tmp_path / "rank0").mkdir()
    with pytest.raises(CaptureError, match=r"rank 0 of .* can be asked for no window"):
        record_window(tmp_path, base=1, timing=1, evidence=1)
    assert os.listdir(tmp_path) == ["rank0"]
