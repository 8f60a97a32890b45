"""What a recording brings along or names: source lines to quote, and the files of a capture beside its trace."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.io.untrusted_files import make_line_reader, quote_only_under, read_beside_trace


@pytest.fixture(autouse=True)
def work_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def source_file(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "train.py"
    file.write_text("step()\n")
    return str(file)


def test_only_regular_python_files_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    file = source_file(folder)
    (folder / "link.py").symlink_to(file)
    (folder / "loop.py").symlink_to("loop.py")
    (folder / "secret").write_text("key\n")
    (folder / "stolen.py").symlink_to(folder / "secret")
    (folder / "huge.py").write_bytes(b"step()\n" + b" " * 5_000_000)
    os.mkfifo(folder / "pipe.py")
    text_of = make_line_reader([], [])
    quoted = {path.name for path in folder.iterdir() if text_of(str(path), 1)}
    assert quoted == {"train.py", "link.py"}
    assert text_of("/a\0b.py", 1) == ""


def test_lines_are_quoted_of_the_project_and_of_the_captures_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside, elsewhere = (source_file(tmp_path / name) for name in ("work", "captured", "other"))
    (tmp_path / "work" / "link.py").symlink_to(elsewhere)
    trace, folder = tmp_path / "captured" / "rank0.json", str(tmp_path / "other")
    readers: list[Callable[[str, int], str]] = [
        make_line_reader([], []),
        make_line_reader([trace], []),
        make_line_reader([trace], [folder, None, "other", "/a\0b"]),
    ]
    files = (
        here,
        beside,
        elsewhere,
        str(tmp_path / "work" / "link.py"),
        str(tmp_path / "work" / ".." / "other/train.py"),
    )
    assert [[bool(text_of(file, 1)) for file in files] for text_of in readers] == [
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, True, True, True, True],
    ]
    (tmp_path / "other" / ".git").mkdir()
    (tmp_path / "other" / "scripts").mkdir()
    monkeypatch.chdir(tmp_path / "other" / "scripts")
    assert make_line_reader([], [])(elsewhere, 1) == "step()\n"


@pytest.mark.parametrize("folder", ["/", "home", "home/me"])
def test_no_capture_makes_a_home_folder_readable(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    private = source_file(tmp_path / "home" / "me" / "private")
    assert make_line_reader([], [str(tmp_path / folder)])(private, 1) == ""
    assert make_line_reader([], [os.path.dirname(private)])(private, 1) == "step()\n"


def test_no_line_from_outside_of_the_roots_is_quoted(tmp_path: Path) -> None:
    inside, outside = source_file(tmp_path / "in"), source_file(tmp_path / "work")
    (tmp_path / "in" / "link.py").symlink_to(outside)
    text_of = make_line_reader([tmp_path / "work" / "t.json"], [str(tmp_path)])
    with quote_only_under([(tmp_path / "in").resolve()]):
        assert text_of(inside, 1) == "step()\n"
        assert text_of(outside, 1) == ""
        assert text_of(str(tmp_path / "in" / "link.py"), 1) == ""
    assert text_of(outside, 1) == "step()\n"


def waiting_trace(path: Path, file: str) -> None:
    """A trace whose steps wait in the first line of `file`."""
    trace = TraceBuilder()
    for step in range(5):
        at = 10_000 * step
        trace.step(at, 9_900).range(f"@{file}:1 main", at, 9_900)
        trace.op("aten::item", at + 100, 6_000).sync("cudaStreamSynchronize", at + 200, 5_800)
        trace.kernel("gemm", at + 150, 5_000, launch_us=at + 101)
    trace.write(path)


@pytest.mark.parametrize("folder", ["private", "work"])
def test_a_report_quotes_no_file_that_only_its_trace_names(tmp_path: Path, folder: str) -> None:
    waiting_trace(tmp_path / "work" / "t.json", source_file(tmp_path / folder))
    report = perfdoctor.analyze("t.json")
    table = {column.name: column.values for column in report.table("lines").columns}
    assert ("step()" in json.dumps(report.to_dict())) == (table["source"] == ("step()",)) == (folder == "work")


@pytest.mark.parametrize("name", ["steps.jsonl", "facts.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself", "folder"])
def test_what_lies_beside_a_trace_and_is_no_file_is_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "capture" / "rank0"
    folder.mkdir(parents=True)
    waiting_trace(folder / "timing.json", "/a.py")
    (folder / "facts.json").write_text("{}")
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(OSError, match=r"regular file|levels of symbolic links|Is a directory"):
        read_beside_trace(path)
    assert perfdoctor.analyze(tmp_path / "capture").steps.count == 5


@pytest.mark.parametrize("name", ["steps.jsonl", "facts.json"])
@pytest.mark.parametrize("is_cache", [False, True])
def test_what_lies_beside_a_trace_links_out_only_where_the_trace_does(
    tmp_path: Path, name: str, is_cache: bool
) -> None:
    folder, elsewhere = tmp_path / "capture" / "rank0", tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    elsewhere.mkdir()
    trace = folder / "timing.json"
    waiting_trace(elsewhere / "blob" if is_cache else trace, "/a.py")
    if is_cache:
        trace.symlink_to(elsewhere / "blob")
    (elsewhere / "content").write_text('{"host": "ours"}')
    (folder / name).symlink_to(elsewhere / "content")
    if is_cache:
        assert read_beside_trace(folder / name, trace)
        return
    with pytest.raises(OSError, match="links out of the capture"):
        read_beside_trace(folder / name, trace)
    if name == "facts.json":
        with pytest.raises(perfdoctor.InputError, match="links out of the capture"):
            perfdoctor.analyze(tmp_path / "capture")


def test_of_a_huge_file_beside_a_trace_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdoctor.trace.io.untrusted_files._MAX_BYTES_BESIDE", 5)
    (tmp_path / "steps.jsonl").write_text("0123456789")
    assert read_beside_trace(tmp_path / "steps.jsonl") == b"01234"


EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": 1},'


@pytest.mark.parametrize("filler", [EVENT, b" ", b"x"])
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_small_file_of_much_text_is_read_up_to_the_limit(kind: str, filler: bytes, tmp_path: Path) -> None:
    compress = gzip.compress if kind == "gzip" else pytest.importorskip("zstandard").ZstdCompressor().compress
    path = tmp_path / "bomb.json"
    path.write_bytes(compress(b'{"traceEvents": [' + EVENT + filler * (20_000_000 // len(filler))))
    assert path.stat().st_size < 200_000
    trace = perfdoctor.read(path, max_text_bytes=1_000_000)
    assert not trace.complete
    assert 1 <= trace.events <= 1_000_000 // len(EVENT)
    if filler != b"x":  # else it is damaged before
        assert "reading ended after 0.001 GB of text, the limit" in trace.warnings[-1]
    assert perfdoctor.read(path, max_text_bytes=1 << 30).events >= trace.events


@pytest.mark.parametrize("filler", [b" ", b'"' + b"a" * (1 << 16)])
def test_a_word_without_end_takes_no_more_memory_than_an_event_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes
) -> None:
    monkeypatch.setattr("perfdoctor.trace.scanner.text_window.MAX_REST", 4 << 20)
    sizes = []

    class Measured(bytearray):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            sizes.append(size)

    monkeypatch.setattr("perfdoctor.trace.scanner.text_window.bytearray", Measured, raising=False)
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    text = b'{"traceEvents": [' + event + b"," + filler + b" " * (64 << 20) + b'"}]}'
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(text, 1))
    trace = perfdoctor.read(tmp_path / "bomb.json.gz")
    assert (trace.events, trace.complete) == (1, False)
    assert max(sizes) <= 5 * (4 << 20)
