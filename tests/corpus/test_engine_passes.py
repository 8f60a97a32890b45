"""The passes of serving engines in the shared recordings, as a script of its own read them: engine_passes.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from real_traces import analyze_once, read_once

from perfdoctor.analysis.context.name_signs import SCHEDULES_AHEAD
from perfdoctor.analysis.timeline.engine_passes import find_engine_passes
from perfdoctor.trace.activity_kinds import BETWEEN_PASSES, ENGINE_MODEL

pytestmark = pytest.mark.corpus

RECORDINGS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("engine_passes.toml").read_text(encoding="utf-8")
)["recording"]
# By name the script splits idle time a little differently: launches and modules are no frames of the engine.
NAMED_TOLERANCE_US = 40


@pytest.mark.parametrize("truth", RECORDINGS, ids=lambda truth: truth["path"])
def test_passes_are_those_of_the_raw_file(truth: dict[str, Any], shared: Path) -> None:
    report = analyze_once(shared / truth["path"])
    (row,) = report.passes
    found = (row.kind, row.passes, row.requests, row.tokens)
    assert found == (truth["kind"], truth["passes"], truth["requests"], truth["tokens"])
    assert row.rows == truth.get("rows")
    assert row.time_ns / 1e3 == pytest.approx(truth["window_us"] - truth.get("once_us", 0), rel=2e-3)
    assert row.busy_ns / 1e3 == pytest.approx(truth["busy_us"], rel=2e-3)
    assert row.busy_ns + sum(row.idle_ns.values()) == row.time_ns
    idle_us = {name: ns / 1e3 for name, ns in row.idle_ns.items()}
    for name in ("preparing", "scheduling", "sampling", "tokenizing", "detokenizing", "messages", "no_requests"):
        assert idle_us[name] == pytest.approx(truth["idle_us"].get(name, 0), abs=NAMED_TOLERANCE_US)
    assert idle_us[ENGINE_MODEL] + idle_us[BETWEEN_PASSES] == pytest.approx(
        truth["idle_us"]["model"], abs=NAMED_TOLERANCE_US
    )
    assert row.graph_share == pytest.approx(truth["graphed"], abs=0.001)
    assert row.collectives == truth["collectives"]
    assert row.communication_ns / 1e3 == pytest.approx(truth.get("collectives_us", 0), rel=0.01)
    exposed_ns = sum(each.detail["communication"] for each in report.account)
    assert exposed_ns / 1e3 == pytest.approx(truth.get("exposed_us", 0), rel=0.01)
    assert row.cache_writes == truth["cache_writes"]
    assert row.cache_ns / 1e3 == pytest.approx(truth["cache_us"], rel=0.02)
    assert truth["engine"] in report.context.frameworks
    assert (SCHEDULES_AHEAD in report.context.frameworks) == truth.get("overlaps", False)


@pytest.mark.parametrize("truth", RECORDINGS, ids=lambda truth: truth["path"])
def test_no_rule_about_engines_has_anything_to_report(truth: dict[str, Any], shared: Path) -> None:
    assert not [found for found in analyze_once(shared / truth["path"]).findings if found.rule.startswith("PD8")]


def test_no_other_recording_has_passes(shared: Path) -> None:
    files = sorted(path for folder in ("traces", "recordings", "pairs") for path in (shared / folder).rglob("*.gz"))
    with_passes = {path.relative_to(shared).as_posix() for path in files if find_engine_passes(read_once(path))}
    assert with_passes == {truth["path"] for truth in RECORDINGS}
