"""Every real trace, through every form of output."""

from __future__ import annotations

import gzip
import re
from collections import defaultdict

import jsonschema
import numpy as np
import orjson
import pytest
from real_traces import analyze_once
from rich.cells import cell_len

import perfdoctor
from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace
from perfdoctor.reporters.chrome_trace.track_writer import PID
from perfdoctor.reporters.clean_text import clean_block
from perfdoctor.reporters.json_ import Json, load_schema
from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.terminal import Terminal

pytestmark = pytest.mark.corpus

NAMES = [
    "a100-cupti-counters.json.gz", "a100-sam-fp32.json.gz", "b200-eager.json.gz", "b300-decode-graph.json.gz",
    "cpu-only-rank34.json.gz", "gtx1650-clock-skew.json.gz", "h100-bert-small-bf16.json.gz",
    "mi300x-resnet-ddp.json.gz",
    "triton-compile.json.gz", "v100-bare-list-workers0.json.gz", "v100-legacy-workers4.json.gz", "v100-torchrec-4ranks",
]  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def report(request, corpus):
    return analyze_once(corpus / request.param)


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_real_reports_fit_eighty_columns_and_hold_no_controls(report, verbosity):
    text = Terminal(verbosity=verbosity).render(report)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ue000]", text)
    fixes = {line.strip() for f in report.findings if f.fix for line in clean_block(f.fix).split("\n")}
    long = [line.strip().removeprefix("fix: ") for line in text.split("\n") if cell_len(line) > 80]
    assert [line for line in long if line not in fixes and not line.startswith("see https://")] == []


def test_real_reports_fit_the_schema(report):
    jsonschema.validate(orjson.loads(Json().render(report)), load_schema())


def test_real_reports_make_markdown_without_open_fences(report):
    text = Markdown().render(report)
    assert len(re.findall(r"^`{3,}", text, flags=re.M)) == 2 * sum(
        bool(f.fix) for f in report.findings if f.severity != "info" and f.covered_by is None
    )


def test_an_annotated_real_trace_is_whole_nested_and_reads_back_the_same(report, tmp_path):
    trace = report.traces[-1]
    out = tmp_path / "out.json.gz"
    export_chrome_trace(report, out, rank=trace.rank if len(report.traces) > 1 else None)
    whole = orjson.loads(gzip.decompress(out.read_bytes()))
    tracks = defaultdict(list)
    for event in whole if isinstance(whole, list) else whole["traceEvents"]:
        if event.get("pid") == PID and event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for edges in tracks.values():
        times = np.array(edges)
        # Times since the epoch, read as float64 as the viewers do, keep a quarter of a microsecond.
        assert (times[1:, 0] - times[:-1, 1]).min(initial=0) > -0.6
    before, after = perfdoctor.read(trace.path), perfdoctor.read(out)
    assert before.events == after.events
    assert after.complete
    for column in ("start_ns", "end_ns", "stream", "correlation", "call"):
        assert (getattr(before.gpu, column) == getattr(after.gpu, column)).all()
    # Of a thread on which ops overlap, some are on a side lane, and no longer around their launches.
    if b"thread" not in b"".join(re.findall(rb'"[a-z]+ [^"]*\(overlapping', gzip.decompress(out.read_bytes()))):
        assert (before.gpu.op == after.gpu.op).all()
