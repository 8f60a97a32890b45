"""Where the text comes from: compressed files, several threads, errors on the way; and the code that reads it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from left_out_library import PROBLEM, without_library

from perfdoctor.errors import TraceError, UsageError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.io.decompress import Prefetch
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.kineto import compiled_reader, reader
from perfdoctor.trace.kineto import reader_choice as choice
from perfdoctor.trace.kineto.event_walker import EVENT_BORDER
from perfdoctor.trace.scanner import scan
from perfdoctor.trace.scanner.text_window import TextWindow, sliding_window

AssertSame = Callable[[Trace, Trace], None]


def small() -> bytes:
    b = TraceBuilder(rank=1).step(0, 100).op("aten::mm", 1.125, 5, shapes=[[2, 3]])
    b.kernel("k", 10, 50, launch_us=3, nested=[{"name": "no"}, {"name": "border"}])
    b.event(ph="B", cat="user_annotation", name="half", ts=5, pid=1, tid=2)
    for start in range(12):
        b.op(f"aten::op{start % 5}", start, 1, thread=start % 3)
    return b.event(ph="E", ts=9, pid=1, tid=2).to_bytes()


def large(events: int = 88_000) -> bytes:
    """More text than one window and one part hold."""
    b = TraceBuilder(rank=1)
    for i in range(events // 4):
        b.op(f"aten::op{i * 7919 % 1009}", i * 10 + 0.125, 5, shapes=[[i % 64, 3]])
        b.kernel(f"kernel_{i % 77}", i * 10 + 3, 4.5, launch_us=i * 10 + 1).range(f"user {i % 11}", i * 10, 9)
    return b.to_bytes()


@pytest.fixture(scope="module")
def large_text() -> bytes:
    return large()


@pytest.fixture(scope="module")
def large_trace(large_text: bytes) -> Trace:
    return parse(large_text, "x")


@pytest.fixture
def fast_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, "fast")


def split_at(text: bytes, *places: int) -> Trace:
    """The trace read in parts that begin at some places, whatever stands there."""

    def windows(_: int) -> list[TextWindow]:
        found = []
        for place in places:
            window = sliding_window(text[place:], 100)
            window.base = place
            found.append(window)
        return found

    whole = compiled_reader.FastReader(sliding_window(text, 100), windows)
    counter = reader.MultiprocessorCounter(lambda _: 0)
    counter.look_at(text)
    return reader._build(whole, whole.read_columns(), "x", counter)


def test_a_cut_at_any_place_changes_nothing(assert_same: AssertSame) -> None:
    text = small()
    expected = parse(text, "x")
    begin = text.index(b"[\n") + 1
    for place in range(begin, len(text) - 1, 7):
        assert_same(split_at(text, place), expected)


def test_cuts_between_events_are_used_and_others_are_read_over(assert_same: AssertSame) -> None:
    text = small()
    expected = parse(text, "x")
    borders = [match.end() for match in EVENT_BORDER.finditer(text)]
    assert any(text[border - 6 : border] == b'"no"},' for border in borders), "one of them is within an event"
    for places in (borders, borders[::2], borders[3:5], borders[:1]):
        assert_same(split_at(text, *places), expected)


def test_a_part_that_is_damaged_ends_the_trace_there(assert_same: AssertSame) -> None:
    text = small().replace(b'"aten::op3"', b'"aten::op3', 1)
    expected = parse(text, "x")
    for place in [match.end() for match in EVENT_BORDER.finditer(text)]:
        assert_same(split_at(text, place), expected)


@pytest.mark.usefixtures("fast_reader")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_reads_the_same(
    tmp_path: Path, large_text: bytes, large_trace: Trace, threads: int, assert_same: AssertSame
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(large_text)
    with TextStream(path) as stream:
        assert len(stream.split(100, threads, EVENT_BORDER)) == threads - 1
    assert_same(read(path, threads=threads), large_trace)


@pytest.mark.usefixtures("fast_reader")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["one", "members", "padded"])
def test_gzip_is_read_in_blocks(
    tmp_path: Path, large_text: bytes, large_trace: Trace, form: str, threads: int, assert_same: AssertSame
) -> None:
    cuts = [0, 1, 1000, 1001, len(large_text) // 2, len(large_text)]
    pieces = [large_text] if form == "one" else [large_text[a:b] for a, b in pairwise(cuts)]
    path = tmp_path / "t"
    path.write_bytes(b"".join(gzip.compress(piece, 1) for piece in pieces) + bytes(600 if form == "padded" else 0))
    assert_same(read(path, threads=threads), large_trace)


def test_zstandard_is_read_in_frames(
    tmp_path: Path, large_text: bytes, large_trace: Trace, assert_same: AssertSame
) -> None:
    zstandard = pytest.importorskip("zstandard")
    compress = zstandard.ZstdCompressor(level=1).compress
    path = tmp_path / "t.json.zst"
    path.write_bytes(compress(large_text[:5000]) + compress(large_text[5000:]))
    assert_same(read(path), large_trace)
    path.write_bytes(path.read_bytes()[:-2000])
    assert not read(path).complete


@pytest.mark.process
def test_zstandard_without_a_package_for_it_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(50))
    run = f"""
import sys
sys.modules["compression"] = sys.modules["zstandard"] = None
from perfdoctor import read
try:
    read({str(path)!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    output = python(run)
    assert output.startswith("TraceError ")
    assert "compressed with zstd, which needs Python 3.14 or the package zstandard" in output
    assert len(output.splitlines()) == 1


def python(program: str, timeout_s: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["reference", "fast"])
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_an_error_of_the_disk_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, name)
    with pytest.raises(TraceError, match="/proc/self/mem: it cannot be read"):
        read("/proc/self/mem")


def test_an_error_in_the_inflating_thread_comes_out() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise OSError(5, "Input/output error")

    ahead = Prefetch(pieces())
    taken = iter(ahead)
    assert next(taken) == b"one"
    with pytest.raises(OSError, match="Input/output"):
        next(taken)
    ahead.close()


def test_the_inflating_thread_ends_when_nobody_wants_more() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(1000)

    ahead = Prefetch(endless())
    assert next(iter(ahead)) == bytes(1000)
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "perfdoctor-inflate"]


@pytest.mark.usefixtures("fast_reader")
def test_no_thread_is_left_after_a_file_that_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"a": [' + b"1, " * 4_000_000))
    with pytest.raises(TraceError, match="cut short, or not JSON"):
        read(path)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("perfdoctor")]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("name", ["reference", "fast"])
def test_progress_rises_to_the_size_of_the_file(
    tmp_path: Path, large_text: bytes, suffix: str, threads: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(choice.VARIABLE, name)
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(large_text, 1) if suffix == ".json.gz" else large_text)
    reported: list[tuple[int, int | None]] = []
    within: set[int] = set()

    def progress(done: int, total: int | None) -> None:
        reported.append((done, total))
        within.add(threading.get_ident())

    read(path, progress, threads=threads)
    size = path.stat().st_size
    assert reported[-1] == (size, size)
    assert all(before[0] <= after[0] for before, after in pairwise(reported))
    assert within == {threading.get_ident()}


def test_an_exception_of_progress_ends_the_reading(tmp_path: Path, large_text: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(large_text)

    def progress(_done: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(path, progress)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("perfdoctor")]


def test_a_window_holds_no_more_than_a_few_blocks(large_text: bytes) -> None:
    window = sliding_window(large_text, 4096)
    whole = compiled_reader.FastReader(window)
    assert whole.read_columns().seen > 50_000
    assert len(window.buffer) < 20_000


@pytest.mark.process
@pytest.mark.parametrize("size", ["small", "large"])
def test_files_of_any_size_are_read_by_the_library(tmp_path: Path, large_text: bytes, size: str) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(small() if size == "small" else large_text))
    program = f"""
import sys, perfdoctor
print(perfdoctor.read({str(path)!r}).warnings)
print([name for name in ("numba", "torch", "perfdoctor.trace.scanner.scan") if name in sys.modules])
"""
    assert python(program).splitlines()[-1] == "['perfdoctor.trace.scanner.scan']"


@pytest.mark.parametrize(("size", "speaks"), [("small", False), ("large", True)])
def test_without_the_library_the_reference_reads_and_says_so_where_that_takes_long(
    tmp_path: Path, large_text: bytes, monkeypatch: pytest.MonkeyPatch, size: str, speaks: bool
) -> None:
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setattr(choice, "_SMALL_BYTES", len(large_text))
    path = tmp_path / "t.json"
    path.write_bytes(small() if size == "small" else large_text)
    with without_library():
        trace = read(path)
    assert (f"read with the slow reader, because {PROBLEM}" in trace.warnings) == speaks
    assert trace.events == (17 if size == "small" else 88_000)


def test_an_unknown_reader_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(choice.VARIABLE, "quick")
    path = tmp_path / "t.json"
    path.write_bytes(small())
    with pytest.raises(UsageError, match="there is no such reader"):
        read(path)


def test_the_scanner_refuses_a_window_without_zeros_behind_its_text() -> None:
    window = sliding_window(b"[]", 8)
    window.read_more()
    for position, end in ((0, len(window.buffer)), (5, 3), (-1, 2), (0, 1)):
        window.position, window.end = position, end
        with pytest.raises(AssertionError, match="zero bytes"):
            scan.Scanner(compiled_reader.PLAN).scan(window)


def test_a_plan_cannot_name_a_slot_that_is_not_there() -> None:
    plan = scan.Plan({"a": (1, 40)}, {}, 14, 14, compiled_reader.PLAN.kinds, compiled_reader.PLAN.classify)
    with pytest.raises(AssertionError, match="slot"):
        scan.Scanner(plan)


NASTY = {
    "nest": b"[" * 3_000_000,
    "nested arguments": b'[{"ph":"X","args":' + b'{"a":' * 500_000,
    "string": b'[{"ph":"X","name":"' + b"x" * 9_000_000,
    "backslashes": b'[{"ph":"X","name":"' + b"\\" * 5_000_001,
    "digits": b'[{"ph":"X","ts":' + b"9" * 3_000_000 + b"}]",
    "spaces": b'{"traceEvents":' + b" " * 9_000_000 + b"[",
    "keys": b"[{" + b'"a":1,' * 1_000_000,
    "commas": b"[" + b"," * 5_000_000,
    "zeros": b"[" + bytes(5_000_000),
    "quotes": b"[" + b'"' * 4_000_001,
    "scalars": b"[" + b"1," * 60_000,
    "events": b"[" + b"{}," * 100_000,
}


@pytest.mark.process
@pytest.mark.parametrize("case", NASTY)
def test_the_nastiest_texts_are_refused_in_time(case: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(NASTY[case])
    program = f"""
import os, sys
for reader in ("fast", "reference"):
    os.environ["{choice.VARIABLE}"] = reader
    from perfdoctor import read
    try:
        read({str(path)!r})
    except Exception as error:
        print(type(error).__name__, "\\n" in str(error), len(str(error)) < 1000)
"""
    assert python(program, 30) == "TraceError False True\n" * 2


def test_distinct_names_in_any_number_are_kept_apart() -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1}
    lines = [json.dumps(event | {"name": f"n{i}" * (1 + i % 9), "ts": i}) for i in range(50_000)]
    trace = parse(f"[{','.join(lines)}]".encode(), "x", block=1 << 16)
    assert [trace.strings[code] for code in trace.ops.name] == [f"n{i}" * (1 + i % 9) for i in range(50_000)]
