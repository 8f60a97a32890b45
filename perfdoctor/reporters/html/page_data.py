"""The data of the page's charts and tables as plain values for JSON: columns of numbers as base64 of their bytes.

All keys are always there, None where something is not known. Every text is clean and of a moderate length.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from perfdoctor.charts.rank_heat_map import rank_heat_map_of
from perfdoctor.report.chart_data import (
    FlameGraph,
    MemoryTimeline,
    RankCharts,
    RankHeatMap,
    Roofline,
    StepSeries,
    StepTimeline,
    Track,
    claim_key,
)
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_summary import describe_memory, name_device
from perfdoctor.report.merge_findings import ranks_with
from perfdoctor.report.report import Report
from perfdoctor.report.table import Table
from perfdoctor.reporters.clean_text import clean_line, shorten
from perfdoctor.reporters.place_text import place_texts
from perfdoctor.reporters.rank_table import rank_table
from perfdoctor.reporters.report_facts import main_findings
from perfdoctor.tables.catalog import TABLES
from perfdoctor.trace.arrays import FloatArray, IntArray

VERSION = 1
# A kernel's name may have thousands of characters; both of its ends tell it from others.
_MAX_CHARACTERS = 300
_MAX_RANKS = 2_000
_LINKS = {"from_track": "u2", "from_item": "u4", "to_track": "u2", "to_item": "u4"}


def page_data(report: Report) -> dict[str, Any]:
    """What the page's script draws, all keys at any time; the charts are of the rank whose step is longest.

    They are None in a report that was made without them, see `AnalysisOptions.charts`.
    """
    charts = report.charts or RankCharts(None)
    timeline, flames, roofline, steps = charts.timeline, charts.flames, charts.roofline, charts.steps
    heat_map = rank_heat_map_of(report.account, report.late_ns)
    return {
        "version": VERSION,
        "rank": charts.rank,
        "timeline": None if timeline is None else _timeline_data(timeline, report, charts),
        "flames": None if flames is None else _flames_data(flames, report),
        "roofline": None if roofline is None else _roofline_data(roofline),
        "steps": None if steps is None else _steps_data(steps),
        "memory": [_memory_data(device, report, charts.rank) for device in charts.memory] or None,
        "ranks": None if heat_map is None else _ranks_data(heat_map, report),
        "account": [
            {"rank": each.rank, "window_ns": each.window_ns, "detail": dict(each.detail), "buckets": each.buckets}
            for each in report.account
        ],
        "tables": list(map(table_data, charts.tables)),
        "notes": _clean_all(charts.notes),
    }


def _clean(text: str) -> str:
    return shorten(clean_line(text), _MAX_CHARACTERS)


def _clean_all(texts: Iterable[str]) -> list[str]:
    return list(map(_clean, texts))


def _base64(values: IntArray | FloatArray, kind: str) -> str:
    """The values as base64 of an array of that kind, little-endian."""
    return b64encode(values.astype(f"<{kind}").tobytes()).decode()


def _encode(columns: object, **kinds: str) -> dict[str, str]:
    """Some columns of a value by their names, each as base64 of an array of its kind."""
    return {name: _base64(getattr(columns, name), kind) for name, kind in kinds.items()}


def _timeline_data(timeline: StepTimeline, report: Report, charts: RankCharts) -> dict[str, Any]:
    unit_ns, links = timeline.span_ns // 0xFFFFFFFF + 1, timeline.links
    return {
        "step": timeline.step,
        "span_ns": timeline.span_ns,
        "left_out": timeline.left_out,
        "names": _clean_all(timeline.names),
        "categories": list(timeline.categories),
        "unit_ns": unit_ns,
        "tracks": [_track_data(track, unit_ns) for track in timeline.tracks],
        "links": None if links is None else {"n": len(links.to_item), **_encode(links, **_LINKS)},
        "findings": list(_claims_data(report, charts, unit_ns)),
    }


def _track_data(track: Track, unit_ns: int) -> dict[str, Any]:
    start = track.start_ns // unit_ns
    return {
        "name": _clean(track.name),
        "kind": track.kind,
        "n": len(start),
        "start": _base64(start, "u4"),
        "dur": _base64((track.start_ns + track.dur_ns) // unit_ns - start, "u4"),
        **_encode(track, name_id="u4", category="u1", depth="u1"),
        "merged": None if (track.merged == 1).all() else _base64(track.merged, "u4"),
    }


def _claims_data(report: Report, charts: RankCharts, unit_ns: int) -> Iterable[dict[str, Any]]:
    """Where the findings on the rank of the charts claim time in the step."""
    for number, finding in enumerate(report.findings):
        spans = charts.claims.get(claim_key(finding))
        if spans is None or not _is_on(finding, charts.rank):
            continue
        start, end = (spans // unit_ns).T
        yield {"finding": number, "start": start.tolist(), "dur": (end - start).tolist()}


def _is_on(finding: Finding, rank: int | None) -> bool:
    ranks = None if rank is None else ranks_with(finding)
    return ranks is None or rank in ranks


def _memory_data(memory: MemoryTimeline, report: Report, rank: int | None) -> dict[str, Any]:
    """The memory of a device, with the number of the first finding on it among those that are shown in full."""
    about_it = (
        number
        for number, finding in enumerate(main_findings(report), 1)
        if claim_key(finding) in memory.findings and _is_on(finding, rank)
    )
    peak = memory.summary.peak
    return {
        "device": name_device(memory.summary),
        "text": _clean(describe_memory(memory.summary)),
        "line": _clean(peak.by_line[0].place) if peak is not None and peak.by_line else None,
        "finding": next(about_it, None),
        "peak": memory.peak,
        "event": _base64(memory.event, "u4"),
        "time_ns": None if memory.time_ns is None else _base64(memory.time_ns, "f8"),
        "categories": list(memory.categories),
        "bytes": [_base64(row, "f8") for row in memory.bytes],
        "reserved_bytes": None if memory.reserved_bytes is None else _base64(memory.reserved_bytes, "f8"),
    }


def _flames_data(flames: FlameGraph, report: Report) -> dict[str, Any]:
    """The tree, and for its places that have a paragraph on the page the number of that."""
    numbers = {text.place.name: number for number, text in enumerate(place_texts(report, most=None), 1)}
    return {
        "names": _clean_all(flames.names),
        "categories": list(flames.categories),
        "places": [[node, numbers[place]] for node, place in flames.places.items() if place in numbers],
        "n": len(flames.name_id),
        **_encode(flames, name_id="u4", parent="i4", time_ns="f8", category="u1"),
    }


def _roofline_data(roofline: Roofline) -> dict[str, Any]:
    columns = {
        "name": _clean_all(roofline.names),
        "category": roofline.category,
        "flops": roofline.flops.tolist(),
        "bytes": roofline.bytes.tolist(),
        "time_ns": roofline.time_ns.tolist(),
        "tensor_core": roofline.tensor_core,
    }
    points = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    roofs = [{"name": _clean(roof.name), "kind": roof.kind, "per_s": roof.per_s} for roof in roofline.roofs]
    return {"points": points, "roofs": roofs}


def _steps_data(steps: StepSeries) -> dict[str, Any]:
    return {
        "recorded_ns": steps.recorded_ns.tolist(),
        "first": steps.first,
        "unprofiled_ns": steps.unprofiled_ns.tolist(),
        "unprofiled_number": steps.unprofiled_number.tolist(),
        "marks": [{**mark._asdict(), "text": _clean(mark.text)} for mark in steps.marks],
    }


def _ranks_data(heat_map: RankHeatMap, report: Report) -> dict[str, Any]:
    cells = [[None if ns < 0 else ns for ns in row] for row in heat_map.step_ns.tolist()]
    return {
        "ranks": list(heat_map.ranks),
        "step_ns": cells,
        "steps_per_cell": heat_map.steps_per_cell,
        "late_ns": None if heat_map.late_ns is None else list(heat_map.late_ns),
        "rows": table_data(rank_table(report, _MAX_RANKS)),
    }


def table_data(table: Table) -> dict[str, Any]:
    """A table as plain data with clean texts, and whether a column belongs to the short form."""
    spec = TABLES.get(table.name)
    plain = {"title": _clean(table.name if spec is None else spec.title), **table.to_dict()}
    for column, described in zip(table.columns, plain["columns"], strict=True):
        described["main"] = column.is_main
    plain["notes"] = _clean_all(table.notes)
    plain["rows"] = [
        {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in plain["rows"]
    ]
    return plain
