"""What continuous integration asks for: formats on standard output, and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from perfdoctor.testing import TraceBuilder

NAME = "baseline.json"


def write_trace(path: Path, wait_us: int = 600, device: str = "NVIDIA A100-SXM4-80GB") -> Path:
    """Three steps of 1 ms, in each of which the GPU waits for a DataLoader."""
    builder = TraceBuilder(device=device)
    for step in range(3):
        at = 1000 * step
        builder.step(at, 1000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, wait_us)
        builder.op("aten::mm", at + wait_us + 5, 20)
        work_us = 1000 - wait_us - 25
        builder.kernel(
            "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn", at + wait_us + 20, work_us, launch_us=at + wait_us + 8
        )
    return builder.write(path)


@pytest.fixture
def accepted(perfdoctor, tmp_path):
    """A trace whose only finding, of 30 % of the step, is accepted."""
    path = write_trace(tmp_path / "accepted.json", 300)
    assert perfdoctor("analyze", "-q", path, "--baseline", NAME, "--update-baseline").code == 0
    return path


def test_the_first_baseline_accepts_what_is_there(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "--baseline", NAME, "--update-baseline", "--fail-on", "info")
    assert (ended.code, ended.err) == (0, f"wrote {NAME}: 1 finding accepted\n")
    baseline = json.loads(Path(NAME).read_bytes())
    assert (baseline["schema"], baseline["device"]) == ("perfdoctor.baseline/1", "NVIDIA A100-SXM4-80GB")
    assert [(each["rule"], each["severity"], each["cost_ns"]) for each in baseline["findings"]] == [
        ("PD101", "medium", 600000)
    ]


def test_what_is_accepted_passes_and_without_the_baseline_fails(perfdoctor, accepted):
    assert perfdoctor("analyze", "-q", accepted, "--fail-on", "medium").code == 1
    for options in ([], ["--fail-on", "medium"], ["--fail-on", "info"]):
        ended = perfdoctor("analyze", "-q", accepted, "--baseline", NAME, *options)
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.usefixtures("accepted")
def test_a_finding_that_costs_a_little_more_passes(perfdoctor, tmp_path):
    dearer = write_trace(tmp_path / "dearer.json", 350)
    assert perfdoctor("analyze", "-q", dearer, "--baseline", NAME).code == 0


@pytest.mark.usefixtures("accepted")
def test_a_finding_that_is_a_fifth_dearer_fails_and_is_named(perfdoctor, tmp_path):
    dearer = write_trace(tmp_path / "dearer.json", 400)
    ended = perfdoctor("analyze", "-q", dearer, "--baseline", NAME)
    assert ended.code == 1
    assert ended.line.startswith(f"perfdoctor: --baseline {NAME}: 1 finding is new or dearer, of severity medium")
    assert "PD101" in ended.line
    assert "(33% dearer, 300 us -> 400 us)" in ended.line


def test_a_new_finding_fails_and_is_named(perfdoctor, busy, stalled):
    assert perfdoctor("analyze", "-q", busy, "--baseline", NAME, "--update-baseline").code == 0
    ended = perfdoctor("analyze", "-q", stalled, "--baseline", NAME)
    assert ended.code == 1
    assert "PD101" in ended.line
    assert "(new, medium, costs 600 us)" in ended.line
    assert perfdoctor("analyze", "-q", busy, "--baseline", NAME).code == 0


@pytest.mark.usefixtures("accepted")
def test_a_finding_that_went_away_is_said_and_leaves_with_the_next_update(perfdoctor, busy):
    ended = perfdoctor("analyze", "-q", busy, "--baseline", NAME)
    assert ended.code == 0
    assert ended.line.startswith("perfdoctor: no longer found: PD101 ")
    assert perfdoctor("analyze", "-q", busy, "--baseline", NAME, "--update-baseline").code == 0
    assert json.loads(Path(NAME).read_bytes())["findings"] == []


def test_what_was_not_judged_did_not_go_away(perfdoctor, accepted):
    ended = perfdoctor("analyze", "-q", accepted, "--baseline", NAME, "--select", "PD102,PD103")
    assert (ended.code, ended.err) == (0, "")
    perfdoctor("analyze", "-q", accepted, "--baseline", NAME, "--select", "PD102,PD103", "--update-baseline")
    assert [each["rule"] for each in json.loads(Path(NAME).read_bytes())["findings"]] == ["PD101"]


def test_an_update_of_the_same_changes_nothing(perfdoctor, accepted):
    before = Path(NAME).read_bytes()
    assert perfdoctor("analyze", "-q", accepted, "--baseline", NAME, "--update-baseline").code == 0
    assert Path(NAME).read_bytes() == before


def test_formats_show_what_the_baseline_accepts(perfdoctor, accepted):
    options = ["-o", "r.sarif", "-o", "r.xml", "-o", "r.pr.md", "--output-format", "github", "--baseline", NAME]
    ended = perfdoctor("analyze", accepted, *options)
    assert ended.code == 0
    assert "::notice title=perfdoctor::" in ended.out
    assert "::error" not in ended.out
    (result,) = json.loads(Path("r.sarif").read_bytes())["runs"][0]["results"]
    assert result["baselineState"] == "unchanged"
    assert ET.parse("r.xml").getroot().get("failures") == "0"
    assert "🟠 medium, accepted |" in Path("r.pr.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is damaged"),
        (b'{"schema": "perfdoctor.base', "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b"[]", "is not a baseline of perfdoctor"),
        (b'{"schema": "perfdoctor.report/2"}', "is not a baseline of perfdoctor"),
        (b'{"schema": "perfdoctor.baseline/2"}', "is of schema 'perfdoctor.baseline/2', and this version reads"),
        (b'{"schema": "perfdoctor.baseline/1"}', "does not hold what a baseline has to"),
    ],
)
@pytest.mark.parametrize("update", [[], ["--update-baseline"]])
def test_a_bad_baseline_is_one_sentence_and_stays_as_it_is(perfdoctor, stalled, text, words, update):
    Path(NAME).write_bytes(text)
    ended = perfdoctor("analyze", stalled, "--baseline", NAME, "-o", "r.md", *update)
    assert ended.code == 2
    assert words in ended.line
    assert ended.out == ""
    assert Path(NAME).read_bytes() == text
    assert not Path("r.md").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("cost_ns", "much"), ("cost_ns", -1), ("severity", "fatal"), ("title", None), ("line", "3"), ("cost_ns", True)],
)
def test_a_damaged_entry_is_refused(perfdoctor, accepted, name, value):
    plain = json.loads(Path(NAME).read_bytes())
    plain["findings"][0][name] = value
    Path(NAME).write_text(json.dumps(plain))
    ended = perfdoctor("analyze", accepted, "--baseline", NAME)
    assert ended.code == 2
    assert "does not hold what a baseline has to" in ended.line


@pytest.mark.usefixtures("accepted")
@pytest.mark.parametrize("update", [[], ["--update-baseline"]])
def test_a_baseline_of_another_device_is_one_sentence_and_stays_as_it_is(perfdoctor, tmp_path, update):
    before = Path(NAME).read_bytes()
    other = write_trace(tmp_path / "other.json", device="NVIDIA H100 80GB HBM3")
    ended = perfdoctor("analyze", other, "--baseline", NAME, "-o", "r.md", *update)
    assert ended.code == 2
    assert "is a baseline of a recording on NVIDIA A100-SXM4-80GB, and this one is on NVIDIA H100" in ended.line
    assert ended.out == ""
    assert Path(NAME).read_bytes() == before
    assert not Path("r.md").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--update-baseline"], "--update-baseline needs the file to write: --baseline FILE"),
        (["--baseline", "missing.json"], "missing.json does not exist: make it with --update-baseline"),
        (["--baseline", "missing/b.json", "--update-baseline"], "its folder does not exist"),
        (["--baseline", ".", "--update-baseline"], "cannot be read"),
        (["--json", "--output-format", "github"], "exclude each other"),
        (["--output-format", "csv"], "--output-format"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(perfdoctor, stalled, options, words):
    ended = perfdoctor("analyze", stalled, *options)
    assert ended.code == 2
    assert words in ended.line
    assert ended.out == ""


def test_no_baseline_is_written_where_no_rule_could_judge(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "--select", "PD401", "--baseline", NAME, "--update-baseline")
    assert ended.code == 1
    assert "was not written: no rule could run" in ended.line
    assert not Path(NAME).exists()


@pytest.mark.parametrize("name", ["text", "json", "markdown", "pr", "github", "sarif", "junit"])
def test_every_format_goes_to_standard_output(perfdoctor, stalled, name):
    suffix = {"text": ".txt", "json": ".json", "markdown": ".md", "pr": ".pr.md", "junit": ".xml"}.get(name, f".{name}")
    ended = perfdoctor("analyze", stalled, "--output-format", name, "-o", f"r{suffix}")
    assert (ended.code, ended.err) == (0, f"wrote r{suffix}\n")
    if name in ("text", "markdown", "pr", "github"):
        assert ended.out == Path(f"r{suffix}").read_text(encoding="utf-8")
    assert "PD101" in ended.out


def test_json_is_a_format_as_well(perfdoctor, stalled):
    one, other = (json.loads(perfdoctor("analyze", stalled, *o).out) for o in (["--json"], ["--output-format", "json"]))
    assert one["findings"] == other["findings"]


@pytest.fixture
def jobs(tmp_path):
    """A folder with the traces of two jobs."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name in ("a", "b"):
        write_trace(folder / f"{name}.json")
    return folder


def test_each_job_is_a_line_of_sarif_and_a_file(perfdoctor, jobs):
    ended = perfdoctor("analyze", jobs, "--output-format", "sarif", "-o", "r.xml", "-o", "r.pr.md")
    assert ended.code == 0
    assert [json.loads(line)["version"] for line in ended.out.splitlines()] == ["2.1.0", "2.1.0"]
    assert sorted(path.name for path in Path().glob("r-*")) == ["r-a.pr.md", "r-a.xml", "r-b.pr.md", "r-b.xml"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--output-format", "junit"], "--output-format junit is one document, and these are traces of 2 jobs"),
        (["--baseline", NAME, "--update-baseline"], "--baseline is of one job, and these are traces of 2"),
    ],
)
def test_what_is_of_one_job_refuses_several(perfdoctor, jobs, options, words):
    ended = perfdoctor("analyze", jobs, *options)
    assert ended.code == 2
    assert words in ended.line
    assert not Path(NAME).exists()
