"""Mutated traces: both readers agree or both refuse, and nothing crashes or hangs.

Runs for 1 s and 30 cases, or as long as PERFDOCTOR_FUZZ_SECONDS says. A failure names the seed of its case, which
PERFDOCTOR_FUZZ_SEED repeats alone.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse

SECONDS = float(os.environ.get("PERFDOCTOR_FUZZ_SECONDS", "1"))
CASES = 30
SEED = os.environ.get("PERFDOCTOR_FUZZ_SEED")

PIECES = [
    *(b'{ } [ ] , : " \\ \\" \\u0041 \\ud800 \\u12 - . 0 00 1e5 1e999 null true NaN inf -nan(ind) Infinity //'.split()),
    *(b'"ts": "dur": "ph":"B" "ph":"E" "cat":"kernel" "args":{} "args":{"stream":"7"} "pid":"a" "name":""'.split()),
    *[b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b" ", b"\x0b", b"]}", b"},{", b"9" * 30],
]


def seeds() -> list[bytes]:
    """Small traces written in several ways."""
    b = TraceBuilder(rank=2).step(0, 100).op("aten::mm", 1.125, 5, shapes=[[2, 3]], types=["float"])
    b.kernel("void k<int>(float*)", 10, 50, launch_us=3, grid=[1, 1, 1]).memcpy("HtoD", 70, 5, launch_us=60)
    b.sync("Stream Sync", 80, 5, stream=7).event(ph="B", cat="cpu_op", name="b", ts=1, pid=1, tid=1)
    b.event(ph="E", ts=2, pid=1, tid=1).frame("a.py(3): f", 0, 9)
    whole = b.to_dict()
    bare = whole["traceEvents"] * 3
    return [b.to_bytes(), *(json.dumps(each, indent=indent).encode() for each in (whole, bare) for indent in (None, 2))]


def mutated(text: bytes, choose: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(choose.choice([0, 1, 1, 2, 3, 10])):
        place = choose.randrange(len(data) + 1)
        kind = choose.randrange(5)
        if kind == 0:
            data[place : place + choose.randrange(4)] = choose.choice(PIECES)
        elif kind == 1:
            del data[place : place + choose.choice([1, 1, 2, 20])]
        elif kind == 2 and place < len(data):
            data[place] = choose.randrange(256)
        elif kind == 3:
            other = choose.randrange(len(data) + 1)
            data[place:place] = data[other : other + choose.randrange(60)]
        elif choose.random() < 0.3:
            del data[place:]
    return bytes(data)


def outcome(text: bytes, block: int | None) -> Trace | str:
    try:
        return parse(text, "x", block=block)
    except TraceError as error:
        return str(error)


def one_case(seed: int, texts: list[bytes], assert_same: Callable[[Trace, Trace], None]) -> bool:
    """Whether the text was read at all."""
    choose = random.Random(seed)
    text = mutated(choose.choice(texts), choose)
    reference = outcome(text, None)
    fast = outcome(text, choose.choice([1, 5, 64, 300, 5000]))
    try:
        if isinstance(reference, str) or isinstance(fast, str):
            assert fast == reference
        else:
            assert_same(reference, fast)
    except AssertionError as error:
        raise AssertionError(f"PERFDOCTOR_FUZZ_SEED={seed}: {error}\n{text!r}") from None
    return not isinstance(reference, str)


def test_mutated_traces(assert_same: Callable[[Trace, Trace], None]) -> None:
    texts = seeds()
    if SEED is not None:
        one_case(int(SEED), texts, assert_same)
        return
    until = time.monotonic() + 0.7 * SECONDS
    seed = first = random.SystemRandom().randrange(1 << 40)
    read = 0
    while seed < first + CASES or time.monotonic() < until:
        read += one_case(seed, texts, assert_same)
        seed += 1
    assert read > (seed - first) // 10


@pytest.mark.corpus
def test_mutated_real_traces(corpus: Path, assert_same: Callable[[Trace, Trace], None]) -> None:
    import gzip

    names = ["a100-event-sync.json.gz", "mi250-minitoy.json.gz", "triton-compile.json.gz"]
    texts = [gzip.decompress((corpus / name).read_bytes()) for name in names]
    until = time.monotonic() + 0.3 * SECONDS
    seed = first = random.SystemRandom().randrange(1 << 40)
    while seed < first + CASES or time.monotonic() < until:
        one_case(seed, texts, assert_same)
        seed += 1
