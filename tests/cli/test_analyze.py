from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest

from perfdoctor.reporters.json_ import load_schema
from perfdoctor.testing import TraceBuilder


def test_a_stalled_trace_gets_its_report_on_stdout(perfdoctor, stalled):
    ended = perfdoctor("analyze", stalled)
    assert ended.code == 0
    assert ended.err == ""
    assert ended.out.startswith("Your step takes 1.00 ms on an NVIDIA A100")
    assert "PD101" in ended.out
    assert "\x1b" not in ended.out


def test_in_a_busy_trace_nothing_is_found(perfdoctor, busy):
    ended = perfdoctor("analyze", busy)
    assert (ended.code, ended.err) == (0, "")
    assert "Nothing was found" in ended.out


def test_json_is_pure_and_fits_the_schema(perfdoctor, stalled):
    ended = perfdoctor("analyze", "--json", stalled)
    report = json.loads(ended.out)
    jsonschema.validate(report, load_schema())
    assert [f["rule"] for f in report["findings"]] == ["PD101"]
    assert ended.err == ""


def test_quiet_and_verbose_differ_in_length(perfdoctor, stalled):
    quiet, usual, verbose = (perfdoctor("analyze", stalled, *o).out for o in (["-q"], [], ["-v"]))
    assert len(quiet.splitlines()) < len(usual.splitlines()) < len(verbose.splitlines())


def test_several_outputs_are_written_at_once(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "-o", "r.json", "-o", "r.md", "-o", "r.txt", "-o", "a.json.gz")
    assert ended.code == 0
    assert ended.err == "wrote r.json\nwrote r.md\nwrote r.txt\nwrote a.json.gz\n"
    assert json.loads(Path("r.json").read_bytes())["schema"] == "perfdoctor.report/2"
    assert "PD101" in Path("r.md").read_text(encoding="utf-8")
    events = json.loads(gzip.decompress(Path("a.json.gz").read_bytes()))["traceEvents"]
    assert {"steps", "account"} <= {e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_selected_rules_are_the_only_ones_to_judge(perfdoctor, stalled):
    outcomes = json.loads(perfdoctor("analyze", "--json", stalled, "--select", "pd1,PD402", "--ignore", "PD101").out)[
        "outcomes"
    ]
    assert {o["rule"][:3] for o in outcomes} == {"PD1", "PD4"}
    assert "PD101" not in {o["rule"] for o in outcomes}


def test_steps_and_device_can_be_named(perfdoctor, stalled):
    report = json.loads(perfdoctor("analyze", "--json", stalled, "--steps", "1:", "--device", "H100").out)
    assert report["steps"]["count"] == 2
    assert "H100" in report["traces"][0]["device"]


def test_a_threshold_on_the_command_line_wins_over_the_file(perfdoctor, stalled):
    Path("pyproject.toml").write_text("[tool.perfdoctor.PD101]\nmin_share = 0.9\n")
    assert "PD101" not in perfdoctor("analyze", "-q", stalled).out
    assert "PD101" in perfdoctor("analyze", "-q", stalled, "--set", "PD101.min_share=0.1").out


def test_rules_of_the_file_hold_until_the_command_line_names_others(perfdoctor, stalled):
    Path("pyproject.toml").write_text('[tool.perfdoctor]\nselect = ["PD2"]\n')
    assert "PD101" not in perfdoctor("analyze", "-q", stalled).out
    assert "PD101" in perfdoctor("analyze", "-q", stalled, "--select", "PD101").out


@pytest.mark.parametrize("level", ["medium", "low", "info"])
def test_the_gate_closes_on_a_severe_finding(perfdoctor, stalled, level):
    ended = perfdoctor("analyze", "-q", stalled, "--fail-on", level)
    assert ended.code == 1
    assert "PD101" in ended.line
    assert ended.out


def test_the_gate_of_high_findings_stays_open_for_what_was_not_replayed(perfdoctor, stalled):
    assert perfdoctor("analyze", "-q", stalled, "--fail-on", "high").code == 0


@pytest.mark.parametrize("level", ["high", "info"])
def test_the_gate_stays_open_for_a_busy_trace(perfdoctor, busy, level):
    assert perfdoctor("analyze", "-q", busy, "--fail-on", level).code == 0


def test_the_gate_stays_open_below_its_level(perfdoctor, stalled):
    assert perfdoctor("analyze", "-q", stalled, "--select", "PD402", "--fail-on", "high").code == 0


def test_a_gate_that_no_rule_could_judge_is_not_passed(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "--select", "PD401", "--fail-on", "high")
    assert ended.code == 1
    assert "could not be judged: no rule could run" in ended.line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dask", "tcp://host:8786", "--jobs", "2"], "--jobs and --dask exclude each other"),
        (["--jobs", "0"], "jobs cannot be 0"),
        (["-o", "r.pdf"], "must be one of .html, .json, .md, .pr.md, .sarif, .xml, .github, .txt, .json.gz"),
        (["-o", "missing/r.md"], "its folder does not exist"),
        (["--select", "XX9"], "no rule is called 'XX9'"),
        (["--set", "PD101.min_share"], "must be RULE.name=number"),
        (["--set", "PD101.min_share=much"], "must be RULE.name=number"),
        (["--set", "PD101.min_shore=1"], "PD101 has no setting 'min_shore'"),
        (["--set", "XX777.x=1"], "the rule 'XX777'"),
        (["--set", "account.min_roof_share=40"], "a share from 0 to 1"),
        (["--set", "account.min_share=0.1"], "it has min_roof_share"),
        (["--steps", "5:2"], "--steps 5:2 must be A:B"),
        (["--steps", "x"], "--steps x must be A:B"),
        (["--steps", "7:9"], "no steps are left"),
        (["--device", "Abacus 3000"], "'Abacus 3000' is not in the table of devices; add it to "),
        (["--device", "RTX4090"], "not in the table of devices; did you mean 'RTX 4090' or 'RTX 4090 D'"),
        (["-q", "-v"], "exclude each other"),
        (["--fail-on", "fatal"], "--fail-on"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(perfdoctor, stalled, options, words):
    ended = perfdoctor("analyze", stalled, *options)
    assert ended.code == 2
    assert words in ended.line
    assert ended.out == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.perfdoctor]\nselect = 3\n", "must be a list of rule ids"),
        ("[tool.perfdoctor]\nspeed = 3\n", "has no setting 'speed'"),
        ("[tool.perfdoctor.PD101]\nmin_share = 'x'\n", "must be a number"),
        ("[tool.perfdoctor.PD101]\nmin_share = true\n", "must be a number"),
        ("[tool]\nperfdoctor = 3\n", "must be a table"),
        ("[tool.perfdoctor.XX777]\nx = 1\n", "the rule 'XX777'"),
        ("[[", "cannot be read as settings"),
    ],
)
def test_a_wrong_settings_file_is_one_sentence_and_exit_code_2(perfdoctor, stalled, text, words):
    Path("pyproject.toml").write_text(text)
    ended = perfdoctor("analyze", stalled)
    assert ended.code == 2
    assert words in ended.line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ignore = ["PD101", "PD102"]', "pyproject.toml count: PD101, PD102 are off"),
        ("[tool.perfdoctor.PD101]\nmin_share = 0.9", "pyproject.toml count: PD101.min_share = 0.9"),
        ('select = ["PD2"]', "more are off"),
        ("", None),
    ],
)
def test_settings_of_a_file_are_named_in_the_report_and_by_the_gate(perfdoctor, stalled, text, words):
    Path("pyproject.toml").write_text(f"[tool.perfdoctor]\n{text}\n")
    ended = perfdoctor("analyze", stalled, "--fail-on", "high", "--json", "-o", "report.md", "-o", "report.txt")
    warnings = " ".join(json.loads(ended.out)["traces"][0]["warnings"])
    page, plain = (Path(name).read_text().replace("\n", " ") for name in ("report.md", "report.txt"))
    for shown in (warnings, ended.err, page):
        assert (words or "settings of") in shown if words else "settings of" not in shown
    assert ("settings of" in plain) == (words is not None)


def test_options_alone_are_no_settings_of_a_file(perfdoctor, stalled):
    Path("pyproject.toml").write_text('[tool.perfdoctor]\nignore = ["PD101"]\n')
    assert "settings of" not in perfdoctor("analyze", stalled, "--ignore", "PD102", "--fail-on", "high").err


def test_a_pyproject_without_our_settings_is_ignored(perfdoctor, stalled):
    Path("pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert perfdoctor("analyze", "-q", stalled).code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"hello", "not"),
        (b'{"a": 1}', "no trace"),
        (b"\x1f\x8b\x08\x00", "cut"),
    ],
)
def test_bad_input_is_one_sentence_with_the_path_and_exit_code_2(perfdoctor, content, words):
    if content is not None:
        Path("bad.json").write_bytes(content)
    ended = perfdoctor("analyze", "bad.json")
    assert ended.code == 2
    assert "bad.json" in ended.line
    assert words in ended.line
    assert ended.out == ""


def test_a_folder_without_traces_is_refused(perfdoctor):
    Path("empty").mkdir()
    ended = perfdoctor("analyze", "empty")
    assert ended.code == 2
    assert "empty" in ended.line


@pytest.mark.nonroot
def test_a_report_is_not_written_where_nobody_may_write(perfdoctor, stalled, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    ended = perfdoctor("analyze", stalled, "-o", "closed/r.md")
    assert ended.code == 2
    assert "closed/r.md cannot be written (Permission denied)" in ended.err


@pytest.mark.nonroot
def test_a_program_is_not_run_where_it_could_not_be_recorded(perfdoctor, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "train.py").write_text("print('has run')")
    ended = perfdoctor("run", "--out", "closed/capture", "train.py")
    assert ended.code == 2
    assert "closed/capture" in ended.line
    assert "ermission denied" in ended.line
    assert "has run" not in ended.out


@pytest.mark.nonroot
def test_a_trace_without_permission_is_refused(perfdoctor, stalled):
    stalled.chmod(0)
    ended = perfdoctor("analyze", stalled)
    assert ended.code == 2
    assert "permission" in ended.line


def test_a_cut_trace_is_analysed_and_marked(perfdoctor, stalled):
    text = stalled.read_bytes()
    stalled.write_bytes(text[: int(0.9 * len(text))])
    ended = perfdoctor("analyze", stalled)
    assert ended.code == 0
    assert "! the trace is incomplete (cut short)" in ended.out
    assert json.loads(perfdoctor("analyze", "--json", stalled).out)["traces"][0]["complete"] is False


def test_a_name_in_a_trace_never_becomes_markup(perfdoctor, tmp_path):
    from perfdoctor.testing import TraceBuilder

    evil = "[bold red]\x1b[31m</td><script>|```\n"
    builder = TraceBuilder(device=f"Evil {evil}").step(0, 1000)
    builder.op(evil, 5, 10).kernel(f"{evil}sgemm", 20, 900, launch_us=8)
    path = builder.write(tmp_path / "evil.json")
    out = perfdoctor("analyze", "-v", path).out
    assert "Evil [bold red]</td><script>|```" in out
    assert "\x1b" not in out


@pytest.fixture
def ranks(tmp_path):
    """Two ranks, of which the second is no trace."""
    TraceBuilder(rank=0).step(0, 1000).kernel("k", 5, 990).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text("no trace")
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_missing_rank_is_named_and_no_error(perfdoctor, ranks, jobs):
    ended = perfdoctor("analyze", ranks, "--jobs", jobs, "-o", "r.md")
    assert ended.code == 0
    assert ended.out.count("rank 1: this rank is missing from the analysis") == 1
    assert "rank 1: this rank is missing from the analysis" in (ranks / "r.md").read_text()


def test_strict_makes_a_missing_rank_an_error_after_the_report(perfdoctor, ranks):
    ended = perfdoctor("analyze", ranks, "--strict", "--json")
    assert ended.code == 2
    report = json.loads(ended.out)
    jsonschema.validate(report, load_schema())
    assert [trace["complete"] for trace in report["traces"]] == [True, False]
    assert "--strict: " in ended.line
    assert "rank1.json: this rank is missing from the analysis" in ended.line


def test_strict_passes_where_all_ranks_are_there(perfdoctor, ranks):
    (ranks / "rank1.json").unlink()
    assert perfdoctor("analyze", ranks, "--strict").code == 0


def test_strict_fails_for_ranks_without_a_trace(perfdoctor, tmp_path):
    for rank in (0, 5):
        trace = TraceBuilder(rank=rank, world_size=6).step(0, 1000).kernel("k", 5, 990)
        trace.write(tmp_path / f"rank{rank}.json")
    ended = perfdoctor("analyze", tmp_path, "--strict", "-q")
    assert ended.code == 2
    assert "of the job's 6 ranks there is no trace of 1-4" in ended.err
    assert perfdoctor("analyze", tmp_path, "--strict", "--rank", "5").code == 0


def without_seconds(text: str) -> str:
    """The long form without how long each rule took."""
    assert "Rules" in text
    return re.sub(r"[\d.]+ s$", "", text, flags=re.M)


def test_a_text_file_is_in_the_long_form_with_v(perfdoctor, stalled, tmp_path):
    long, usual = tmp_path / "long.txt", tmp_path / "usual.txt"
    assert perfdoctor("analyze", stalled, "-v", "-o", long).code == perfdoctor("analyze", stalled, "-o", usual).code
    assert without_seconds(perfdoctor("analyze", stalled, "-v").out) == without_seconds(long.read_text())
    assert perfdoctor("analyze", stalled).out == usual.read_text()
    perfdoctor("analyze", stalled, "-q", "-o", usual)
    assert perfdoctor("analyze", stalled).out == usual.read_text()


def test_the_share_of_the_roof_is_a_setting(perfdoctor, tmp_path):
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132).op(
        *("aten::add", 0, 10), shapes=[[1024, 1024], [1024, 1024], []], types=["float", "float", "Scalar"]
    )
    path = trace.kernel("vectorized_elementwise_kernel", 20, 9, launch_us=1).write(tmp_path / "x.json")

    def latency_ns(*options: str) -> int:
        return json.loads(perfdoctor("analyze", str(path), "--json", *options).out)["account"][0]["detail"]["latency"]

    assert latency_ns() == 0  # 12.6 MB in 9 us: 46 % of what the memory attains
    assert latency_ns("--set", "account.min_roof_share=0.5") == 9_000


def test_devices_of_the_users_own_file_can_be_named(perfdoctor, stalled, tmp_path, monkeypatch):
    own = tmp_path / "mine.csv"
    own.write_text("name,vendor,source,fp16_tflops\nACME G1,nvidia,measured here,100\n")
    monkeypatch.setenv("PERFDOCTOR_DEVICES", str(own))
    ended = perfdoctor("analyze", stalled, "--device", "ACME G1", "--json")

    assert ended.code == 0
    assert '"device": "ACME G1"' in ended.out


@pytest.mark.process
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_bad_file_of_devices_is_one_sentence_and_exit_code_2(perfdoctor, stalled, tmp_path, monkeypatch, jobs):
    own = tmp_path / "mine.csv"
    own.write_text("name,vendor,source,fp16_tflops\nACME G1,nvidia,measured here,fast\n")
    monkeypatch.setenv("PERFDOCTOR_DEVICES", str(own))
    ended = perfdoctor("analyze", stalled, "--jobs", jobs)

    assert ended.code == 2
    assert "mine.csv, line 2: fp16_tflops cannot be 'fast'; it must be a positive number" in ended.line
    assert ended.out == ""
