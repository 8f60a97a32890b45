"""The command line under a simulated macOS and a simulated Windows: `simulated/sitecustomize.py` says what that means.

Every process runs with the encoding of a Western European Windows console, and an opened text file without an encoding
is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

SIMULATED = Path(__file__).parent / "simulated"
SAMPLES = Path(__file__).parents[2] / "sample_traces"
PLATFORMS = ("darwin", "win32")
DRIVER = """
import json, sys
from perfdoctor.cli.main import main
codes = {" ".join(argv): main(argv) for argv in json.loads(sys.argv[1])}
with open("codes.json", "w", encoding="utf-8") as file:
    json.dump([sys.platform, codes], file)
"""
TRACE, OTHER, CPU = (f"{name}.json.gz" for name in ("dataloader-stall", "launch-bound", "cpu-training"))
COMMANDS = (
    ("analyze", TRACE, *("-o", "r.html", "-o", "r.json", "-o", "r.md", "-o", "r.sarif", "-o", "r.xml")),
    ("analyze", "--jobs", "2", "-o", "ranks.json", "straggler"),
    ("analyze", "-q", TRACE, "--baseline", "base.json", "--update-baseline"),
    ("analyze", "-q", TRACE, "--baseline", "base.json"),
    ("show", "kernels", OTHER),
    ("guide", CPU),
    ("export", OTHER, "-o", "annotated.json.gz"),
    ("compare", TRACE, OTHER),
    ("rules",),
    ("explain", "PD101"),
    ("analyze", "missing.json"),
    ("analyze", "missing/*.json"),
    ("analyze", r"C:\missing\rank0.json"),
    ("run", "ends_with_7.py"),
)
EXIT_CODES = {"analyze missing": 2, r"analyze C:\missing": 2, "run": 7}


def run_commands(
    folder: Path, platform: str | None, commands: tuple[tuple[str, ...], ...] = COMMANDS
) -> tuple[str, str]:
    """What some commands print in one process on a platform, None for this one, as text of code page 1252."""
    dropped = ("PERFDOCTOR", "PYTHON", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment |= {"PYTHONIOENCODING": "cp1252", "PYTHONWARNDEFAULTENCODING": "1", "OMP_NUM_THREADS": "1"}
    if platform is not None:
        environment |= {"PYTHONPATH": str(SIMULATED), "PERFDOCTOR_SIMULATED_PLATFORM": platform}
    done = subprocess.run(
        [sys.executable, "-W", "error:::perfdoctor", "-c", DRIVER, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=900,
    )
    out, err = done.stdout.decode("cp1252"), done.stderr.decode("cp1252")
    assert done.returncode == 0, err
    assert "our fault" not in err
    return out, err


def make_inputs(folder: Path) -> Path:
    """A folder with samples and a program, as a user would have it."""
    folder.mkdir()
    (folder / "straggler").mkdir()
    for name in (TRACE, OTHER, CPU, "straggler/rank0.json.gz", "straggler/rank1.json.gz"):
        (folder / name).write_bytes((SAMPLES / name).read_bytes())
    (folder / "ends_with_7.py").write_text("raise SystemExit(7)", encoding="utf-8")
    return folder


def exit_codes(folder: Path) -> tuple[str, dict[str, int]]:
    platform, codes = json.loads((folder / "codes.json").read_text(encoding="utf-8"))
    return platform, codes


def content_of(path: Path) -> Any:
    """A report without the seconds that rules took."""
    report = json.loads(path.read_text(encoding="utf-8"))
    for outcome in report["outcomes"]:
        outcome["seconds"] = 0
    return report


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder after all commands on this machine, and what they print."""
    folder = make_inputs(tmp_path_factory.mktemp("linux") / "job")
    return folder, run_commands(folder, None)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_command_does_the_same_on(platform: str, linux: tuple[Path, str], tmp_path: Path) -> None:
    here, printed = linux
    folder = make_inputs(tmp_path / "job")
    out, err = run_commands(folder, platform)
    name, codes = exit_codes(folder)
    assert name == platform
    for command, code in codes.items():
        expected = next((value for start, value in EXIT_CODES.items() if command.startswith(start)), 0)
        assert code == expected, f"{command}\n{err}"
    assert out == printed
    assert {path.name for path in folder.iterdir()} == {path.name for path in here.iterdir()}, "no unfinished file"
    for file in ("r.json", "ranks.json"):
        assert content_of(folder / file) == content_of(here / file)
    assert (folder / "r.md").read_bytes() == (here / "r.md").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_check_says_what_there_is_on(platform: str, tmp_path: Path) -> None:
    make_inputs(tmp_path / "job")
    out, _ = run_commands(tmp_path / "job", platform, (("check",),))
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if not line.startswith(" ")}
    assert rows["Python"] == "ok"
    assert rows["folder"] == "ok"
    assert "torch" in rows


PROGRAM = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")
def test_a_program_is_recorded_on_macos(tmp_path: Path) -> None:
    """Not on Windows: torch would look for its DLLs."""
    pytest.importorskip("torch")
    folder = make_inputs(tmp_path / "job")
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    _, err = run_commands(folder, "darwin", (("run", "--out", "capture", "train.py"),))
    assert exit_codes(folder)[1] == {"run --out capture train.py": 0}, err
    assert "recording is tested on Linux only; on macOS, facts about memory, CPU cores and waits are missing" in err
    facts = json.loads((folder / "capture" / "rank0" / "facts.json").read_text(encoding="utf-8"))
    assert facts["exit"] == "exit"
    assert facts["cores"]["others"] is None
    assert content_of(folder / "capture" / "report.json")["traces"][0]["complete"]
