"""The data of the page: all keys always, columns that decode to the charts, clean texts."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from cases_device_memory import attention, training
from trace_strategies import ALL_REDUCE, POINTWISE, TENSOR_GEMM

import perfdoctor
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.charts.rank_charts import rank_charts_of
from perfdoctor.pipeline import diagnose_run
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import RankCharts, StepTimeline, Track
from perfdoctor.report.report import Report
from perfdoctor.report.table import Column, Table
from perfdoctor.reporters.html.page_data import page_data
from perfdoctor.reporters.place_text import place_texts
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

KEYS = {"version", "rank", "timeline", "flames", "roofline", "steps", "memory", "ranks", "account", "tables", "notes"}
US = 1_000


def report_on(*traces: TraceBuilder) -> Report:
    """The report on some ranks, with the charts of the first."""
    ranks = [Rank(trace.trace()) for trace in traces]
    report = diagnose_run(Run(tuple(ranks)), registry.load_analyzers())
    return replace(report, charts=rank_charts_of(ranks[0], findings=report.findings))


def starved(rank: int | None = None) -> TraceBuilder:
    """Steps in which the GPU waits for a loader."""
    trace = TraceBuilder(rank=rank, world_size=None if rank is None else 2)
    for number in range(4):
        at = 10_000 * number
        trace.step(at, 10_000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 6_000)
        trace.op("aten::mm", at + 6_100, 50, shapes=[[512, 512], [512, 512]], types=["float", "float"])
        trace.kernel(TENSOR_GEMM, at + 6_200, 3_000, launch_us=at + 6_110)
        trace.kernel(ALL_REDUCE, at + 9_300, 500, launch_us=at + 6_200)
    return trace


def decode(text: str, kind: str) -> list[int]:
    values: list[int] = np.frombuffer(base64.b64decode(text, validate=True), f"<{kind}").tolist()
    return values


def check_timeline(data: dict[str, Any], timeline: StepTimeline) -> None:
    assert len(data["tracks"]) == len(timeline.tracks)
    for shown, track in zip(data["tracks"], timeline.tracks, strict=True):
        assert shown["n"] == len(track.start_ns)
        assert decode(shown["start"], "u4") == (track.start_ns // data["unit_ns"]).tolist()
        ends = np.array(decode(shown["start"], "u4")) + np.array(decode(shown["dur"], "u4"))
        assert ends.tolist() == ((track.start_ns + track.dur_ns) // data["unit_ns"]).tolist()
        assert decode(shown["name_id"], "u4") == track.name_id.tolist()
        assert max(decode(shown["name_id"], "u4"), default=0) < len(data["names"])
        assert max(decode(shown["category"], "u1"), default=0) < len(data["categories"])
        assert decode(shown["depth"], "u1") == track.depth.tolist()
        assert shown["merged"] is None or decode(shown["merged"], "u4") == track.merged.tolist()


def test_the_columns_of_a_single_rank_decode_to_its_charts() -> None:
    report = report_on(starved())
    assert report.charts is not None
    data = orjson.loads(orjson.dumps(page_data(report)))
    assert set(data) == KEYS
    timeline = report.charts.timeline
    assert timeline is not None
    check_timeline(data["timeline"], timeline)
    links = data["timeline"]["links"]
    assert links["n"] == 2
    kinds = [track["kind"] for track in data["timeline"]["tracks"]]
    assert {kinds[track] for track in decode(links["to_track"], "u2")} == {"stream"}
    assert {kinds[track] for track in decode(links["from_track"], "u2")} == {"thread"}
    flames = report.charts.flames
    assert flames is not None
    assert decode(data["flames"]["time_ns"], "f8") == flames.time_ns.tolist()
    assert decode(data["flames"]["parent"], "i4") == flames.parent.tolist()
    assert [point["category"] for point in data["roofline"]["points"]] == ["gemm"]
    assert data["steps"]["recorded_ns"] == timeline_steps(report)
    assert data["ranks"] is None
    assert sum(data["account"][0]["detail"].values()) == data["account"][0]["window_ns"]


def timeline_steps(report: Report) -> list[int]:
    steps = report.account[0].steps
    lengths: list[int] = (steps[:, 1] - steps[:, 0]).tolist()
    return lengths


def test_findings_are_marked_where_they_claim_time_in_the_step() -> None:
    report = report_on(starved())
    data = page_data(report)["timeline"]
    loading = next(number for number, each in enumerate(report.findings) if each.rule == "PD101")
    (marked,) = (each for each in data["findings"] if each["finding"] == loading)
    assert len(marked["start"]) == len(marked["dur"]) > 0
    assert sum(marked["dur"]) == pytest.approx(6_000 * US, rel=0.2)
    assert all(0 <= a <= a + b <= data["span_ns"] for a, b in zip(marked["start"], marked["dur"], strict=True))


def test_several_ranks_have_a_heat_map_and_a_table() -> None:
    data = page_data(report_on(starved(0), starved(1)))
    assert data["ranks"]["ranks"] == [0, 1]
    assert [len(row) for row in data["ranks"]["step_ns"]] == [4, 4]
    assert [row["name"] for row in data["ranks"]["rows"]["rows"]] == ["0", "1"]
    row = data["ranks"]["rows"]["rows"][0]
    assert row["compute_share"] + row["exposed_communication_share"] + row["idle_share"] == pytest.approx(1.0)


def test_a_report_without_charts_has_all_keys() -> None:
    report = replace(report_on(starved()), charts=None)
    data = page_data(report)
    assert set(data) == KEYS
    assert [data[name] for name in ("timeline", "flames", "roofline", "steps", "ranks")] == [None] * 5
    assert data["tables"] == []
    assert len(data["account"]) == 1


def test_times_of_a_timeline_that_is_longer_than_four_seconds_fit_into_32_bits() -> None:
    trace = TraceBuilder().kernel(POINTWISE, 0, 10).kernel(POINTWISE, 9_000_000, 1_000_000)
    report = report_on(trace)
    data = page_data(report)["timeline"]
    assert data["unit_ns"] == 3
    assert report.charts is not None
    assert report.charts.timeline is not None
    check_timeline(data, report.charts.timeline)
    stream = next(track for track in data["tracks"] if track["kind"] == "stream")
    assert decode(stream["start"], "u4")[1] == 3_000_000_000


def test_texts_of_a_trace_are_clean_and_short() -> None:
    hostile = "</script>\x1b[31m\u202e" + "x" * 5_000
    data = page_data(report_on(starved().op(hostile, 16_150, 1)))
    (name,) = (name for name in data["timeline"]["names"] if name.startswith("</script>"))
    assert len(name) <= 300
    assert name.isprintable()


def test_tables_have_the_short_form_marked_and_clean_texts() -> None:
    columns = (Column("name", "what", "text", ("a\x1b[0mb", None)), Column("n", "n", "count", (1, 2), is_main=False))
    charts = RankCharts(0, tables=(Table("ops", "name", columns),))
    (table,) = page_data(replace(report_on(starved()), charts=charts))["tables"]
    assert table["rows"] == [{"name": "ab", "n": 1}, {"name": None, "n": 2}]
    assert [column["main"] for column in table["columns"]] == [True, False]
    assert table["title"]


def test_places_of_the_flames_lead_to_their_paragraphs() -> None:
    report = report_on(starved())
    assert report.charts is not None
    flames = report.charts.flames
    assert flames is not None
    shown = {text.place.name: number for number, text in enumerate(place_texts(report, most=None), 1)}
    numbers = dict(page_data(report)["flames"]["places"])
    assert numbers == {node: shown[place] for node, place in flames.places.items() if place in shown}
    assert set(numbers.values()) == set(shown.values()), "each paragraph has its box"


def test_joined_items_say_how_many_they_are() -> None:
    ones, three = np.ones(1, np.int32), np.array([3], np.int32)
    nothing = np.zeros(1, np.int64)
    track = Track(
        "stream 7",
        "stream",
        nothing,
        ones.astype(np.int64),
        ones * 0,
        ones.astype(np.int8) * 0,
        ones.astype(np.int8) * 0,
        three,
    )
    timeline = StepTimeline(None, 0, 10, (track,), ("a",), ("other",), left_out=3)
    data = page_data(replace(report_on(starved()), charts=RankCharts(None, timeline)))["timeline"]
    assert decode(data["tracks"][0]["merged"], "u4") == [3]
    assert data["left_out"] == 3


def test_memory_leads_to_the_finding_on_its_device() -> None:
    def memory_of(capacity_bytes: int) -> Any:
        trace = training(*attention(4), device=0)
        trace.header(deviceProperties=[{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": capacity_bytes}])
        options = AnalysisOptions(charts=True)
        report = diagnose_run(Run((Rank(trace.trace()),)), registry.load_analyzers(), options)
        [memory] = page_data(report)["memory"]
        assert report.charts is not None
        [timeline] = report.charts.memory
        for row, column in zip(timeline.bytes, memory["bytes"], strict=True):
            assert decode(column, "f8") == row.tolist()
        assert decode(memory["event"], "u4") == timeline.event.tolist()
        assert timeline.time_ns is not None
        assert decode(memory["time_ns"], "f8") == timeline.time_ns.tolist()
        assert set(decode(memory["reserved_bytes"], "f8")) == {1 << 30}
        return memory

    full = memory_of(1 << 30)
    assert (full["device"], full["line"], full["finding"]) == ("GPU 0", "train.py:7", 1)
    assert full["text"].startswith("360 MB at the peak on GPU 0, "), "three scores of each of four layers"
    assert memory_of(1 << 36)["finding"] is None, "one for information is not shown in full"
    assert page_data(report_on(starved()))["memory"] is None


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["h100-timesformer-bf16", "cpu-only-rank34", "a100-sam-bf16"])
def test_the_data_of_a_real_trace_fits_into_a_page(corpus: Path, name: str) -> None:
    path = corpus / f"{name}.json.gz"
    charts = rank_charts_of(Rank(perfdoctor.read(path)))
    report = replace(perfdoctor.analyze(path), charts=charts)
    data = page_data(report)
    assert charts.timeline is not None
    check_timeline(data["timeline"], charts.timeline)
    assert len(orjson.dumps(data)) < 3_000_000
