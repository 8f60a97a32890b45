"""Traces behind URLs and on standard input."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nsys_files import limit_to_nsys, write_nsys
from servers import Folder, serving

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, read
from perfdoctor.trace.io.remote import Download, is_remote, protocol_of, redact
from perfdoctor.trace.io.remote_path import RemotePath

pytestmark = pytest.mark.process


def small() -> TraceBuilder:
    return TraceBuilder().step(0, 100).op("aten::mm", 5, 20).kernel("sgemm", 30, 40, launch_us=10)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the folder it serves."""
    folder = tmp_path / "web"
    folder.mkdir()
    with serving(partial(Folder, directory=str(folder))) as address:
        yield address, folder


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/run/rank0.json", True),
        ("memory://t.json", True),
        ("https://host/t.json?sig=1", True),
        ("simplecache::s3://bucket/t.json", True),
        ("-", True),
        ("t.json", False),
        ("./-", False),
        ("/data/a:b/t.json", False),
        ("C:\\traces\\t.json", False),
        ("a::b.json", False),
    ],
)
def test_a_url_is_told_by_its_protocol(path: str, remote: bool) -> None:
    assert is_remote(path) is remote


def test_passwords_and_signatures_are_not_shown() -> None:
    assert redact("https://me:secret@host/a.json?X-Amz-Signature=abc#x") == "https://host/a.json"
    assert redact("s3://key:secret@bucket/a@b.json") == "s3://bucket/a@b.json"
    assert redact("s3://bucket/what?.json") == "s3://bucket/what?.json"
    assert redact("a?b.json") == "a?b.json"
    assert redact("http://host:8080/a@b.json") == "http://host:8080/a@b.json"


@pytest.mark.parametrize(
    "password", ["pa/ss", "p@ss", "pa#ss", "pa?ss", "p:a/ss", "/pass", "pass/", "p/a@ss", "p@/ss", "%2Fpass"]
)
@pytest.mark.parametrize("scheme", ["https", "s3"])
def test_a_password_with_any_sign_is_left_out(scheme: str, password: str) -> None:
    assert redact(f"{scheme}://me:{password}@host/a.json") == f"{scheme}://host/a.json"
    assert str(RemotePath("https://me:secret@host/a.json?sig=1")) == "https://host/a.json"
    assert protocol_of("S3://bucket") == "s3"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_in_memory_is_read(
    memory: Any, content: Callable[[Trace], Any], pack: Callable[[bytes], bytes]
) -> None:
    memory.pipe("/run/t.json", pack(small().to_bytes()))
    trace = read("memory://run/t.json")
    assert content(trace) == content(small().trace())
    assert trace.path == "memory://run/t.json"


def test_a_trace_in_an_archive_is_read(memory: Any, tmp_path: Path, content: Callable[[Trace], Any]) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("run/t.json", small().to_bytes())
    assert content(read(f"zip://run/t.json::{(tmp_path / 't.zip').as_uri()}")) == content(small().trace())
    memory.pipe("/t.json", small().to_bytes())
    assert content(read("simplecache::memory://t.json")) == content(small().trace())


@pytest.mark.process
def test_a_trace_on_the_web_is_read(web: tuple[str, Path], content: Callable[[Trace], Any]) -> None:
    address, folder = web
    small().write(folder / "t.json.gz")
    trace = read(f"{address}/t.json.gz?token=secret")
    assert content(trace) == content(small().trace())
    assert trace.path == f"{address}/t.json.gz"


def test_an_export_of_nsight_systems_is_read_from_anywhere(memory: Any, tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict()))
    memory.pipe("/t.sqlite", path.read_bytes())
    trace = read("memory://t.sqlite")
    assert (len(trace.gpu), trace.path) == (1, "memory://t.sqlite")


def test_a_copy_of_a_database_is_gone_afterwards(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    data = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict())).read_bytes()
    memory.pipe("/t.sqlite", data)
    memory.pipe("/cut.sqlite", data[:100])
    reported: list[tuple[int, int | None]] = []
    read("memory://t.sqlite", lambda done, total: reported.append((done, total)))
    assert reported[-1] == (len(data), len(data))
    assert "the database" in refusal("memory://cut.sqlite")
    assert list(copies.iterdir()) == []


def test_a_download_gives_all_and_says_how_much_there_is(memory: Any) -> None:
    data = bytes(range(256)) * 1000
    memory.pipe("/t.json", data)
    with Download("memory://t.json") as download:
        assert download.size == len(data)
        assert (download.readall(1 << 30), download.disconnected) == (data, "")


def refusal(path: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{redact(path)}: ")
    assert "\n" not in text
    assert "perfdoctor-" not in text
    return text


@pytest.mark.process
def test_what_cannot_be_read_is_one_sentence_with_the_url(memory: Any, web: tuple[str, Path]) -> None:
    memory.pipe("/empty.json", b"")
    memory.pipe("/text.json", b"hello")
    assert "there is no such file" in refusal("memory://gone.json")
    assert "empty" in refusal("memory://empty.json")
    assert "not JSON" in refusal("memory://text.json")
    assert "there is no such file" in refusal(f"{web[0]}/gone.json?sig=secret")
    assert "nothing is known that reads nonsense://" in refusal("nonsense://x/t.json")
    assert "it cannot be read" in refusal("http://127.0.0.1:9/t.json")
    assert "report of Nsight Systems" in refusal("memory://t.nsys-rep")


@pytest.mark.parametrize(
    ("protocol", "command"), [("s3", "perfdoctor[s3]"), ("gs", "perfdoctor[gcs]"), ("abfs", "adlfs")]
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, protocol: str, command: str) -> None:
    for package in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)
    text = refusal(f"{protocol}://bucket/t.json")
    assert f"reading {protocol}:// needs a package that is not installed" in text
    assert command in text


def piped(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "perfdoctor", *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@pytest.mark.process
def test_standard_input_is_read(tmp_path: Path) -> None:
    ended = piped(gzip.compress(small().to_bytes()), "analyze", "-", "--json")
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b'"path":"-"' in ended.stdout.replace(b" ", b"")
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict()))
    assert piped(path.read_bytes(), "analyze", "-", "-q").returncode == 0


@pytest.mark.process
def test_nothing_on_standard_input_is_one_sentence() -> None:
    ended = piped(b"", "analyze", "-")
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"perfdoctor: -: the file is empty")
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_terminal_is_no_trace() -> None:
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "perfdoctor", "analyze", "-"]
    began = time.monotonic()
    ended = subprocess.run(command, stdin=follower, capture_output=True, timeout=60, check=False)
    os.close(leader)
    os.close(follower)
    assert ended.returncode == 2
    assert b"standard input is a terminal" in ended.stderr
    assert time.monotonic() - began < 30


@pytest.mark.process
def test_a_trace_from_standard_input_cannot_be_annotated(tmp_path: Path) -> None:
    ended = piped(small().to_bytes(), "export", "-", "-o", str(tmp_path / "a.json.gz"))
    assert ended.returncode == 2
    assert b"cannot be annotated" in ended.stderr
    assert not (tmp_path / "a.json.gz").exists()
