"""Traces read as they come, from the web and from pipes: the same columns, little memory, no copy."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fsspec
import pytest
from nsys_files import limit_to_nsys, write_nsys
from servers import answering, sending, serving

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.io import decompress as inflate
from perfdoctor.trace.io import stream as source
from perfdoctor.trace.io import web

pytestmark = pytest.mark.process

AssertSame = Callable[[Trace, Trace], None]
Pack = Callable[[bytes], bytes]

each_reader = pytest.mark.usefixtures("each_reader")


def small() -> TraceBuilder:
    return TraceBuilder().step(0, 100).op("aten::mm", 5, 20).kernel("sgemm", 30, 40, launch_us=10)


@pytest.fixture(scope="module")
def text() -> bytes:
    """More text than the reference reads at once."""
    b = TraceBuilder(rank=1)
    for i in range(11_000):
        b.op(f"aten::op{i * 7919 % 1009}", i * 10 + 0.125, 5, shapes=[[i % 64, 3]])
        b.kernel(f"kernel_{i % 77}", i * 10 + 3, 4.5, launch_us=i * 10 + 1, note="x" * (i * 37 % 600))
    return b.to_bytes()


@pytest.fixture(scope="module")
def parsed(each_reader: None, text: bytes) -> Trace:  # noqa: ARG001 - parsed by the reader of the tests
    """The trace of that text, parsed once for all ways in."""
    return parse(text, "x")


def zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").ZstdCompressor(level=1).compress(data)
    return compressed


def plain(data: bytes) -> bytes:
    return data


def packed(data: bytes) -> bytes:
    return gzip.compress(data, 1)


@each_reader
@pytest.mark.parametrize("pack", [plain, packed, zstd])
@pytest.mark.parametrize("way", ["web", "web without length", "fsspec", "pipe", "standard input"])
def test_every_way_in_gives_the_same_columns(
    text: bytes,
    parsed: Trace,
    pack: Pack,
    way: str,
    tmp_path: Path,
    assert_same: AssertSame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pack(text)
    reported: list[tuple[int, int | None]] = []
    with opened(way, data, tmp_path, monkeypatch) as path:
        trace = read(path, lambda done, total: reported.append((done, total)))
    assert trace.complete
    assert trace.path == path
    assert_same(trace, parsed)
    assert reported[-1] == (len(data), len(data) if way in ("web", "fsspec") else None)


class opened:  # noqa: N801 - read as a participle
    """A path that leads to some data in one of several ways, for as long as the context lasts."""

    def __init__(self, way: str, data: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.way, self.data, self.folder, self.monkeypatch = way, data, folder, monkeypatch
        self.ends: list[Callable[[], object]] = []

    def __enter__(self) -> str:
        if self.way.startswith("web"):
            length = None if self.way.endswith("without length") else len(self.data)
            server = serving(sending(lambda: [self.data], length))
            self.ends.append(server.__exit__)
            return f"{server.__enter__()}/t"
        if self.way == "fsspec":
            fsspec.filesystem("memory").pipe("/t", self.data)
            self.ends.append(partial(fsspec.filesystem("memory").rm, "/t"))
            return "memory://t"
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(self.data,))
        writer.start()
        self.ends.append(writer.join)
        if self.way == "pipe":
            return str(pipe)
        stdin = pipe.open("rb")
        self.monkeypatch.setattr(sys, "stdin", stdin)
        self.ends.insert(0, stdin.close)
        return "-"

    def __exit__(self, *_: object) -> None:
        for end in self.ends:
            end()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of memory of one process")
@pytest.mark.parametrize("name", ["reference", "fast"])
@pytest.mark.parametrize("pack", ["plain", "gzip"])
def test_memory_stays_at_a_few_blocks_and_nothing_is_written(name: str, pack: str) -> None:
    filler = b"x" * 20_000
    event = (
        b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"a":"' + filler + b'"}},'
    )
    block = b"".join(event % number for number in range(400))
    count = 24

    def pieces() -> Iterator[bytes]:
        packer = gzip.zlib.compressobj(1, wbits=31)
        pack_one = packer.compress if pack == "gzip" else plain
        yield pack_one(b"[" + event % 0)
        for _ in range(count):
            yield pack_one(block)
        yield pack_one(block[:-1] + b"]")
        yield packer.flush() if pack == "gzip" else b""

    raw = len(block) * (count + 1)
    program = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # whoever writes a larger file gets an error
from perfdoctor import read
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
trace = read(sys.argv[1])
print(len(trace.ops), trace.complete, (peak() - before) << 10)
"""
    with serving(sending(pieces)) as address:
        ended = subprocess.run(
            [sys.executable, "-c", program, f"{address}/t"],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PERFDOCTOR_READER": name},
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    events, complete, peak = ended.stdout.split()
    assert (int(events), complete) == (400 * (count + 1) + 1, "True")
    assert int(peak) < raw / 4


@pytest.mark.parametrize("ranges", [False, True])
def test_a_server_is_asked_once_for_all_whether_it_knows_ranges_or_not(ranges: bool) -> None:
    asked: list[str] = []
    data = small().to_bytes()
    with serving(sending(lambda: [data], len(data), asked=asked, ranges=ranges)) as address:
        assert read(f"{address}/t.json").complete
    assert asked == [""]


@each_reader
@pytest.mark.parametrize("pack", [plain, packed, zstd])
@pytest.mark.parametrize("how", ["closed", "reset", "chunks", "stalled"])
def test_what_came_before_a_connection_ended_is_kept_and_said_to_be_incomplete(
    text: bytes, pack: Pack, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "TIMEOUT_S", 0.5)
    whole = pack(text)
    data = whole[: len(whole) * 2 // 3]
    over = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield data
        if how == "stalled":
            yield b""
            over.wait(20)

    chunked = how == "chunks"
    with serving(sending(pieces, None if chunked else len(whole), chunked=chunked, reset=how == "reset")) as address:
        trace = read(f"{address}/t.json")
        over.set()
    assert not trace.complete
    assert trace.dropped == 0
    assert trace.warnings[0].startswith("the file is cut short or damaged at byte ")
    assert trace.warnings[-1].startswith("the connection ended after ")
    if how in ("closed", "stalled"):
        assert trace.warnings[-1].startswith(f"the connection ended after {len(data)} of {len(whole)} bytes")
    if how == "closed":
        cut = tmp_path / "cut"
        cut.write_bytes(data)
        local = read(cut)
        assert local.warnings == trace.warnings[:-1]
        assert local.events == trace.events > 10_000


@each_reader
@pytest.mark.parametrize("sent", [0, 1, 17, 100])
@pytest.mark.parametrize("pack", [plain, packed])
def test_a_connection_that_ends_before_the_first_event_is_one_sentence(sent: int, pack: Pack) -> None:
    data = pack(b'{"traceEvents": [' + b'{"ph": "X", "cat": "cpu_op", "name": "' + b"x" * 1000)
    with serving(sending(lambda: [data[:sent]], 10_000)) as address:
        message = refusal(f"{address}/t.json")
    count = min(sent, len(data))
    assert message == f"the connection ended after {count} of 10000 bytes; try again"


def refusal(path: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, "there is no such file; check the URL"),
        (403, "no permission to read it; check the credentials"),
        (401, "no permission to read it; check the credentials"),
        (500, "it cannot be read (HTTP Error 500: Internal Server Error); try again, or download it"),
        (503, "it cannot be read (HTTP Error 503: Service Unavailable); try again, or download it"),
    ],
)
def test_what_a_server_refuses_is_one_sentence(status: int, expected: str) -> None:
    with serving(answering(status)) as address:
        assert refusal(f"{address}/t.json") == expected


def test_a_server_that_never_answers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT_S", 0.2)
    over = threading.Event()

    def pieces() -> Iterator[bytes]:
        over.wait(20)
        yield b""

    with serving(sending(pieces, silent=True)) as address:
        assert refusal(f"{address}/t.json") == "it cannot be read (timed out); try again, or download it"
        over.set()


def test_who_stops_does_not_wait_for_a_stalled_connection(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_JOIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(source, "_PAUSE_S", 0.0)
    monkeypatch.setenv("PERFDOCTOR_READER", "fast")
    over = threading.Event()
    data = packed(text)

    def pieces() -> Iterator[bytes]:
        yield data[: len(data) // 2]
        over.wait(20)
        yield data[len(data) // 2 :]

    def progress(_done: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    with serving(sending(pieces, len(data))) as address:
        with pytest.raises(KeyboardInterrupt):
            read(f"{address}/t.json", progress)
        assert not over.is_set()
        over.set()
        for thread in threading.enumerate():
            if thread.name == "perfdoctor-inflate":
                thread.join(20)
                assert not thread.is_alive()


def test_a_database_is_read_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict()))
    with opened("pipe", path.read_bytes(), tmp_path, monkeypatch) as pipe:
        trace = read(pipe)
    assert (len(trace.gpu), trace.path) == (1, pipe)


def test_a_database_that_comes_only_in_part_is_one_sentence(tmp_path: Path) -> None:
    data = write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict())).read_bytes()
    with serving(sending(lambda: [data[:5000]], len(data))) as address:
        message = refusal(f"{address}/t.sqlite")
    assert message == f"the connection ended after 5000 of {len(data)} bytes; try again"


def test_no_room_for_a_copy_of_a_database_is_one_sentence(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe(
        "/t.sqlite", write_nsys(tmp_path / "t.sqlite", limit_to_nsys(small().to_dict())).read_bytes()
    )
    program = """
import resource, fsspec, sys
fsspec.filesystem("memory").pipe("/t.sqlite", open(sys.argv[1], "rb").read())
sys.dont_write_bytecode = True  # Python does not notice that what it writes is cut off
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from perfdoctor.cli.main import main
sys.exit(main(["analyze", "memory://t.sqlite"]))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "t.sqlite")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "perfdoctor: memory://t.sqlite: no room for a copy of it in " in ended.stderr
    assert ended.stderr.count("\n") == 1
