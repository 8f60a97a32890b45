"""Windows of programs that run: `perfdoctor record` and `perfdoctor attach`, on programs that were started for real."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from perfdoctor.capture import attach_process
from perfdoctor.capture.attach_process import attach, check_process, choose_way
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject.control_socket import SOCKET_NAME
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import WORK_FOLDER
from perfdoctor.errors import CaptureError

LIMIT_S = 240
WINDOWS = CaptureOptions(skip=1, base=2, warmup=1, timing=3, evidence=1)

# Trains until the file `enough` is there, and then makes the same number of steps whatever has happened before.
LOOP = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader
folder = Path(sys.argv[1])
{begin}
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(4, 8, generator=generator)
class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        return batches()
for number, x in enumerate(DataLoader(Batches(), batch_size=None)):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    {reduce}
    optimizer.step()
    time.sleep(0.005)
    if number == 30:
        (folder / "trains").touch()
        checksum = None
    if number == 400:
        checksum = sum(each.double().sum().item() for each in model.parameters()).hex()
    if number >= 400 and (folder / "enough").exists():
        break
(folder / f"checksum{{rank}}").write_text(checksum)
print("done")
"""
PLAIN = LOOP.format(begin='rank = ""', reduce="")
RANKS = LOOP.format(
    begin="""import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()""",
    reduce="[dist.all_reduce(each.grad) for each in model.parameters()]",
)

LIGHTNING = """
import sys, time, warnings, logging
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader
from lightning.pytorch import Callback, LightningModule, Trainer
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
folder = Path(sys.argv[1])
class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        while True:
            yield torch.randn(4, 8, generator=generator)
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def training_step(self, x, number):
        time.sleep(0.005)
        return self.layer(x).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
class End(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if number == 30:
            (folder / "trains").touch()
        trainer.should_stop = number >= 60 and (folder / "enough").exists()
trainer = Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[End()], default_root_dir=sys.argv[1],
)
trainer.fit(Net(), DataLoader(Batches(), batch_size=None))
"""

pytestmark = pytest.mark.process


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
    assert done()


@contextlib.contextmanager
def started(folder: Path, source: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program, which ends once the test has what it wants."""
    script = folder / "program.py"
    script.write_text(source)
    for name in ("trains", "enough"):
        (folder / name).unlink(missing_ok=True)
    with (folder / "output").open("wb") as output:
        arguments = [*(command or (sys.executable,)), str(script), str(folder)]
        child = subprocess.Popen(arguments, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until((folder / "trains").exists)
            yield child
            (folder / "enough").touch()
            assert child.wait(LIMIT_S) == 0, (folder / "output").read_text()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


@pytest.fixture(scope="module")
def checksum(tmp_path_factory: pytest.TempPathFactory, as_forks: Any) -> str:
    """The weights after 400 steps of the program by itself."""
    folder = tmp_path_factory.mktemp("plain")
    with as_forks(), started(folder, PLAIN):
        pass
    return (folder / "checksum").read_text()


def perfdoctor(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfdoctor", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def watched_run(*more: str) -> tuple[str, ...]:
    sizes = ("--skip", "1", "--base", "2", "--warmup", "1", "--timing", "2", "--evidence", "1")
    return (sys.executable, "-m", "perfdoctor", "run", "--watch", "--no-report", "--out", "capture", *sizes, *more)


RECORD = ("record", "capture", "--base", "2", "--timing", "3", "--evidence", "1")


@pytest.mark.usefixtures("forks")
def test_a_window_of_a_plain_loop(tmp_path: Path, checksum: str) -> None:
    with started(tmp_path, PLAIN, *watched_run()):
        wait_until(lambda: (tmp_path / "capture" / "rank0" / SOCKET_NAME).exists())
        done = perfdoctor(*RECORD, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["steps"]["count"] == 3
        steps = tmp_path / "capture" / "rank0" / "steps.jsonl"
        before = steps.read_text().count('"requested"')
        # Killed while it waits: the program does not notice, and finishes the window alone.
        asking = subprocess.Popen([sys.executable, "-m", "perfdoctor", *RECORD], cwd=tmp_path)
        wait_until(lambda: steps.read_text().count('"requested"') > before)
        asking.kill()
        asking.wait()
        wait_until((tmp_path / "capture" / "window-2" / "rank0" / "evidence.json.gz").exists)
    assert (tmp_path / "checksum").read_text() == checksum
    assert not (tmp_path / "capture" / "rank0" / SOCKET_NAME).exists()


@pytest.mark.usefixtures("forks")
def test_a_window_of_a_trainer(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    with started(tmp_path, LIGHTNING, *watched_run()):
        wait_until((tmp_path / "capture" / "rank0" / SOCKET_NAME).exists)
        watching = perfdoctor("watch", "capture", "--once", "--json", cwd=tmp_path)
        assert json.loads(watching.stdout)["ranks"][0]["state"] in ("running", "recording"), watching.stderr
        done = perfdoctor(*RECORD, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["steps"]["count"] == 3


@pytest.mark.usefixtures("forks")
def test_a_window_of_all_ranks_begins_at_one_step(tmp_path: Path) -> None:
    launch = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    with started(tmp_path, RANKS, *watched_run(*launch)):
        for rank in (0, 1):
            wait_until((tmp_path / "capture" / f"rank{rank}" / SOCKET_NAME).exists)
        done = perfdoctor(*RECORD, "--no-report", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        one = perfdoctor(*RECORD, "--no-report", "--ranks", "1", cwd=tmp_path)
        assert one.returncode == 0, one.stderr
    first = []
    for rank in (0, 1):
        lines = (tmp_path / "capture" / f"rank{rank}" / "steps.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        first.append(next(row["step"] for row in rows if row["window"] == "requested"))
        assert (tmp_path / "capture" / "window-1" / f"rank{rank}" / "timing.json.gz").exists()
    assert first[0] == first[1]
    assert {path.name for path in (tmp_path / "capture" / "window-2").iterdir()} == {"rank1", WORK_FOLDER}
    assert (tmp_path / "checksum0").read_text() == (tmp_path / "checksum1").read_text()


@pytest.mark.usefixtures("forks")
def test_a_killed_program_is_told_to_who_waits(tmp_path: Path) -> None:
    with contextlib.suppress(AssertionError), started(tmp_path, PLAIN, *watched_run()) as child:
        wait_until(lambda: (tmp_path / "capture" / "rank0" / SOCKET_NAME).exists())
        pid = json.loads((tmp_path / "capture" / "rank0" / "facts.json").read_text())["pid"]
        command = [sys.executable, "-m", "perfdoctor", *RECORD, "--timing", "10000"]
        asking = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        wait_until((tmp_path / "capture" / "window-1").exists)
        os.kill(pid, signal.SIGKILL)
        assert "ended" in asking.communicate(timeout=LIMIT_S)[1]
        assert asking.returncode == 2
        assert child.wait(LIMIT_S) == 128 + signal.SIGKILL
    done = perfdoctor(*RECORD, cwd=tmp_path)
    assert done.returncode == 2
    assert "its program has ended" in done.stderr


needs_gdb = pytest.mark.skipif(
    shutil.which("gdb") is None or not sys.platform.startswith("linux") or sys.version_info >= (3, 14),
    reason="needs gdb, and a Python before 3.14",
)


def gdb_may_look(pid: int) -> bool:
    done = subprocess.run(
        ["gdb", "--batch", "-nx", "-iex", "set auto-solib-add off", "--pid", str(pid)], capture_output=True
    )
    return b"not permitted" not in done.stderr


def skip_where_gdb_is_too_old(stderr: str) -> None:
    """gdb 13 cannot write the registers of a program that may use AMX, which torch asks for where the CPU has it."""
    if "gdb cannot write the registers" in stderr:
        pytest.skip("this gdb cannot write the registers of this CPU")


@needs_gdb
def test_a_program_that_nobody_prepared_is_recorded_and_left(tmp_path: Path, checksum: str) -> None:
    with started(tmp_path, PLAIN) as child:
        if not gdb_may_look(child.pid):
            pytest.skip("this system lets no debugger into a process")
        done = perfdoctor("attach", str(child.pid), "--gdb", "--out", "first", *RECORD[2:], "--no-report", cwd=tmp_path)
        skip_where_gdb_is_too_old(done.stderr)
        assert done.returncode == 0, done.stderr
        assert "runs on without the recorder" in done.stderr
        again = tmp_path / "again"
        again.mkdir()
        assert attach(child.pid, WINDOWS, again, timeout_s=LIMIT_S, uses_gdb=True) == (0,)
    assert (tmp_path / "checksum").read_text() == checksum
    assert (tmp_path / "output").read_text() == "done\n", "nothing of ours is printed by the program"
    for folder in (tmp_path / "first", again):
        facts = json.loads((folder / "rank0" / "facts.json").read_text())
        assert facts["exit"] == "detached"
        assert facts["windows"]["timing"]["steps"] == 3
        assert {path.name for path in folder.iterdir()} == {"rank0"}


@needs_gdb
def test_a_program_without_steps_is_left_after_the_time(tmp_path: Path) -> None:
    source = PLAIN.replace("    time.sleep(0.005)\n", "    time.sleep(3 if number > 30 else 0)\n").replace("400", "31")
    with started(tmp_path, source) as child:
        if not gdb_may_look(child.pid):
            pytest.skip("this system lets no debugger into a process")
        done = perfdoctor("attach", str(child.pid), "--gdb", "--timeout", "1", cwd=tmp_path)
        skip_where_gdb_is_too_old(done.stderr)
        assert done.returncode == 2
        assert "was not recorded in 1 s" in done.stderr
        assert not list(tmp_path.glob("perfdoctor-*"))


@pytest.mark.usefixtures("forks")
def test_an_old_python_says_what_can_be_had(tmp_path: Path) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python lets a recorder in")
    why = pytest.raises(CaptureError, match=r"before 3.14 let nothing in: --gdb .* py-spy dump .* run --watch")
    with started(tmp_path, PLAIN) as child, why:
        choose_way(child.pid, uses_gdb=False)


def test_what_is_no_training_program_is_one_sentence(monkeypatch: Any) -> None:
    waiting = [["sleep", "60"], [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]]
    for command, what in zip(waiting, ("is no Python", "has not loaded torch"), strict=True):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            try:
                if child.stdout and command[0] == sys.executable:
                    child.stdout.readline()
                with pytest.raises(CaptureError, match=what):
                    check_process(child.pid)
                monkeypatch.setattr(os, "geteuid", lambda: 12345)
                with pytest.raises(CaptureError, match="is another user's"):
                    check_process(child.pid)
                monkeypatch.undo()
            finally:
                child.kill()
    with pytest.raises(CaptureError, match="There is no process"):
        check_process(child.pid)


@pytest.mark.usefixtures("forks")
def test_the_entry_of_python_3_14_in_this_process(tmp_path: Path, monkeypatch: Any) -> None:
    """`sys.remote_exec` is to be had on Python 3.14 only: here the script that it would run is run in a child."""
    sent: list[str] = []
    monkeypatch.setattr(sys, "remote_exec", lambda _pid, path: sent.append(path), raising=False)
    folder = tmp_path / "capture"
    folder.mkdir()
    call = f"attach({WINDOWS.to_json(folder)!r})"
    code = attach_process.SCRIPT.format(sitecustomize=attach_process.sitecustomize(), call=call)
    attach_process.run_by_remote_exec(1, code)
    source = PLAIN.replace(
        "    if number == 30:\n", f"    if number == 30:\n        exec(open({sent[0]!r}).read(), {{}})\n"
    )
    with started(tmp_path, source) as child:
        attach_process.wait_for_answer(child.pid, folder)
        attach_process.wait_for_windows(child.pid, folder, LIMIT_S)
        assert attach_process.is_complete(folder)
    assert not Path(sent[0]).exists(), "the script removes itself"
