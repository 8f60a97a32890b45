"""The fast reader against the reference: the same columns, or the same refusal, for any text in blocks of any size."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.kineto.reader_choice import VARIABLE

AssertSame = Callable[[Trace, Trace], None]

MEMORY = "cpu_instant_event"
PLAIN: dict[str, Any] = {"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 7, "ts": 5, "dur": 2}


def outcome(text: bytes, block: int | None) -> Trace | str:
    """The trace, or why there is none."""
    try:
        return parse(text, "x", block=block)
    except TraceError as error:
        return str(error)


@lru_cache(maxsize=1)
def reference_outcome(text: bytes) -> Trace | str:
    return outcome(text, None)


@pytest.fixture(scope="module")
def agree(assert_same: AssertSame) -> Callable[..., Trace | str]:
    """Reads a text with both readers, asserts that they agree, and returns what they say."""

    def check(text: bytes | str, block: int = 64) -> Trace | str:
        data = text.encode() if isinstance(text, str) else text
        reference, fast = reference_outcome(data), outcome(data, block)
        if isinstance(reference, str) or isinstance(fast, str):
            assert fast == reference
        else:
            assert_same(reference, fast)
        return reference

    return check


Agree = Callable[..., Trace | str]

# What may stand for a value, a key or an argument: plain, irregular, or no JSON at all.
_SCALARS = """
    0 -0 00 7 -7 12.5 -12.5 0.0005 -0.0005 1.2345 -1.2344 1e3 1E+3 1e-3 1.5e2 1e300 1e999 -1e999 1. .5 01.5 +1 - 1e
    1.e1 123456789012345678 1234567890123456789 99999999999999999999 4611686018427387 4611686018427388 00.5 0.0 -0.0
    1700000000000123.249 9999999999999999 true false null nul tru NaN -NaN Infinity -Infinity inf -inf nan nan(ind) INF
    "" "7" "0x10" "-3" "7.0" "7.5" "x" " 7" "stream7" "a\\u0062" "\\ud83d\\ude00" "\\ud800" "\\u12" "\\x" "\\" "\\\\"
    [8,1,1] [2,3] [-1] [0,1] [1.0] [1e0] [2147483648,2] [2147483647,2147483647,3] [true] [[1]] [1,null]
    "kernel" "Kernel" "cpu_op" "X" "B" "E" "i" {} [] [1] [1,] [[1,2],[]] {"a":1} {"a":1,} {"a":[{"b":null}]} {"ts":1.5}
    [1}] {"a"} {a:1} [,] [NaN] [inf] {"a":inf} "unclosed {"unclosed [ ] } , : 1.2.3 "é" [1.50,1e3]
"""
_KEYS = r"""
    "ph" "cat" "name" "pid" "tid" "ts" "dur" "args" "id" "t\u0073" "\u0070id" "Dur" "" "other" "x\n" name "unclosed
"""
_ARGUMENTS = r"""
    "device" "stream" "Stream" "correlation" "External\u0020id" "bytes" "Bytes" "grid" "ts" "dur" "args" "name" "other"
    "wait_on_stream" "stre\u0061m" "Addr"
"""
_SPACED = ["External id", "external id", "Python id", "Input Dims", "Input dims", "Input type", "Concrete Inputs"]
_SPACED += ["Device Type", "Device Id", "Total Allocated", "Total Allocated", "Total Reserved"]
_SPACED += ["Sequence number", "sequence number"]
_SPACED += ["Collective name", "Collective name", "dtype", "In msg nelems", "Seq", "Process Group Name"]
SCALARS = st.sampled_from(_SCALARS.split())
KEYS = st.sampled_from(_KEYS.split())
ARGUMENTS = st.sampled_from(_ARGUMENTS.split() + [f'"{key}"' for key in _SPACED])
SPACES = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n        ", "\x0b", "\x00"])


def members(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.builds(lambda k, a, b, v: f"{k}{a}:{b}{v}", keys, SPACES, SPACES, values), max_size=4)


@st.composite
def events(draw: st.DrawFn) -> str:
    """An event of mostly plain members, with some of any kind among them, before them, or twice."""
    kind = draw(
        st.sampled_from(
            ["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "python_function", "cuda_sync", "Trace", MEMORY]
        )
    )
    members_of_kind = PLAIN | {"cat": kind, "ts": draw(st.integers(0, 9))}
    if kind == MEMORY:
        members_of_kind |= {"name": draw(st.sampled_from(["[memory]", "[OutOfMemory]", "other"])), "ph": "i"}
    plain = [f'"{key}":{json.dumps(value)}' for key, value in members_of_kind.items()]
    arguments = draw(members(ARGUMENTS, SCALARS))
    if draw(st.booleans()):
        plain.append(f'"args":{{{",".join(arguments)}}}')
    plain += draw(members(KEYS, SCALARS)) if draw(st.booleans()) else []
    order = draw(st.permutations(plain))
    if draw(st.booleans()):
        order = [member for member in order if draw(st.integers(0, 5))]
    comma = draw(st.sampled_from([",", ",", ", ", " ,\n  ", ",,"]) if draw(st.booleans()) else st.just(","))
    return "{" + draw(SPACES) + comma.join(order) + draw(SPACES) + "}"


@given(st.lists(st.one_of(events(), events(), SCALARS), max_size=4), SPACES, st.integers(1, 200), st.booleans())
def test_any_members_in_any_notation(agree: Agree, chosen: list[str], space: str, block: int, bare: bool) -> None:
    anchor = json.dumps(PLAIN | {"cat": "user_annotation"})
    body = f",{space}".join([anchor, *chosen, anchor])
    agree(f"[{body}]" if bare else f'{{"traceEvents":{space}[{body}]{space}, "distributedInfo": {{"rank": 3}}}}', block)


def ordinary() -> bytes:
    """A small trace with what a profiler writes, and what it writes oddly."""
    b = TraceBuilder(rank=1).step(0, 100).op("aten::mm", 1.125, 5, shapes=[[2, 3], []], types=["float", "é"])
    b.kernel('odd "name" }, {"ph": [\\', 10, 50.0625, launch_us=3, grid=[1, 2, 3]).memcpy("HtoD", 70, 5)
    b.event(ph="B", cat="user_annotation", name="half", ts=5, pid=1, tid="t").event(ph="E", ts=9, pid=1, tid="t")
    b.event(ph="X", cat="kernel", name="twice", pid=3, tid="stream 7", ts="7.5", dur=1, args={"bytes": "12"})
    b.memory(60.5, 512, 1 << 40, device=0).memory(61, -1, 7).memory(62.125, -512, 1 << 40, device=0)
    return b.event(ph="M", name="process_name", pid=1, args={"name": "python"}).range("tail", 200, 1).to_bytes()


def test_a_border_of_blocks_at_every_byte(agree: Agree) -> None:
    text = ordinary()
    # In blocks of one size borders fall on all its multiples: up to 150 that is every byte many times over.
    for block in (*range(1, 150), *range(150, len(text) + 2, 13)):
        assert not isinstance(agree(text, block), str)


@pytest.mark.parametrize("block", [1, 100])
def test_a_text_cut_at_every_byte(agree: Agree, block: int) -> None:
    # At night at every byte, by day at every seventh, which are others for each size of block.
    text, step = ordinary(), max(1, 7 * 25 // settings().max_examples)
    for cut in range(block % step, len(text), step):
        agree(text[:cut], block)


@pytest.mark.parametrize("text", ['{"schemaVersion": 1', '{"schemaVersion": "1"', '{"a": 12.5', '{"a": [1, 2]', "[1"])
def test_a_text_cut_behind_a_value(agree: Agree, text: str) -> None:
    # A number ends where no more text comes, which the window learns only when it slides.
    for block in range(1, 30):
        assert isinstance(agree(text, block), str)


@given(st.data())
def test_bytes_that_are_damaged(agree: Agree, data: st.DataObject) -> None:
    text = bytearray(ordinary())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    agree(bytes(text), data.draw(st.integers(1, 2000)))


@pytest.mark.parametrize(
    "event",
    [
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"stream":null,"Stream":4}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"stream":5,"stream":6}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"stream":5,"Stream":6}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{},"args":{"stream":6}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":[],"pid":null,"tid":"stream 5"}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"stream":1}"pid":1}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"pid":1"tid":2}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"pid":1{"stream":2}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"stream":1}}}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"pid":true}',
        '{"ph":"X","cat":"KERNEL","name":null,"ts":1,"dur":-2,"x" : inf}',
        '{"ph":"X","cat":"\\u006bernel","name":"k","ts":1,"dur":2}',
        '{"ph":"X","cat":"cpu_op","name":"k","ts":1,"dur":2,"args":{"Input Dims":[[1 ,2]],"Input type":" [\\"a\\"] "}}',
    ],
)
def test_events_that_look_plain(agree: Agree, event: str) -> None:
    anchor = json.dumps(PLAIN)
    for block in (1, 7, 4096):
        assert not isinstance(agree(f"[{anchor},{event},{anchor}]", block), str)


@pytest.mark.parametrize("depth", [59, 60, 61, 1000, 1022, 1024, 3000])
def test_any_depth_of_nesting(agree: Agree, depth: int) -> None:
    anchor = json.dumps(PLAIN)
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        nest = opened * depth + ("1" if opened != "[" else "") + closed * depth
        for key in ("other", "Input Dims"):
            op = f'{{"ph":"X","cat":"cpu_op","name":"k","ts":1,"dur":2,"args":{{"{key}":{nest}}}}}'
            assert not isinstance(agree(f"[{anchor},{op},{anchor}]", 4096), str)


def many(count: int, irregular: int, seed: int) -> bytes:
    """Events of all kinds in any order of time, every `irregular`-th of them written in a way that is no plain one."""
    choose = random.Random(seed)
    lines = []
    names = ["allreduce", "a\u0301", "wait"]
    for number in range(count):
        kind = choose.choice(["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "none"])
        arguments: dict[str, Any] = {"correlation": choose.randrange(40), "External id": choose.randrange(40)}
        if kind == "cpu_op":
            arguments["Input Dims"] = [[choose.randrange(50)]]
        if choose.randrange(3):
            arguments |= {"Collective name": choose.choice(names), "Seq": number, "grid": [choose.randrange(9), 2]}
        event: dict[str, Any] = {
            "ph": "X",
            "cat": kind,
            "name": f"n{choose.randrange(3000)}",
            "pid": choose.randrange(300),
        }
        event |= {"tid": choose.choice([1, "a", "b"]), "ts": choose.randrange(90) / 8, "dur": choose.randrange(5)}
        line = json.dumps(event | {"args": arguments})
        lines.append(line.replace('"name"', '"n\\u0061me"') if number % irregular == 0 else line)
    return f"[{','.join(lines)}]".encode()


@pytest.mark.parametrize("irregular", [1, 50, 10**9])
def test_many_events_fill_every_table_and_stay_in_order(agree: Agree, irregular: int) -> None:
    trace = agree(many(20_000, irregular, irregular % 1000), 4096)
    assert isinstance(trace, Trace)
    assert trace.events > 10_000
    assert len(trace.comms) > 4096


@pytest.mark.corpus
def test_every_real_trace(corpus: Path, assert_same: AssertSame, monkeypatch: pytest.MonkeyPatch) -> None:
    # The sixteen largest hold nine tenths of the bytes, and take the reference most of its time: they come at night.
    most_bytes = 500_000 * (settings().max_examples // 25)
    files = [path for path in sorted(corpus.rglob("*.json*")) if path.is_file() and path.stat().st_size < most_bytes]
    assert len(files) > 25
    for path in files:
        monkeypatch.setenv(VARIABLE, "reference")
        reference = read(path)
        monkeypatch.setenv(VARIABLE, "fast")
        assert_same(reference, read(path))
