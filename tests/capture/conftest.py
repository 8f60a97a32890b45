"""Helpers that start programs: write a script, record it by `launch.run` in a child, and read the capture."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fork_server import ForkServer, clean_environment

# Small windows: 11 steps fill them, and a start of torch costs seconds already.
WINDOWS = {"skip": 2, "base": 2, "warmup": 1, "timing": 3, "evidence": 2}
NEEDED = 11
# What hangs is ended then; a machine with ten programs on two cores needs minutes for what takes seconds.
LIMIT_S = 600

DRIVER = """
import json, sys
from pathlib import Path
from perfdoctor.capture.launch import parse_target, run
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.errors import PerfdoctorError
result, options, argv = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
options["out"] = Path(options["out"])
if options.get("ranks"):
    options["ranks"] = tuple(options["ranks"])
try:
    done = run(parse_target(argv), CaptureOptions(**options))
except PerfdoctorError as error:
    result.write_text(json.dumps({"error": type(error).__name__, "message": str(error)}))
    sys.exit(error.exit_code)
result.write_text(json.dumps({"exit_code": done.exit_code, "folder": done.folder and str(done.folder),
                              "ranks": done.ranks, "notes": done.notes}))
sys.exit(done.exit_code)
"""

LIGHT_DYNAMO = Path(__file__).with_name("light_dynamo.py").read_text(encoding="utf-8")

# `leave_group`: a thread of gloo drops its last work after the rank has its result, and the work holds Python objects.
# Where that meets the end of the interpreter, torch 2.13 aborts ("terminate called without an active exception"):
# 5 of 34 jobs of two ranks on a busy machine, without perfdoctor; 0 of 42 with half a second in between.
PRELUDE = (
    """
import os, signal, sys, time
import torch
"""
    + LIGHT_DYNAMO
    + """
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
STEPS = 14
data = TensorDataset(torch.randn(STEPS * 4, 8), torch.randint(2, (STEPS * 4,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
def train_step(batch, optimizer):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
def leave_group():
    torch.distributed.destroy_process_group()
    time.sleep(0.5)
"""
)

TRAIN = (
    PRELUDE
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
for number, batch in enumerate(loader):
    loss = train_step(batch, optimizer)
"""
)


def check_facts(facts: Any) -> None:
    """Validate facts against the schema: nothing missing, nothing beside the allow-list."""
    jsonschema.validate(
        facts, json.loads(resources.files("perfdoctor.capture").joinpath("facts.schema.json").read_text())
    )


@dataclass
class Recorded:
    """The outcome of a recorded program: its output, and the files of its capture."""

    exit_code: int
    stdout: str
    stderr: str
    result: dict[str, Any]
    out: Path
    _traces: dict[tuple[int, str], Any] = field(default_factory=dict)

    @property
    def notes(self) -> str:
        return "\n".join(self.result.get("notes", ()))

    @property
    def ranks(self) -> list[int]:
        return self.result.get("ranks", [])

    def files(self, rank: int = 0) -> set[str]:
        return {path.name for path in (self.out / f"rank{rank}").iterdir()}

    def facts(self, rank: int = 0) -> dict[str, Any]:
        """facts.json, checked against its schema: whatever a test reads is also valid."""
        facts = json.loads((self.out / f"rank{rank}" / "facts.json").read_text())
        check_facts(facts)
        return facts

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        lines = (self.out / f"rank{rank}" / "steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def trace(self, name: str, rank: int = 0) -> dict[str, Any]:
        if (rank, name) not in self._traces:
            with gzip.open(self.out / f"rank{rank}" / f"{name}.json.gz") as file:
                self._traces[rank, name] = json.load(file)
        return self._traces[rank, name]

    def names(self, trace: str, rank: int = 0) -> list[str]:
        return [event["name"] for event in self.trace(trace, rank)["traceEvents"] if event.get("ph") == "X"]

    def annotated_steps(self, trace: str, rank: int = 0) -> list[int]:
        events = [e for e in self.trace(trace, rank)["traceEvents"] if e.get("cat") == "user_annotation"]
        return sorted(int(e["name"][13:]) for e in events if e["name"].startswith("ProfilerStep#"))


class Launcher:
    """Writes scripts into a folder and records them, in forks of a Python with torch where that is the same."""

    def __init__(self, folder: Path, server: ForkServer | None) -> None:
        self.folder = folder
        self._server = server
        self._count = 0

    def write(self, source: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return path

    def run_plain(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """The same command without perfdoctor."""
        return self._run(argv, clean_environment(), is_forked=True)

    def run(
        self,
        *argv: str,
        env: dict[str, str] | None = None,
        while_running: Callable[[subprocess.Popen[str]], None] | None = None,
        out: Path | None = None,
        is_forked: bool = True,
        **options: Any,
    ) -> Recorded:
        """Record a command.

        Args:
            argv: The command, as for `perfdoctor run`.
            env: Variables beside the ordinary ones; torch reads some when it is loaded, so that nothing is forked then.
            while_running: Called with the process of perfdoctor.
            out: The folder of the capture.
            is_forked: Whether a fork may run the program; not where the start of Python itself is tested.
            options: Of `CaptureOptions`.
        """
        self._count += 1
        out = out or self.folder / f"capture{self._count}"
        answer = self.folder / f"result{self._count}.json"
        wanted = json.dumps({**WINDOWS, **options, "out": str(out)})
        done = self._run(
            ("-c", DRIVER, str(answer), wanted, *argv),
            {**clean_environment(), **(env or {})},
            is_forked=is_forked and not env,
            while_running=while_running,
        )
        result = json.loads(answer.read_text()) if answer.exists() else {}
        return Recorded(done.returncode, done.stdout, done.stderr, result, out)

    def _run(
        self, argv: Sequence[str], environment: dict[str, str], *, is_forked: bool, while_running: Any = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *argv]
        popen = self._server.popen if self._server and is_forked else subprocess.Popen
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            files = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
            child = popen(command, env=environment, cwd=self.folder, **files)
            if while_running:
                while_running(child)
            code = child.wait(timeout=LIMIT_S)
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())

    def record(self, source: str, *args: str, **options: Any) -> Recorded:
        """Write a script and record it."""
        return self.run(str(self.write(source, f"program{self._count + 1}.py")), *args, **options)


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    """Wait until the program has written a file, because it has come to where the test wants it."""
    until = time.monotonic() + LIMIT_S
    while not path.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)


def signal_when_ready(
    ready: Path, number: signal.Signals, later_s: float = 0.0
) -> Callable[[subprocess.Popen[str]], None]:
    """A function that sends the parent a signal once the program has written the file, or some time later."""

    def interrupt(child: subprocess.Popen[str]) -> None:
        wait_for(ready, child)
        time.sleep(later_s)
        child.send_signal(number)

    return interrupt


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer | None) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("programs"), fork_server)


@pytest.fixture(scope="module")
def capture_kit() -> dict[str, Any]:
    """What tests share beside the launcher; test files are imported alone and cannot import this one."""
    return {
        "PRELUDE": PRELUDE,
        "TRAIN": TRAIN,
        # As its users have it: with the real torch._dynamo.
        "ORDINARY": TRAIN.replace(LIGHT_DYNAMO, "import torch._dynamo.utils\n"),
        "DRIVER": DRIVER,
        "NEEDED": NEEDED,
        "signal_when_ready": signal_when_ready,
        "environment": clean_environment,
        "check_facts": check_facts,
    }


@pytest.fixture
def free_port() -> str:
    """A free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts programs: all tests that ask for the launcher."""
    for item in items:
        if "launcher" in getattr(item, "fixturenames", ()):
            item.add_marker("process")
