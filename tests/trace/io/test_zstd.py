"""Zstandard by either package: zstandard, and the standard library's from Python 3.14 on.

Where Python is older, `backports.zstd` stands in for the latter: its authors' own copy of it, with the same interface.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.io.decompress import _decompress_zstd

zstandard = pytest.importorskip("zstandard")
compress = zstandard.ZstdCompressor(level=3).compress


@pytest.fixture(params=["standard library", "zstandard"])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets a test run with each package."""
    if request.param == "zstandard":
        monkeypatch.setitem(sys.modules, "compression", None)
    elif sys.version_info < (3, 14):
        stand_in = ModuleType("compression")
        stand_in.zstd = pytest.importorskip("backports.zstd")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "compression", stand_in)
        monkeypatch.setitem(sys.modules, "zstandard", None)
    return str(request.param)


@pytest.fixture(scope="module")
def text() -> bytes:
    builder = TraceBuilder(rank=1)
    for i in range(30_000):
        builder.op(f"aten::op{i * 7919 % 10007}", i * 10 + 0.125, 5)
    return builder.to_bytes()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("frames", [1, 3])
def test_a_whole_file_is_read(
    tmp_path: Path, text: bytes, frames: int, assert_same: Callable[[Trace, Trace], None]
) -> None:
    size = len(text) // frames + 1
    path = tmp_path / "t.json.zst"
    path.write_bytes(b"".join(compress(text[at : at + size]) for at in range(0, len(text), size)))
    assert_same(read(path), parse(text, "x"))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("share", [0.2, 0.6, 0.999])
def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path, text: bytes, share: float) -> None:
    whole = compress(text)
    path = tmp_path / "t.json"
    path.write_bytes(whole[: int(share * len(whole))])
    trace = read(path)
    assert not trace.complete
    assert (share - 0.2) * 30_000 < len(trace.ops) < 30_000


@pytest.mark.usefixtures("package")
def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path, text: bytes) -> None:
    data = bytearray(compress(text))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path = tmp_path / "t.json.zst"
    path.write_bytes(data)
    trace = read(path)
    assert not trace.complete
    assert 8_000 < len(trace.ops) < 20_000


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("size", [4, 5, 12, 20])
def test_a_file_cut_in_its_first_bytes_is_one_sentence(tmp_path: Path, text: bytes, size: int) -> None:
    path = tmp_path / "t.json.zst"
    path.write_bytes(compress(text)[:size])
    with pytest.raises(TraceError, match="the compressed file is cut or damaged before its first event"):
        read(path)


@pytest.mark.usefixtures("package")
def test_little_is_inflated_at_once() -> None:
    data = compress(bytes(64 << 20))  # packs to 2 kB

    def pieces() -> Iterator[bytes]:
        yield data

    assert max(map(len, _decompress_zstd(pieces(), "x"))) <= 1 << 20
