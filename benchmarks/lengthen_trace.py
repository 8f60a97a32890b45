"""Makes a long trace of a short one: repeats its events at later times, with new ids and step numbers.

    python -m benchmarks.lengthen_trace sample_traces/host-device-sync.json.gz long.json --megabytes 30

White space and notation stay as the profiler wrote them, so that a reader has the same work as with a real trace. Times
since 1970 keep their last digit. One repetition is in memory at a time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIME = re.compile(rb'("ts"\s*:\s*)"?([0-9]+)((?:\.[0-9]+)?)"?')
_ID = re.compile(rb'("(?:correlation|External id|external id|Python id|Python parent id|Ev Idx)"\s*:\s*)([0-9]+)')
_STEP = re.compile(rb"(ProfilerStep#)([0-9]+)")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_PAUSE_US = 1000  # between two repetitions
_MAX_ID = 1 << 40  # larger ones are no counters


@dataclass(frozen=True)
class Sample:
    """A short trace, and the differences between two repetitions of its events.

    Attributes:
        head: The text up to the first event.
        events: The text of the events.
        tail: The text from the closing bracket on.
        span_us: Time from the first start to the last end, plus a pause.
        ids: One more than the largest id.
        steps: One more than the largest step number.
    """

    head: bytes
    events: bytes
    tail: bytes
    span_us: int
    ids: int
    steps: int

    def repeats_for(self, size_bytes: int) -> int:
        """The number of repetitions that comes closest to this size of the long trace; at least 1."""
        return max(1, round(size_bytes / len(self.events)))

    def later_events(self, number: int, span_us: int) -> bytes:
        """The text of repetition `number`, counted from 0; ids of 0, which mean none, stay 0."""
        events = _TIME.sub(lambda m: b"%s%d%s" % (m[1], int(m[2]) + number * span_us, m[3]), self.events)
        events = _STEP.sub(lambda m: b"%s%d" % (m[1], int(m[2]) + number * self.steps), events)
        return _ID.sub(lambda m: m[0] if m[2] == b"0" else b"%s%d" % (m[1], int(m[2]) + number * self.ids), events)


def parse_sample(text: bytes) -> Sample:
    """The sample of a trace's JSON text.

    Raises:
        ValueError: The text has no list of events.
    """
    opening = _EVENTS.search(text)
    if opening is None:
        raise ValueError("the sample holds no list of events")
    start = opening.end() - 1  # of the bracket
    listed = text[start:].decode("utf-8", errors="replace")
    events, characters = json.JSONDecoder(strict=False).raw_decode(listed)
    end = start + len(listed[:characters].encode()) - 1
    inside = text[start + 1 : end]
    ids = [number for match in _ID.finditer(inside) if (number := int(match[2])) < _MAX_ID]
    steps = [int(match[2]) for match in _STEP.finditer(inside)]
    return Sample(
        head=text[: start + 1],
        events=inside,
        tail=text[end:],
        span_us=_span_us(events),
        ids=max(ids, default=0) + 1,
        steps=max(steps, default=-1) + 1,
    )


def _span_us(events: list[dict[str, Any]]) -> int:
    """Time from the first start to the last end, plus a pause. Events without a start, or with 0, do not count."""
    times_us = [(float(event["ts"]), float(event.get("dur") or 0)) for event in events if event.get("ts")]
    starts_us, ends_us = [start for start, _ in times_us], [start + dur for start, dur in times_us]
    return math.ceil(max(ends_us, default=0) - min(starts_us, default=0)) + _PAUSE_US


def write_repeated(sample: Sample, out: Path, repeats: int, span_us: int | None = None) -> None:
    """Write the events of a sample `repeats` times; a name that ends in `.gz` is compressed.

    Args:
        sample: The short trace.
        out: The file to write.
        repeats: The number of repetitions.
        span_us: Time from one repetition to the next; None for that of the sample.
    """
    with (gzip.open if out.suffix == ".gz" else open)(out, "wb") as file:
        file.write(sample.head)
        for number in range(repeats):
            separator = b"," if number else b""
            file.write(separator + sample.later_events(number, sample.span_us if span_us is None else span_us))
        file.write(sample.tail)


def lengthen_trace(path: Path, out: Path, size_bytes: int) -> int:
    """Write a long trace of about `size_bytes` of text; returns the number of repetitions."""
    data = path.read_bytes()
    sample = parse_sample(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    repeats = sample.repeats_for(size_bytes)
    write_repeated(sample, out, repeats)
    return repeats


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path, help="a trace, .json or .json.gz")
    parser.add_argument("out", type=Path, help="the file to write, .json or .json.gz")
    parser.add_argument("--megabytes", type=int, default=100, help="its size before compression")
    options = parser.parse_args()
    repeats = lengthen_trace(options.sample, options.out, options.megabytes * 1_000_000)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB, the sample {repeats} times")


if __name__ == "__main__":
    main()
