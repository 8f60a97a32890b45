"""The page of benchmarks/history.py, drawn of made histories; and one measured line, of a trace that takes no time."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import history
from benchmarks.history import Run
from benchmarks.measure import PERFDOCTOR

READ, START = "read a trace / orjson.loads", "perfdoctor --help / pip --version"


def run(number: int, machine: str = "A", **ratios: float) -> Run:
    names = {"read": READ, "start": START}
    return Run(f"2026-11-{number:02}", f"c{number}", "0.2.0", machine, {names[key]: v for key, v in ratios.items()})


def write(folder: Path, *runs: Run) -> Path:
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in runs), encoding="utf-8")
    return path


def draw(folder: Path, *runs: Run) -> str:
    page = folder / "history.html"
    assert history.main(["render", str(write(folder, *runs)), str(page)]) == 0
    return page.read_text(encoding="utf-8")


def test_a_page_has_a_chart_for_each_ratio_and_a_point_for_each_run(tmp_path: Path) -> None:
    page = draw(tmp_path, run(1, read=0.05, start=0.3), run(2, read=0.04), run(3, read=0.06, start=0.2))
    pictures = [f"<svg{part.split('</svg>')[0]}</svg>" for part in page.split("<svg")[1:]]
    trees = [ET.fromstring(picture) for picture in pictures]
    assert [tree.get("aria-label") for tree in trees] == [f"{name}, over 3 runs" for name in (READ, START)]
    titles = [[title.text for title in tree.iter("title")] for tree in trees]
    assert titles[0] == ["2026-11-01, c1: 0.050", "2026-11-02, c2: 0.040", "2026-11-03, c3: 0.060"]
    assert titles[1] == ["2026-11-01, c1: 0.300", "2026-11-03, c3: 0.200"]
    assert "http" not in page


def test_points_stand_at_their_run_and_their_value() -> None:
    chart = history.make_chart(READ, [run(1, read=0.1), run(2, start=1), run(3, read=0.2)])
    ((first, last),) = chart.lines
    assert (first.x, last.x) == (history.LEFT, history.WIDTH - history.RIGHT)
    bottom = history.HEIGHT - history.BOTTOM
    assert chart.top == pytest.approx(0.22)
    assert (bottom - last.y) / (bottom - first.y) == pytest.approx(2, rel=0.01)
    assert history.TOP < last.y < first.y < bottom


@pytest.mark.parametrize(
    ("values", "change", "is_slower"),
    [
        ([0.1], None, False),
        ([0.1, 0.1, 0.1, 0.11], 0.1, False),
        ([0.1, 0.1, 0.1, 0.12], 0.2, True),
        ([0.1, 9.0, 0.1, 0.12], 0.2, True),  # one noisy run is no yardstick
        ([0.1, 0.1, 0.1, 0.05], -0.5, False),
        ([9.0, *[0.1] * history.BEFORE, 0.12], 0.2, True),  # what is long ago does not count
    ],
)
def test_the_last_run_is_compared_with_what_was_usual(values: list[float], change: float, is_slower: bool) -> None:
    chart = history.make_chart(READ, [run(number, read=value) for number, value in enumerate(values, 1)])
    assert chart.change == (None if change is None else pytest.approx(change))
    assert chart.is_slower is is_slower


def test_machines_are_lines_of_their_own_and_not_compared_with_each_other(tmp_path: Path) -> None:
    runs = [run(1, "A", read=0.1), run(2, "B <&>", read=0.5), run(3, "A", read=0.1)]
    chart = history.make_chart(READ, runs)
    assert [len(line) for line in chart.lines] == [2, 1]
    assert chart.change == 0
    page = draw(tmp_path, *runs)
    assert "A; B &lt;&amp;&gt;" in page
    assert "slower" not in page


def test_what_is_slower_stands_in_the_page(tmp_path: Path) -> None:
    page = draw(tmp_path, run(1, read=0.1), run(2, read=0.2))
    assert "+100 % against the median of the runs before: <strong>slower, by more than the noise</strong>" in page


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"date": "x"}', '{"date":"","commit":"","version":"","machine":"","ratios":{"a":"b"}}']
)
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, run(1, read=0.1))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(SystemExit, match=r"history\.jsonl:2 is no run"):
        history.load_runs(path)


def test_no_runs_are_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        history.main(["render", str(write(tmp_path)), str(tmp_path / "history.html")])
    assert "has no runs" in capsys.readouterr().err


def test_contenders_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 100, 0, 100, *[0, 2, 0, 8] * 3])  # begin and end of ours, of theirs
    monkeypatch.setattr(history.time, "perf_counter", lambda: next(clock))
    order: list[str] = []
    assert history.take_turns(lambda: order.append("ours"), lambda: order.append("theirs"), 3) == 0.25
    assert order == ["ours", "theirs"] * 4


@pytest.mark.process
@pytest.mark.skipif(not PERFDOCTOR.exists(), reason="perfdoctor is not installed beside this Python")
def test_measuring_adds_a_line_that_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, run(1, read=0.1))
    assert history.main(["measure", str(path), "--rounds", "1", "--megabytes", "0.5"]) == 0
    _, measured = history.load_runs(path)
    assert measured.ratios.keys() >= {READ, START}
    assert all(value > 0 for value in measured.ratios.values())
    assert READ in capsys.readouterr().out
    assert history.render_page(history.load_runs(path)).count("<svg") == len(measured.ratios)
