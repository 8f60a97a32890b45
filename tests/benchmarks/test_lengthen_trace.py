"""A lengthened trace holds the sample several times, at later times, with other ids and step numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lengthen_trace import lengthen_trace, parse_sample, write_repeated
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import parse, read


def short_trace() -> TraceBuilder:
    """Two steps, the second with a kernel that ends after everything else."""
    trace = TraceBuilder()
    for step in range(2):
        at_us = 1000 + 100 * step
        trace.step(at_us, 90, number=7 + step).op("aten::mm", at_us + 1.5, 3)
        trace.kernel("gemm", at_us + 10, 150, launch_us=at_us + 2)
    return trace.kernel("launched-before-the-recording", 1000, 1)


def test_events_are_repeated_with_their_links_and_steps_go_on(tmp_path: Path) -> None:
    sample = parse_sample(short_trace().to_bytes())
    write_repeated(sample, tmp_path / "long.json", 3)
    short, long = short_trace().trace(), read(tmp_path / "long.json")
    assert long.events == 3 * short.events
    launched = long.gpu.call >= 0
    assert launched.sum() == 6
    assert np.unique(long.gpu.call[launched]).size == 6
    events = json.loads((tmp_path / "long.json").read_bytes())["traceEvents"]
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{number}" for number in (7, 8, 16, 17, 25, 26)]


def test_a_repetition_begins_after_the_last_end_of_the_one_before(tmp_path: Path) -> None:
    sample = parse_sample(short_trace().to_bytes())
    assert sample.span_us == 260 + 1000
    write_repeated(sample, tmp_path / "long.json", 2)
    starts_ns = read(tmp_path / "long.json").ops.start_ns
    assert (starts_ns[2:] - starts_ns[:2]).tolist() == [1_260_000, 1_260_000]


def test_the_text_stays_as_it_is_but_for_times_ids_and_step_numbers() -> None:
    text = b'{"a": 1,\t"traceEvents" : [ {"ph":"X", "name": "x", "ts": 1700000000000000.123,"dur":1.5} ], "b": 2}'
    sample = parse_sample(text)
    assert sample.head + sample.events + sample.tail == text
    assert sample.later_events(0, 100) == sample.events
    assert sample.later_events(2, 100) == sample.events.replace(b"00000.123", b"00200.123")


def test_ids_of_0_mean_none_and_stay() -> None:
    events = parse_sample(b'[{"ts": 5, "args": {"correlation": 0, "External id": 3}}]').later_events(1, 10)
    assert events == b'{"ts": 15, "args": {"correlation": 0, "External id": 7}}'


@pytest.mark.parametrize("name", ["long.json", "long.json.gz"])
def test_the_size_is_about_the_one_that_was_asked_for(tmp_path: Path, name: str) -> None:
    short_trace().write(tmp_path / "short.json.gz")
    repeats = lengthen_trace(tmp_path / "short.json.gz", tmp_path / name, 100_000)
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert 90_000 < len(text) < 110_000
    assert parse(text, name).events == repeats * short_trace().trace().events


def test_without_a_list_of_events_there_is_no_sample() -> None:
    with pytest.raises(ValueError, match="no list of events"):
        parse_sample(b'{"schemaVersion": 1}')
