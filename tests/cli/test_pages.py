"""The page on the command line and from Python: with its charts, in a browser where there is one, and without them."""

from __future__ import annotations

import json
import re
import shutil
import webbrowser
from pathlib import Path
from typing import Any

import pytest

import perfdoctor as package
from perfdoctor.reporters.html import html
from perfdoctor.testing import TraceBuilder


def data_of(page: Path) -> dict[str, Any]:
    """What the script of a page draws."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The addresses that a browser was asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    return addresses


@pytest.fixture
def no_display(monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(webbrowser, "open", lambda _: pytest.fail("a browser of the terminal would start"))


def test_a_page_has_charts_and_tables(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "-o", "r.html")
    assert (ended.code, ended.err) == (0, "wrote r.html\n")
    data = data_of(Path("r.html"))
    assert [track["name"] for track in data["timeline"]["tracks"]] == [
        "phases",
        "idle gaps",
        "stream 7",
        "steps of the CPU",
        "thread 1000, which launches",
    ]
    assert data["flames"]["n"] >= 2
    assert {'id="table-kernels"', 'id="table-ops"'} <= set(re.findall(r'id="table-\w+"', Path("r.html").read_text()))
    assert data["notes"] == []


def test_a_page_is_opened_on_request(perfdoctor, stalled, opened):
    ended = perfdoctor("analyze", "-q", stalled, "-o", "r.md", "-o", "r.html", "--open")
    assert ended.code == 0
    assert opened == [Path("r.html").absolute().as_uri()]


@pytest.mark.usefixtures("no_display")
def test_without_a_display_a_line_says_where_the_page_is(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "-o", "r.html", "--open")
    assert ended.code == 0
    assert ended.err == "wrote r.html\nperfdoctor: there is no browser to open here; the page is r.html\n"


def test_without_a_page_there_is_nothing_to_open(perfdoctor, stalled):
    ended = perfdoctor("analyze", "-q", stalled, "-o", "r.md", "--open")
    assert ended.code == 2
    assert "give -o report.html" in ended.line
    assert not Path("r.md").exists()


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_run_leaves_a_page_beside_its_report_and_opens_it(perfdoctor, training, short, opened):
    pytest.importorskip("torch")
    ended = perfdoctor("run", "--out", "capture", "--open", *short, training)
    assert ended.code == 0
    assert "perfdoctor: with charts and tables, as a page: capture/report.html\n" in ended.err
    assert opened == [Path("capture/report.html").absolute().as_uri()]
    data = data_of(Path("capture/report.html"))
    assert [track["kind"] for track in data["timeline"]["tracks"]][:4] == ["phases", "gaps", "phases", "thread"]
    assert len(data["steps"]["recorded_ns"]) == 4
    assert len(data["steps"]["unprofiled_ns"]) >= 2
    assert data["roofline"] is None


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_page_that_fails_costs_the_run_a_line(perfdoctor, training, short, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(html, "page_data", lambda _: 1 / 0)
    ended = perfdoctor("run", "--out", "capture", *short, training)
    assert ended.code == 0
    assert "PD101" in ended.out
    assert "perfdoctor: report.html was not written: ZeroDivisionError: division by zero\n" in ended.err
    assert not Path("capture/report.html").exists()


def test_a_report_without_a_report_cannot_be_opened(perfdoctor, training):
    ended = perfdoctor("run", "--no-report", "--open", training)
    assert ended.code == 2
    assert "--open needs a report" in ended.line


def test_the_python_interface_reads_the_trace_again_for_a_page(stalled, tmp_path):
    report = package.analyze(stalled)
    assert report.charts is None
    report.save(tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert data["timeline"]["step"] == 2
    assert data["tables"]


def test_a_page_without_its_trace_has_the_rest(stalled, tmp_path):
    copy = tmp_path / "gone.json"
    shutil.copy(stalled, copy)
    report = package.analyze(copy)
    copy.unlink()
    report.save(tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert (data["timeline"], data["flames"], data["tables"]) == (None, None, [])
    assert data["account"][0]["window_ns"] == 3_000_000
    assert "PD101" in (tmp_path / "r.html").read_text()


def write_rank(folder: Path, rank: int, step_us: int) -> None:
    trace = TraceBuilder(rank=rank, world_size=3)
    for at in range(0, 3 * step_us, step_us):
        trace.step(at, step_us).kernel("ampere_sgemm_128x64_nn", at + 20, step_us - 100, launch_us=at + 8)
    trace.write(folder / f"rank{rank}.json")


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_of_several_ranks_the_one_with_the_longest_step_is_drawn(perfdoctor, tmp_path, jobs):
    (tmp_path / "ranks").mkdir()
    for rank, step_us in enumerate((1000, 1500, 1200)):
        write_rank(tmp_path / "ranks", rank, step_us)
    ended = perfdoctor("analyze", "-q", "ranks", "--jobs", jobs, "-o", "r.html")
    assert ended.code == 0
    data = data_of(Path("r.html"))
    assert (data["rank"], data["timeline"]["span_ns"]) == (1, 1_500_000)
    assert data["ranks"]["ranks"] == [0, 1, 2]
    assert data["ranks"]["step_ns"][2] == [1_200_000] * 3
    package.analyze(tmp_path / "ranks").save("again.html")
    assert data_of(Path("again.html"))["timeline"] == data["timeline"]
