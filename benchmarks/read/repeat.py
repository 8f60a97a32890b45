"""Build a long trace by repeating a short one: later times, new ids and step numbers, the text otherwise as it stands.

`benchmarks/make_trace.py` parses and writes anew; here white space and notation stay what the profiler wrote, nothing
of the long trace is held in memory, and a time of the epoch keeps its last digit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path

_TIME = re.compile(rb'("ts"\s*:\s*)"?([0-9]+)((?:\.[0-9]+)?)"?')
_ID = re.compile(rb'("(?:correlation|External id|external id|Python id|Python parent id|Ev Idx)"\s*:\s*)([0-9]+)')
_STEP = re.compile(rb"(ProfilerStep#)([0-9]+)")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')


def split(text: bytes) -> tuple[bytes, bytes, bytes]:
    """The text up to the first event, the events, and the rest from the closing bracket on."""
    opening = _EVENTS.search(text)
    if opening is None:
        raise SystemExit("the sample holds no list of events")
    events = text[opening.end() - 1 :].decode("utf-8", errors="replace")
    length = len(events[: json.JSONDecoder(strict=False).raw_decode(events)[1]].encode())
    end = opening.end() - 1 + length - 1
    return text[: opening.end()], text[opening.end() : end], text[end:]


def shifted(events: bytes, time_us: int, ids: int, steps: int) -> bytes:
    """The events, later by `time_us`, with larger ids and step numbers; ids of 0, which mean none, stay."""
    moved = _TIME.sub(lambda m: b"%s%d%s" % (m[1], int(m[2]) + time_us, m[3]), events)
    moved = _STEP.sub(lambda m: b"%s%d" % (m[1], int(m[2]) + steps), moved)
    return _ID.sub(lambda m: b"%s%d" % (m[1], int(m[2]) + ids) if m[2] != b"0" else m[0], moved)


def repeat(sample: Path, out: Path, megabytes: int) -> int:
    """Write the sample's events over and over until the file has that size; returns how often."""
    data = sample.read_bytes()
    head, events, tail = split(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    times = [int(match[2]) for match in _TIME.finditer(events) if int(match[2])]
    ids = [int(match[2]) for match in _ID.finditer(events) if int(match[2]) < 1 << 40]
    span, most = max(times) - min(times) + 1000, max(ids, default=0) + 1
    steps = 1 + max((int(match[2]) for match in _STEP.finditer(events)), default=0)
    rounds = max(1, round(megabytes * 1_000_000 / len(events)))
    opener = gzip.open if out.suffix == ".gz" else open
    with opener(out, "wb") as file:
        file.write(head)
        for number in range(rounds):
            file.write((b"," if number else b"") + shifted(events, number * span, number * most, number * steps))
        file.write(tail)
    return rounds


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a trace, .json or .json.gz")
    parser.add_argument("out", type=Path, help="the file to write, .json or .json.gz")
    parser.add_argument("--megabytes", type=int, default=100, help="its size before compression")
    given = parser.parse_args()
    rounds = repeat(given.sample, given.out, given.megabytes)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.0f} MB, the sample {rounds} times")


if __name__ == "__main__":
    main()
