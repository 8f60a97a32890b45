"""The bar that shows how far the reading is: on a terminal, after a second, and nowhere else."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from perfdoctor.api import FileProgress, analyze
from perfdoctor.cli import progress_bar as progress
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.testing import TraceBuilder


class Terminal(io.StringIO):
    """Text that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def at(done: int, total: int | None = 1000, name: str = "t.json", number: int = 1, files: int = 1) -> FileProgress:
    return FileProgress(name, number, files, done, total)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_what_takes_a_second_gets_a_bar_with_name_and_bytes(terminal: Terminal) -> None:
    clock = Clock()
    with open_progress_bar(stream=terminal, clock=clock) as show:
        assert show is not None
        show(at(100))
        assert terminal.getvalue() == ""
        clock.now += 1.0
        show(at(500, name="rank[red]1\x1b[31m.json"))
    seen = plain(terminal.getvalue())
    assert "reading rank[red]1.json" in seen
    assert "500/1,000 bytes" in seen or "0.5/1.0 kB" in seen
    # The last thing it does is to take itself away.
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")


def test_many_ranks_get_one_bar_that_counts_them(terminal: Terminal) -> None:
    clock = Clock()
    with open_progress_bar(stream=terminal, clock=clock) as show:
        assert show is not None
        clock.now += 2
        show(FileProgress("rank7.json", 8, 64, 500, 1000, finished=7.5))
    seen = plain(terminal.getvalue())
    assert "ranks, reading rank7.json" in seen
    assert "7/64" in seen


def test_what_takes_less_than_a_second_gets_none(terminal: Terminal) -> None:
    clock = Clock()
    with open_progress_bar(stream=terminal, clock=clock) as show:
        assert show is not None
        show(at(100))
        clock.now += 0.99
        show(at(1000))
    assert terminal.getvalue() == ""


def test_a_bar_appears_although_no_byte_comes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.01)
    came = threading.Event()
    monkeypatch.setattr(terminal, "flush", came.set)
    with open_progress_bar(stream=terminal, clock=Clock()) as show:
        assert show is not None
        show(at(0, total=None))
        assert came.wait(30)
    assert "reading" in plain(terminal.getvalue())


def test_a_bar_has_no_thread_before_reading_begins(terminal: Terminal) -> None:
    before = set(threading.enumerate())
    with open_progress_bar(stream=terminal) as show:  # worker processes start here, as copies
        assert show is not None
        assert not set(threading.enumerate()) - before  # threads of other tests may end meanwhile
        show(at(0, total=None))
        assert set(threading.enumerate()) - before


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_update_comes_before_the_first_byte(stalled, tmp_path, jobs: int) -> None:
    states: list[FileProgress] = []
    files = [shutil.copy(stalled, tmp_path / f"rank{rank}.json") for rank in range(2)]
    analyze(files, jobs=jobs, progress=states.append)
    assert (states[0].number, states[0].done_bytes, states[0].total_bytes) == (1, 0, None)


def test_no_bar_comes_for_what_is_read_or_over(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.01)
    before = set(threading.enumerate())
    with open_progress_bar(stream=terminal, clock=Clock()) as show:
        assert show is not None
        show(at(1000))
        for thread in set(threading.enumerate()) - before:
            thread.join(5)
    assert terminal.getvalue() == ""


def test_an_unknown_total_is_shown_as_unknown(terminal: Terminal) -> None:
    clock = Clock()
    with open_progress_bar(stream=terminal, clock=clock) as show:
        assert show is not None
        clock.now += 2
        show(at(500, total=None))
    assert "500/?" in plain(terminal.getvalue())


def test_a_long_name_is_cut_in_front(terminal: Terminal) -> None:
    clock = Clock()
    with open_progress_bar(stream=terminal, clock=clock) as show:
        assert show is not None
        clock.now += 2
        show(at(1, name="x" * 100 + "rank3.json"))
    assert "reading ..." in plain(terminal.getvalue())
    assert "xrank3.json" in plain(terminal.getvalue())


def test_nothing_is_shown_where_it_is_disabled_or_without_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_progress_bar(enabled=False, stream=terminal) as show:
        assert show is None
    with open_progress_bar(stream=io.StringIO()) as show:
        assert show is None
    monkeypatch.setenv("TERM", "dumb")
    with open_progress_bar(stream=terminal) as show:
        assert show is None


def test_the_bar_goes_away_when_reading_fails(terminal: Terminal) -> None:
    clock = Clock()

    def read() -> None:
        with open_progress_bar(stream=terminal, clock=clock) as show:
            assert show is not None
            clock.now += 2
            show(at(1))
            raise InterruptedError

    before = set(threading.enumerate())
    with pytest.raises(InterruptedError):
        read()
    for thread in set(threading.enumerate()) - before:  # rich tells its thread to stop and does not wait for it
        thread.join(5)
        assert not thread.is_alive()
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")


def test_analysis_reports_progress_for_each_file(tmp_path) -> None:
    paths = [TraceBuilder(rank=rank).step(0, 9).kernel("k", 1, 5).write(tmp_path / f"r{rank}.json") for rank in (0, 1)]
    states: list[FileProgress] = []
    analyze(paths, progress=states.append)
    last = {state.name: state for state in states}
    assert [(state.number, state.files) for state in last.values()] == [(1, 2), (2, 2)]
    for path in paths:
        assert last[path.name].done_bytes == last[path.name].total_bytes == path.stat().st_size


SMALL = TraceBuilder().step(0, 100).kernel("sgemm", 5, 90, launch_us=1).to_bytes()


class Slow(BaseHTTPRequestHandler):
    """Sends a small trace in two parts, a second and a half apart, and tells its length unless that is unknown."""

    def do_GET(self) -> None:
        """The trace."""
        text = SMALL.rjust(3 << 20)
        self.send_response(200)
        if "unknown" not in self.path:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: 2 << 20])
        time.sleep(1.5)
        self.wfile.write(text[2 << 20 :])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def on_a_terminal(*arguments: object, impatient: bool = False, stdin: Path | None = None) -> tuple[str, bytes]:
    """What the command writes to a terminal on stderr, and to a pipe on stdout; `impatient` bars do not wait."""
    leader, follower = os.openpty()
    program = ["-c", IMPATIENT] if impatient else ["-m", "perfdoctor"]
    command = [sys.executable, *program, *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    source = stdin.open("rb") if stdin else None
    with subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=follower, env=environment) as process:
        os.close(follower)
        text = b""
        try:
            while block := os.read(leader, 1 << 16):
                text += block
        except OSError:  # how a terminal of Linux ends
            pass
        stdout = process.stdout.read() if process.stdout else b""
    os.close(leader)
    if source:
        source.close()
    assert process.returncode == 0, text
    return text.decode(), stdout


IMPATIENT = """
import sys
from perfdoctor.cli import progress_bar as progress
from perfdoctor.cli import main
progress._DELAY_SECONDS = 0.0
sys.exit(main.main(sys.argv[1:]))
"""
needs_terminal = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")


@pytest.mark.process
@needs_terminal
@pytest.mark.parametrize(("name", "total"), [("slow.json", r"\d\.\d/3\.1 MB"), ("unknown.json", r"\d\.\d/\? MB")])
def test_a_real_terminal_shows_the_bar_and_stdout_only_the_report(slow: str, name: str, total: str) -> None:
    shown, report = on_a_terminal("analyze", f"{slow}/{name}")
    assert f"reading {name}" in plain(shown)
    assert re.search(total, plain(shown))
    assert shown.rstrip().endswith("\x1b[2K")
    assert report.startswith(b"Your step takes")
    assert b"\x1b" not in report


@pytest.mark.process
@needs_terminal
@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".sqlite", "-"])
def test_every_kind_of_file_has_a_bar(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(SMALL) if suffix == ".json.gz" else SMALL)
    if suffix == ".sqlite":
        path.unlink()
        database(path)
    piped = suffix == "-"
    shown, _ = on_a_terminal("analyze", "-" if piped else path, impatient=True, stdin=path if piped else None)
    size = path.stat().st_size
    assert f"reading {'-' if piped else path.name} " in plain(shown)
    assert re.search(rf"{size:,}/{size:,} bytes|{size / 1000:.1f}/{size / 1000:.1f} kB", plain(shown))


def database(path: Path) -> None:
    """An export of Nsight Systems with one kernel."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
            INSERT INTO StringIds VALUES (1, 'ampere_sgemm_128x64_nn');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 0, 7, 1, 16777216, 1);
        """)
        file.commit()


@pytest.mark.process
@needs_terminal
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("option", [None, "-q"])
def test_the_report_of_a_run_has_a_bar_unless_quiet(tmp_path: Path, option: str | None) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    windows = ("--skip", "1", "--base", "2", "--warmup", "1", "--timing", "3", "--evidence", "0")
    options = ("--out", tmp_path / "out", *windows, *filter(None, [option]))
    shown, out = on_a_terminal("run", *options, program, impatient=True)
    assert out.startswith(b"trained\n")
    assert ("reading timing.json" in plain(shown)) is (option is None)
    assert plain(shown).index("recorded in") < (plain(shown).find("reading timing.json") if option is None else 1 << 20)


TRAINING = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.process
@needs_terminal
@pytest.mark.parametrize("option", ["--json", "-q"])
def test_a_piped_json_and_quiet_are_silent(slow: str, option: str) -> None:
    shown, report = on_a_terminal("analyze", f"{slow}/slow.json", option)
    assert shown == ""
    assert report


@pytest.mark.process
def test_without_a_terminal_nothing_is_written_and_rich_is_not_loaded(tmp_path) -> None:
    path = TraceBuilder().step(0, 100).kernel("sgemm", 5, 90, launch_us=1).write(tmp_path / "t.json")
    code = (
        "import sys; from perfdoctor.cli.main import main; "
        f"assert main(['analyze', '-q', {str(path)!r}]) == 0; assert 'rich.progress' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
