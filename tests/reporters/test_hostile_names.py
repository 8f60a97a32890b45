"""Names that are commands to a CI service, or hold letters that nobody sees, in every text that is made of a trace."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.reporters.write_comparison import render_comparison
from perfdoctor.reporters.write_report import render_report
from perfdoctor.reporters.write_table import render_table_as

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "host-device-sync.json.gz"
NAMED = ("kernel", "gpu_memcpy", "gpu_user_annotation", "python_function")
INVISIBLE = "\u3164\u115f\u180e\x85\x9b\N{TAG LATIN CAPITAL LETTER A}"
COMMANDS = "\r\n::warning::boo\u2028::notice::x ##[error]z ##vso[a]b ##teamcity[c"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") in NAMED:
            event["name"] = f"::error file=x::{INVISIBLE}{event['name']}{COMMANDS}"
    for device in trace["deviceProperties"]:
        device["name"] = f"::error::{INVISIBLE}{device['name']}"
    path = tmp_path_factory.mktemp("hostile") / "trace.json"
    path.write_text(json.dumps(trace))
    return path


def test_no_text_has_a_command_or_a_letter_that_nobody_sees(hostile: Path) -> None:
    report = perfdoctor.analyze(hostile)
    comparison = perfdoctor.compare(hostile, SAMPLE)
    texts = {f"report{suffix}": render_report(report, suffix) for suffix in (".txt", ".md", ".pr.md")}
    texts |= {f"comparison{suffix}": render_comparison(comparison, suffix) for suffix in (".txt", ".md")}
    for what in ("kernels", "gemms", "copies", "gaps", "lines", "annotations"):
        texts |= {f"{what}{suffix}": render_table_as(report.table(what), suffix) for suffix in (".txt", ".md")}
    assert sum("boo" in text for text in texts.values()) >= 3, "the names are in the texts"
    for name, text in texts.items():
        lines = re.split(r"\r\n|[\r\n]", text)
        assert not [line for line in lines if re.match(r"\s*::", line)], name
        assert not re.search(r"##\w*\[", text), name
        assert not re.search("[\u3164\u115f\u180e\u2028\x80-\x9f\U000e0000-\U000e0fff]", text), name
