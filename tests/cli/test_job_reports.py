"""`analyze` on traces of several jobs: a report for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_programs import Pass, serve

from perfdoctor.cli.job_reports import name_jobs, name_output
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.testing import TraceBuilder


@pytest.fixture
def folder(stalled, busy, tmp_path) -> Path:
    """A folder with a stalled and a busy program."""
    (tmp_path / "traces").mkdir()
    for path in (stalled, busy):
        path.rename(tmp_path / "traces" / path.name)
    return tmp_path / "traces"


def test_each_trace_of_a_folder_gets_a_report_with_its_name(perfdoctor, folder):
    ended = perfdoctor("analyze", folder)
    assert ended.code == 0
    assert ended.line == "perfdoctor: 2 traces of 2 jobs that have no rank in common: a report for each"
    first, second = ended.out.split("\nstalled.json\n============\n")
    assert first.startswith("\nbusy.json.gz\n============\n")
    alone = perfdoctor("analyze", folder / "stalled.json").out
    assert second == alone
    assert "PD101" in second
    assert "PD101" not in first


@pytest.mark.parametrize("has_engine", [True, False])
def test_the_host_side_of_a_server_is_a_line_beside_its_engine(perfdoctor, folder, has_engine):
    host = TraceBuilder()
    loop = host.frame("uvicorn/server.py(60): run", 0, 240_000)
    host.frame("vllm/v1/engine/async_llm.py(300): output_handler", 1000, 3000, parent=loop)
    for row in range(50):
        host.op("aten::to", 5000 + 100 * row, 20)
    host.write(folder / "api.json")
    if has_engine:
        serve([Pass()] * 4).write(folder / "engine.json")
    ended = perfdoctor("analyze", folder)
    heading = "\napi.json\n========\n"
    assert ended.code == 0
    before, after = ended.out.split(heading)
    assert after.startswith("The host side of a server (vLLM), recorded for 240 ms: no model runs in this")
    assert ("Another report here is on the one that does." in after) == has_engine
    assert ("Where the 240 ms went" in after) != has_engine
    assert ("Passes of the engine" in before) == has_engine


def test_json_is_a_report_a_line(perfdoctor, folder):
    ended = perfdoctor("analyze", "--json", folder)
    reports = [json.loads(line) for line in ended.out.splitlines()]
    assert [Path(report["traces"][0]["path"]).name for report in reports] == ["busy.json.gz", "stalled.json"]
    assert {report["schema"] for report in reports} == {"perfdoctor.report/2"}
    alone = json.loads(perfdoctor("analyze", "--json", folder / "stalled.json").out)
    assert reports[1]["findings"] == alone["findings"]


def test_files_of_o_get_the_name_of_the_trace(perfdoctor, folder):
    ended = perfdoctor("analyze", "-q", folder, "-o", "r.md", "-o", "a.json.gz")
    assert ended.code == 0
    written = sorted(path.name for path in Path().glob("*-*"))
    assert written == ["a-busy.json.gz", "a-stalled.json.gz", "r-busy.md", "r-stalled.md"]
    assert "PD101" in Path("r-stalled.md").read_text()


def test_gates_hold_for_every_job(perfdoctor, folder):
    ended = perfdoctor("analyze", "-q", folder, "--fail-on", "medium")
    assert ended.code == 1
    assert "stalled.json: --fail-on medium: " in ended.err
    assert perfdoctor("analyze", "-q", folder, "--fail-on", "medium", "--ignore", "PD1").code == 0


def test_a_trace_that_cannot_be_read_costs_its_report_alone(perfdoctor, folder):
    (folder / "broken.json").write_text("no trace")
    ended = perfdoctor("analyze", "-q", folder)
    assert ended.code == 0
    assert "perfdoctor: no report on broken.json: " in ended.err
    assert "\nstalled.json\n" in ended.out
    strict = perfdoctor("analyze", "-q", "--strict", folder)
    assert (strict.code, strict.err.splitlines()[-1]) == (2, "perfdoctor: --strict: 1 of 3 jobs have no report")
    gate = perfdoctor("analyze", "-q", "--fail-on", "high", "--ignore", "PD1", folder)
    assert gate.code == 1
    assert "could not be judged: 1 of 3 jobs have no report" in gate.err


def test_where_none_can_be_read_the_last_reason_ends_it(perfdoctor, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("no trace")
    ended = perfdoctor("analyze", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 3


def test_a_wrong_option_is_said_once_for_each_job_at_most_and_is_a_usage_error(perfdoctor, folder):
    assert perfdoctor("analyze", folder, "--select", "PD999").code == 2


def test_ranks_of_one_job_are_one_report(perfdoctor, tmp_path):
    for rank in (0, 1):
        builder = TraceBuilder(rank=rank, world_size=2)
        builder.step(0, 1000).kernel("sgemm", 10, 600).write(tmp_path / f"host_{7 - rank}.{rank}.pt.trace.json")
    ended = perfdoctor("analyze", "--json", tmp_path)
    assert [trace["rank"] for trace in json.loads(ended.out)["traces"]] == [0, 1]
    assert ended.err == ""


def test_jobs_are_named_by_what_they_do_not_share():
    def job(*paths: str) -> tuple[TraceFile, ...]:
        return tuple(TraceFile(Path(path)) for path in paths)

    assert name_jobs([job("/t/a.json"), job("/t/sub/b.json.gz")]) == ["a.json", "sub/b.json.gz"]
    assert name_jobs([job("/t/x/rank0/timing.json"), job("/t/y/rank0/timing.json")]) == ["x", "y"]
    assert name_jobs([job("/t/a_rank0.json", "/t/a_rank1.json"), job("/t/b.json")]) == ["a_rank", "b.json"]
    assert name_jobs([job("/t/h_1.5.json", "/t/h_2.5.json"), job("/t/h_1.9.json", "/t/h_2.9.json")]) == ["h", "h (2)"]


@pytest.mark.parametrize(
    ("path", "name", "file"),
    [
        ("out/r.md", "a.json.gz", "out/r-a.md"),
        ("r.json.gz", "sub/b.pt.trace.json", "r-sub-b.json.gz"),
        ("r.txt", "h (2)", "r-h-2.txt"),
    ],
)
def test_a_file_of_o_is_named_after_the_job(path, name, file):
    assert name_output(path, name) == file
