"""Reading alone, in this process, against other readers of trace files."""

from __future__ import annotations

import gzip

import orjson
import pytest

import perfdoctor


@pytest.mark.parametrize("form", ["raw", "packed"])
def test_read_against_orjson(compare, traces, form):
    """`perfdoctor.read` against orjson, which makes a dict of every event."""
    path = getattr(traces, form)
    decompress = gzip.decompress if form == "packed" else bytes
    compare(
        f"read / orjson.loads, {path.name}, {path.parent.name}",
        lambda: perfdoctor.read(path),
        lambda: orjson.loads(decompress(path.read_bytes())),
    )


@pytest.mark.filterwarnings("ignore")  # warnings of HTA, and of pandas about it
def test_read_against_hta(compare, traces):
    """`perfdoctor.read` against the parser of HolisticTraceAnalysis, where that is installed."""
    hta = pytest.importorskip("hta.common.trace", reason="HolisticTraceAnalysis is not installed")
    if traces.raw.read_bytes()[:1] == b"[":
        pytest.skip("HolisticTraceAnalysis reads no bare list of events")
    compare(
        f"read / HTA, {traces.packed.name}, {traces.packed.parent.name}",
        lambda: perfdoctor.read(traces.packed),
        lambda: hta.parse_trace_file(str(traces.packed)),
        rounds=3,
    )
