"""What `perfdoctor attach` makes of a process that it may not, or cannot, look into; no process is started here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.capture import attach_process
from perfdoctor.capture.attach_process import attach, check_process, choose_way, find_python_version, is_complete
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject.messages import ANSWER_FILE
from perfdoctor.errors import CaptureError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.parametrize(
    ("maps", "version"),
    [
        ("7f00 r-xp /usr/lib/libpython3.12.so.1.0\n7f01 /usr/lib/libtorch_cpu.so", (3, 12)),
        ("5500 r-xp /opt/conda/bin/python3.9\n", (3, 9)),
        ("5500 r-xp /usr/bin/sleep\n", None),
    ],
)
def test_the_version_is_read_from_the_names_of_files(
    tmp_path: Path, maps: str, version: tuple[int, int] | None
) -> None:
    assert find_python_version(tmp_path, maps) == version


def test_this_process_is_a_python_and_another_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_process, "find_python_version", lambda *_: None)
    with pytest.raises(CaptureError, match="is no Python"):
        check_process(os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 12345)
    with pytest.raises(CaptureError, match="is another user's"):
        check_process(os.getpid())
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(CaptureError, match="on Linux only"):
        check_process(os.getpid())


def test_a_container_is_entered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda path: str(path))
    with pytest.raises(CaptureError, match="runs in a container"):
        check_process(os.getpid())


@pytest.mark.parametrize(
    ("version", "uses_gdb", "has_gdb", "why"),
    [
        ((3, 11), False, True, r"Python 3\.11, and Pythons before 3\.14 let nothing in: --gdb .* py-spy dump"),
        ((3, 11), True, False, "gdb is not installed"),
        ((3, 99), False, True, r"Python 3\.99, which lets in only the same Python"),
    ],
)
def test_what_lets_nothing_in_says_what_can_be_had(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], uses_gdb: bool, has_gdb: bool, why: str
) -> None:
    monkeypatch.setattr(attach_process, "check_process", lambda _pid: version)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/gdb" if has_gdb else None)
    with pytest.raises(CaptureError, match=why):
        choose_way(os.getpid(), uses_gdb=uses_gdb)


@pytest.mark.parametrize(("version", "way"), [((3, 11), "run_by_gdb"), (sys.version_info[:2], "run_by_remote_exec")])
def test_each_python_has_its_way(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], way: str) -> None:
    monkeypatch.setattr(attach_process, "check_process", lambda _pid: version)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/gdb")
    if way == "run_by_remote_exec":
        monkeypatch.setattr(attach_process, "REMOTE_EXEC_VERSION", version)
    assert choose_way(os.getpid(), uses_gdb=True) is getattr(attach_process, way)


@pytest.mark.parametrize(
    ("stdout", "stderr", "why"),
    [
        ("$1 = 0\n", "warnings of gdb", None),
        ("", "ptrace: Operation not permitted.", r"gdb may not look .* CAP_SYS_PTRACE"),
        (
            "",
            'No symbol "Py_AddPendingCall" in current context.\n',
            r"could not run anything in .*\(No symbol .Py_AddPendingCall",
        ),
        (
            "",
            "Couldn't write extended state status: Bad address.",
            r"cannot write the registers of process \d+ .* start the program under perfdoctor run",
        ),
        ("$1 = -1\n", "", r"could not run anything in .* \(it says nothing\)"),
    ],
)
def test_what_the_debugger_says_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str, why: str | None
) -> None:
    asked: list[str] = []

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(Path(command[-1]).read_text())
        return subprocess.CompletedProcess(command, 0, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    if why is None:
        attach_process.run_by_gdb(4711, "pass\n")
    else:
        with pytest.raises(CaptureError, match=why):
            attach_process.run_by_gdb(4711, "pass\n")
    [script] = asked
    assert "attach 4711\n" in script
    found = re.search(r'set \{char \[(\d+)\]\} \$page = "(.*)"', script)
    assert found is not None
    assert int(found[1]) == len(found[2]) + 1, "the line and its end fit exactly"
    path = re.search(r"open\('(.*)'\)", found[2])
    assert path is not None
    assert Path(path[1]).exists() == (why is None), "what nobody will run is removed"
    Path(path[1]).unlink(missing_ok=True)


def test_a_debugger_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(CaptureError, match="gdb did not come into process 4711 in 30 s"):
        attach_process.run_by_gdb(4711, "pass\n")


class Program:
    """A process that runs what is sent into it: it answers, and writes facts as a recorder would."""

    def __init__(self, folder: Path, why_not: str | None, ends_by_itself: bool) -> None:
        self.folder, self.why_not, self.ends_by_itself = folder, why_not, ends_by_itself
        self.calls: list[str] = []

    def send(self, _pid: int, code: str) -> None:
        self.calls.append(code.splitlines()[-1].partition("(")[0])
        if self.calls[-1] == "program.attach":
            (self.folder / ANSWER_FILE).write_text(json.dumps({"pid": 1, "why_not": self.why_not}))
            self.write_facts("detached" if self.ends_by_itself else "running")
        else:
            self.write_facts("detached")

    def write_facts(self, reason: str) -> None:
        (self.folder / "rank0").mkdir(exist_ok=True)
        (self.folder / "rank0" / "facts.json").write_text(json.dumps({"rank": 0, "exit": reason}))


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_the_recorder_is_taken_out_where_it_does_not_leave_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by_itself: bool
) -> None:
    program = Program(tmp_path, None, ends_by_itself)
    monkeypatch.setattr(attach_process, "choose_way", lambda *_, **__: program.send)
    assert attach(os.getpid(), CaptureOptions(), tmp_path, timeout_s=0.2) == (0,)
    assert program.calls == ["program.attach"] + ["program.detach"] * (not ends_by_itself)
    assert is_complete(tmp_path)
    assert not (tmp_path / ANSWER_FILE).exists()


def test_a_program_that_is_recorded_already_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, "perfdoctor run records it already", ends_by_itself=True)
    monkeypatch.setattr(attach_process, "choose_way", lambda *_, **__: program.send)
    with pytest.raises(CaptureError, match="lets no recorder in: perfdoctor run records it already"):
        attach(os.getpid(), CaptureOptions(), tmp_path, timeout_s=0.2)


def test_a_process_that_never_answers_is_told_with_what_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_process, "choose_way", lambda *_, **__: lambda _pid, _code: None)
    monkeypatch.setattr(attach_process, "ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(CaptureError, match=r"came to no place where Python runs something else .* py-spy dump"):
        attach(os.getpid(), CaptureOptions(), tmp_path, timeout_s=0.1)


def test_a_system_that_refuses_says_which_rights_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _path: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    with pytest.raises(CaptureError, match=r"kernel.yama.ptrace_scope 0, or root"):
        attach_process.run_by_remote_exec(1, "pass")
