"""Bad input by every way in: as a file, compressed, streamed, and at the command line; what counts is what it holds."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from perfdoctor.cli.main import main
from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read

pytestmark = pytest.mark.usefixtures("each_reader")

Pack = Callable[[bytes], bytes]

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
PLAIN = json.dumps(EVENT).encode()


def zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").ZstdCompressor(level=3).compress(data)
    return compressed


PACKS: list[Pack] = [bytes, gzip.compress, zstd]


@dataclass(frozen=True)
class Read:
    """What is read of a text: events, and the number of those that are dropped."""

    events: int
    dropped: int = 0
    complete: bool = True
    warns: str = ""


def events(*irregular: bytes) -> bytes:
    """A list of events, irregular ones between two plain ones."""
    return b"[" + b",\n".join([PLAIN, *irregular, PLAIN]) + b"]"


def event(**fields: object) -> bytes:
    return json.dumps(EVENT | fields).encode()


def twins() -> bytes:
    """Two kernels and two launches, all of one correlation id."""
    b = TraceBuilder()
    for at in (0, 100):
        b.kernel("k", at + 10, 20, correlation=b.call("cudaLaunchKernel", at, 5, correlation=7))
    return b.to_bytes()


def shuffled() -> bytes:
    b = TraceBuilder()
    for i in range(50):
        b.op(f"aten::op{i}", 10 * i, 5).kernel("k", 10 * i + 3, 4, launch_us=10 * i + 1)
    whole = b.to_dict()
    random.Random(7).shuffle(whole["traceEvents"])
    return json.dumps(whole).encode()


NEST = b"[" * 100_000 + b"]" * 100_000
SHALLOW = b"[" * 1000 + b"]" * 1000

BAD: dict[str, tuple[bytes, Read | str]] = {
    "cut in an event": (events()[:-20], Read(1, complete=False, warns="cut short or damaged at byte ")),
    "cut between events": (events()[: len(PLAIN) + 2], Read(1, complete=False, warns="cut short or damaged at byte ")),
    "cut before the events": (b'{"schemaVersion": 1, "trace', "cut short, or not JSON, from byte "),
    "cut in the first event": (events()[:30], "cut short or damaged at byte 1, before its first event"),
    "white space": (b"\n \n", "the file is empty"),
    "no JSON": (b"hello", "not JSON, so no trace"),
    "JSON, but no trace": (b'{"a": [1, 2, 3]}', "JSON, but without traceEvents"),
    "byte order mark": (b"\xef\xbb\xbf" + events(), Read(2)),
    "byte order mark alone": (b"\xef\xbb\xbf", "not JSON, so no trace"),
    "invalid UTF-8": (events(PLAIN.replace(b"mm", b"\xff\xfe\x80")), Read(3)),
    "lone surrogates": (events(event(name="\ud800 and \udfff", args={"\ud800": "\udc00"})), Read(3)),
    "NaN and Infinity": (events(*(event(ts=float(text)) for text in ("nan", "inf", "-inf"))), Read(2, dropped=3)),
    "NaN in the arguments": (events(event(args={"a": float("nan"), "External id": float("inf")})), Read(3)),
    "1e300": (events(event(ts=1e300), event(dur=1e300)), Read(2, dropped=2)),
    "a negative duration": (events(event(dur=-5)), Read(3, warns="theirs is negative: 1 event")),
    "a negative duration of a kernel": (
        events(event(cat="kernel", dur=-5), event(cat="kernel", dur=5)),
        Read(3, dropped=1, warns="longer than the trace: 1 GPU item"),
    ),
    "a kernel of 54 years": (
        events(event(cat="kernel", dur=1.7e15), event(cat="kernel", ts=9, dur=5)),
        Read(3, dropped=1, warns="longer than the trace: 1 GPU item"),
    ),
    "a kernel beyond all times": (events(event(cat="kernel", dur=2**62)), Read(2, dropped=1, warns="cannot be read")),
    "a kernel that nobody waited for": (events(event(cat="kernel", dur=50_000)), Read(3)),
    "no duration": (events(event(dur=0)), Read(3)),
    "string numbers": (events(event(ts="5.125", dur="7", args={"External id": "0x10"})), Read(3)),
    "strings that are no numbers": (events(event(ts="soon"), event(dur="")), Read(2, dropped=2)),
    "a name of 3 MB": (events(event(name="x" * 3_000_000)), Read(3)),
    "exponents beyond all bounds": (
        events(event(ts="1e9999999999999999999"), event(dur="1e-9999999999999999999")),
        Read(2, dropped=2),
    ),
    "an end beyond 146 years": (events(event(ts=4e15, dur=4e15), event(ts=-4e15, dur=4e15)), Read(3, dropped=1)),
    "ids of 100,000 digits": (
        events(
            event(pid="9" * 100_000), event(cat="kernel", tid="1" * 100_000 + "x", args={"bytes": "1" * 100_000 + "x"})
        ),
        Read(4),
    ),
    "process ids that no system gives": (events(event(pid=10**18), event(cat="kernel", pid=2**63 + 5)), Read(4)),
    "names and ids of 1,000 nested lists": (
        events(
            PLAIN[:-1] + b', "name": ' + SHALLOW + b"}",
            PLAIN[:-1] + b', "pid": ' + SHALLOW + b"}",
            PLAIN.replace(b'"X"', b'"B"')[:-1] + b', "tid": ' + SHALLOW + b"}",
        ),
        Read(4, dropped=1),
    ),
    "100,000 nested brackets": (events(PLAIN[:-1] + b', "args": ' + NEST + b"}"), Read(2, dropped=1)),
    "100,000 brackets that never close": (
        b"[" + PLAIN + b',{"ph": "X", "args": ' + b"[" * 100_000,
        Read(1, complete=False, warns="cut short or damaged at byte "),
    ),
    "duplicate correlation ids": (twins(), Read(4)),
    "events out of order": (shuffled(), Read(150)),
    "no events among the events": (events(b"3", b"null", b'"x"', b"[]"), Read(2, dropped=4)),
    "another accelerator": (events(event(cat="mtia_ccp_events")), "an accelerator that is not known here (1 event of"),
    "another accelerator beside kernels": (events(event(cat="xpu_runtime"), event(cat="kernel")), Read(3)),
}


@pytest.mark.parametrize("way", ["file", "stream"])
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("case", BAD)
def test_what_can_be_read_is_read_and_the_rest_counted_or_it_is_one_sentence(
    case: str, pack: Pack, way: str, tmp_path: Path, assert_same: Callable[[Trace, Trace], None]
) -> None:
    text, expected = BAD[case]
    with leading_to(pack(text), way, tmp_path) as path:
        if isinstance(expected, str):
            assert expected in refusal(path)
            return
        trace = read(path)
    assert (trace.events, trace.dropped, trace.complete) == (expected.events, expected.dropped, expected.complete)
    assert expected.warns in " ".join(trace.warnings)
    assert bool(trace.dropped) is any(warning.startswith("left out because") for warning in trace.warnings)
    assert [string.encode() for string in trace.strings]
    assert_same(trace, parse(text, "x"))


class leading_to:  # noqa: N801 - read as a participle
    """A path to some data, in a folder or behind a URL, for as long as the context lasts."""

    def __init__(self, data: bytes, way: str, folder: Path) -> None:
        self.data, self.local = data, folder / "trace.json" if way == "file" else None

    def __enter__(self) -> str:
        if self.local is not None:
            self.local.write_bytes(self.data)
            return str(self.local)
        fsspec.filesystem("memory").pipe("/trace.json", self.data)
        return "memory://trace.json"

    def __exit__(self, *_: object) -> None:
        if self.local is None:
            fsspec.filesystem("memory").rm("/trace.json")


def refusal(path: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize("case", BAD)
def test_the_command_line_reports_it_or_says_one_line(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, expected = BAD[case]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text))
    code = main(["analyze", "--json", str(path)])
    out, err = capfd.readouterr()
    if isinstance(expected, str):
        assert (code, out) == (2, "")
        assert err.startswith("perfdoctor: ")
        assert err.count("\n") == 1
    else:
        assert (code, err) == (0, "")
        assert json.loads(out)["traces"][0]["complete"] is expected.complete


SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite", ".txt", "")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("pack", PACKS)
def test_a_wrong_suffix_is_no_matter(tmp_path: Path, suffix: str, pack: Pack) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(pack(events()))
    assert read(path).events == 2


def small() -> bytes:
    b = TraceBuilder(rank=0).step(0, 100).op("aten::mm", 1.125, 5, shapes=[[2, 3]])
    return b.kernel('odd "name" }, {"ph": [\\', 10, 50, launch_us=3).range("tail", 200, 1).to_bytes()


def cut_everywhere(data: bytes, stride: int) -> Iterator[bytes]:
    for cut in range(0, len(data), stride):
        yield data[:cut]


# `test_read_bad` cuts the plain text at every byte.
@pytest.mark.parametrize(
    ("pack", "way", "stride"),
    [(bytes, "file", 11), (gzip.compress, "file", 1), (zstd, "file", 1), *((pack, "stream", 11) for pack in PACKS)],
)
def test_a_file_cut_at_any_byte_holds_a_part_of_its_events_or_is_one_sentence(
    pack: Pack, way: str, stride: int, tmp_path: Path
) -> None:
    text = small()
    whole = rows(parse(text, "x"))
    min_found = 0
    for part in cut_everywhere(pack(text), stride):
        with leading_to(part, way, tmp_path) as path:
            trace = read_or_refused(path)
        if trace is None:
            assert not min_found
            continue
        found = rows(trace)
        assert found <= whole
        assert len(found) >= min_found
        assert trace.dropped == 0
        assert trace.complete or trace.warnings
        min_found = len(found)


def read_or_refused(path: str) -> Trace | None:
    """The trace, or None after a refusal in one sentence."""
    try:
        return read(path)
    except TraceError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return None


def rows(trace: Trace) -> set[tuple[Any, ...]]:
    return {
        (trace.strings[name], int(start), int(end))
        for table in trace.tables
        for name, start, end in zip(table.name, table.start_ns, table.end_ns, strict=True)
    }
