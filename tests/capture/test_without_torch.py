"""What needs no torch: programs without it, and everything that stops a recording before it begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoctor.capture import process_group
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import WORK_FOLDER

PLAIN = 'import sys\nprint("hello", sys.argv[1:])\nsys.exit(4)\n'


def test_a_program_without_torch_runs_unchanged(launcher: Any) -> None:
    recorded = launcher.record(PLAIN, "a", "b")
    assert (recorded.exit_code, recorded.stdout, recorded.stderr) == (4, "hello ['a', 'b']\n", "")
    reason = "the program never imported torch" if find_spec("torch") else "the Python that runs perfdoctor ("
    assert recorded.notes.startswith(f"nothing was recorded: {reason}")
    assert not recorded.out.exists()


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_isolated_python_is_named(launcher: Any, flag: str) -> None:
    path = launcher.write(PLAIN, "isolated.py")
    recorded = launcher.run("--", sys.executable, flag, str(path))
    assert recorded.exit_code == 4
    assert f"python {flag} keeps perfdoctor out" in recorded.notes


def test_a_program_other_than_python(launcher: Any) -> None:
    recorded = launcher.run("--", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (recorded.exit_code, recorded.stdout, recorded.stderr) == (9, "out\n", "err\n")
    assert "no Python of the program loaded perfdoctor" in recorded.notes


def test_a_perfdoctor_in_the_program_is_named(launcher: Any, capture_kit: dict[str, Any]) -> None:
    inner = json.dumps({"out": str(launcher.folder / "inner")})
    command = [sys.executable, "-c", capture_kit["DRIVER"], str(launcher.folder / "answer"), inner, "--", "true"]
    recorded = launcher.run("--", *command)
    assert recorded.exit_code == 0
    assert recorded.notes == "nothing was recorded here: the program runs perfdoctor itself, which has its own folder."


DAEMON = """
import os, sys, time
if os.fork():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(60)
"""


def test_a_program_that_goes_on_in_the_background_is_said_to(launcher: Any, tmp_path: Path) -> None:
    recorded = launcher.record(DAEMON, str(tmp_path / "pid"), is_forked=False)  # /proc tells what it was started with
    assert recorded.exit_code == 0
    assert "the program has ended, and 1 of its processes run on in the background" in recorded.notes
    os.kill(int((tmp_path / "pid").read_text()), 9)  # still there: it is not ours to end


def test_death_by_signal_is_128_and_the_signal(launcher: Any) -> None:
    assert launcher.run("--", "sh", "-c", "kill -KILL $$").exit_code == 137


def test_disabled_means_that_nothing_is_recorded(launcher: Any) -> None:
    source = 'import os\nprint([name for name in os.environ if "PERFDOCTOR_CAPTURE" in name])\n'
    recorded = launcher.record(source, env={"PERFDOCTOR_DISABLE": "1"})
    assert (recorded.exit_code, recorded.stdout) == (0, "[]\n")
    assert recorded.result["folder"] is None
    assert "PERFDOCTOR_DISABLE is set" in recorded.notes
    assert not recorded.out.exists()


def test_a_missing_program_is_one_sentence(launcher: Any) -> None:
    recorded = launcher.run("--", "no-such-program-anywhere")
    assert recorded.exit_code == 2
    assert recorded.result["error"] == "CaptureError"
    assert recorded.result["message"].startswith("no-such-program-anywhere cannot be started")
    assert not recorded.out.exists()


def test_an_unwritable_folder_is_refused_before_anything_runs(launcher: Any) -> None:
    blocker = launcher.folder / "file"
    blocker.write_text("")
    recorded = launcher.record('print("ran")', out=blocker / "inside")
    assert recorded.exit_code == 2
    assert recorded.stdout == ""
    assert "cannot be written" in recorded.result["message"]
    assert "--out" in recorded.result["message"]


def test_force_replaces_a_capture_and_leaves_the_rest(launcher: Any) -> None:
    out = launcher.folder / "replaced"
    (out / "rank3").mkdir(parents=True)
    (out / "report.json").write_text("{}")
    (out / "mine.txt").write_text("mine")
    assert launcher.record(PLAIN, out=out).exit_code == 2
    (out / "window-1" / "rank0").mkdir(parents=True)
    (out / WORK_FOLDER).mkdir()
    assert launcher.record(PLAIN, out=out, force=True).exit_code == 4
    assert not (out / "window-1").exists()
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.process
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({!r}, 'w').close(); time.sleep(60)"
    )
    parent = (
        "import sys; from perfdoctor.capture.child_process import run_program;"
        f"sys.exit(run_program([sys.executable, '-c', {child.format(str(ready))!r}], None, grace_s=0.3))"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    while not ready.exists() and process.poll() is None:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=300) == 137


@pytest.mark.process
def test_importing_the_session_loads_no_torch() -> None:
    code = "import sys, perfdoctor.capture.session, perfdoctor.capture.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.process
def test_a_session_without_torch_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from perfdoctor.capture.session import profile\n"
        "from perfdoctor.errors import CaptureError\n"
        "try:\n    profile().__enter__()\n"
        "except CaptureError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("Recording needs PyTorch in this Python")
    assert f"{sys.executable} -m pip install torch" in done.stdout


def test_a_python_without_torch_names_the_one_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfdoctor.capture import capture_notes, missing_torch
    from perfdoctor.capture.capture_options import CaptureOptions

    def explain(command: list[str]) -> str:
        return capture_notes.explain_empty_capture(command, CaptureOptions(), frozenset({"python"}))

    def find_all_but_torch(name: str) -> Any:
        return None if name == "torch" else object()

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(missing_torch, "find_spec", find_all_but_torch)
    here = [sys.executable, "train.py", "--epochs", "1"]
    assert explain(here) == (
        f"nothing was recorded: the Python that runs perfdoctor ({sys.executable}) has no torch: run the program in "
        "the Python that has it, perfdoctor run -- /path/to/python train.py --epochs 1; or install it: "
        f"{sys.executable} -m pip install torch."
    )
    package = tmp_path / "env" / "lib" / "python3.10" / "site-packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    python = tmp_path / "env" / "bin" / "python"
    assert f"which has it, perfdoctor run -- {python} train.py --epochs 1" in explain(here)
    nowhere = "nothing was recorded: the program never imported torch, or only in a Python that keeps perfdoctor out"
    assert explain(["/other/python", "train.py"]) == f"{nowhere} (-I, -E, -S)."
    monkeypatch.setattr(missing_torch, "find_spec", lambda name: object() if name == "torch" else None)
    assert explain(here) == f"{nowhere} (-I, -E, -S)."


def test_what_is_injected_is_python_3_9() -> None:
    """The program's Python may be older than perfdoctor's, as under `perfdoctor run -- other/python train.py`."""
    import ast

    from perfdoctor.capture.child_process import INJECT_FOLDER

    files = sorted(INJECT_FOLDER.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))


def test_a_program_in_another_python_is_recorded(launcher: Any, tmp_path: Path) -> None:
    """An environment of its own, that has torch and no perfdoctor."""
    torch = pytest.importorskip("torch")
    import venv

    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "other" / "lib" / version / "site-packages"
    # What torch needs lies beside it; perfdoctor is hidden, which may lie there as well.
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    (packages / "sitecustomize.py").write_text(
        "import sys\nclass Hide:\n    def find_spec(self, name, *_):\n        if name == 'perfdoctor':\n"
        "            raise ModuleNotFoundError(name)\nsys.meta_path.insert(0, Hide())\n"
    )
    script = launcher.write(
        """
        import sys, torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.utils.data.DataLoader(torch.ones(14, 4)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        try:
            import perfdoctor
        except ModuleNotFoundError:
            print(sys.prefix)
        """,
        "other_python.py",
    )
    recorded = launcher.run("--", str(python), str(script))
    assert (recorded.exit_code, recorded.stdout) == (0, f"{tmp_path / 'other'}\n"), recorded.stderr
    assert recorded.facts()["windows"]["timing"]["complete"]


@pytest.mark.process
def test_a_program_that_ctrl_c_meets_as_it_starts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def interrupted(*args: Any, **options: Any) -> Any:
        started.append(subprocess.Popen(*args, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(process_group, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": interrupted}))
    environment = {**os.environ, "PERFDOCTOR_CAPTURE_MARKS": str(tmp_path)}
    with open(os.devnull, "wb") as nowhere, pytest.raises(KeyboardInterrupt):
        process_group.run_with_limit(["sleep", "60"], environment, 50, nowhere, nowhere, "PERFDOCTOR_CAPTURE_MARKS")
    assert started[0].wait(timeout=20) == -9
