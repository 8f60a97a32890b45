"""The command line as a process of its own: what it changes in the process, and what it leaves alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from perfdoctor.cli.main import main

pytestmark = pytest.mark.process

SAY = "import atexit, gc, os; atexit.register(lambda: print(gc.get_freeze_count() > 0, os.environ.get('{name}')))"


def ended(name: str, *arguments: str) -> list[str]:
    """What a process of the command line says of itself at its end: whether its garbage stays, and a variable."""
    code = SAY.format(name=name) + "; from perfdoctor.cli.main import main; raise SystemExit(main())"
    environment = {key: value for key, value in os.environ.items() if key != name}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()[-2:]


def test_a_process_of_ours_collects_no_garbage_at_its_end():
    assert ended("NOTHING", "--version") == ["True", "None"]


def test_main_leaves_the_settings_of_its_callers_process_alone(capsys):
    before = gc.get_threshold(), gc.get_freeze_count()
    assert main(["--version"]) == 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
    assert capsys.readouterr().out.startswith("perfdoctor ")


def test_analyzing_starts_no_threads_for_matrices(stalled):
    assert ended("OPENBLAS_NUM_THREADS", "analyze", "-q", str(stalled))[1] == "1"


def test_a_program_that_is_run_may_start_them(tmp_path):
    (tmp_path / "say.py").write_text("import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))")
    out = ("--no-report", "--out", str(tmp_path / "out"))
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", "perfdoctor", "run", *out, str(tmp_path / "say.py")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert "None" in done.stdout.split()


def run_after(shell: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code of the command line after something else in its shell, and what it says on stderr."""
    command = ["/bin/sh", "-c", f'{shell} exec "$@"', "sh", sys.executable, "-m", "perfdoctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has such a device")
def test_a_full_disk_is_one_sentence(stalled):
    code, lines = run_after("exec >/dev/full;", "analyze", "-q", str(stalled))
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("perfdoctor: standard output cannot be written (")


def test_output_that_was_closed_leads_nowhere(stalled, tmp_path):
    assert run_after("exec >&-;", "analyze", "-q", str(stalled)) == (0, [])
    assert run_after("exec 2>&-;", "analyze", str(tmp_path / "gone.json")) == (2, [])
    assert run_after("exec <&- >&- 2>&-;", "analyze", str(stalled)) == (0, [])


def test_too_little_memory_is_one_sentence(monkeypatch, capsys):
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("perfdoctor.api.analyze_traces", greedy)
    assert main(["analyze", "x.json"]) == 2
    assert capsys.readouterr().err.startswith("perfdoctor: there is not enough memory for this; ")


def test_names_that_no_system_takes_are_one_sentence(capsys):
    for name in ("x" * 5000, "1" * 5000):
        assert main(["analyze", name]) == 2
        assert capsys.readouterr().err.count("\n") == 1
