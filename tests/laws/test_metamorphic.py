"""What is known of a changed recording without a look at it: the same report, twice the time, or a pause more.

Of the recordings of ../shared the small ones by day, all of them at night (HYPOTHESIS_PROFILE=nightly).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import metamorphic
import pytest
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor.errors import PerfdoctorError
from perfdoctor.report.report import Report
from perfdoctor.reporters.verdict import verdict_of

Content = Mapping[str, Any]

_SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
_MAX_BYTES_BY_DAY = 60_000
_PAUSE_NS = 50_000_000


def _chosen() -> list[Path]:
    files = [path for path in list_recordings() if path.is_file() and ".json" in path.name]
    if os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
        files = [path for path in files if path.stat().st_size <= _MAX_BYTES_BY_DAY][::6]
    return [_SAMPLES / "host-device-sync.json.gz", _SAMPLES / "launch-bound.json.gz", *files]


def _report_on(content: Content, folder: Path) -> Report:
    path = folder / "trace.json"
    path.write_text(json.dumps(content))
    return perfdoctor.analyze(path, jobs=1)


def _plain(report: Report) -> dict[str, Any]:
    """The report without what takes another time or stands at another one, and without what is the first of many.

    That are examples, and the order of rows of a table that cost the same.
    """
    plain = report.to_dict()
    del plain["outcomes"], plain["context"]["evidence"]
    plain["tables"] = {name: sorted(map(json.dumps, rows)) for name, rows in plain["tables"].items()}
    for trace in plain["traces"]:
        trace.pop("base_ns", None)
    for memory in plain["memory"]:
        if memory["peak"] is not None:
            del memory["peak"]["time_ns"]
    return plain


@pytest.fixture(scope="module", params=_chosen(), ids=name_recording)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Content, Report, Path]:
    """The content of a recording, the report on it, and a folder."""
    folder, content = tmp_path_factory.mktemp("changed"), metamorphic.load_events(request.param)
    try:
        return content, _report_on(content, folder), folder
    except PerfdoctorError as error:
        pytest.skip(str(error))


@pytest.mark.corpus
@pytest.mark.parametrize("change", [metamorphic.shuffle, metamorphic.rebase, metamorphic.rename])
def test_the_report_is_the_same(change: Callable[[Content], Content], recording: tuple[Content, Report, Path]) -> None:
    content, report, folder = recording
    assert _plain(_report_on(change(content), folder)) == _plain(report)


@pytest.mark.corpus
def test_twice_the_time_is_twice_the_work(recording: tuple[Content, Report, Path]) -> None:
    """What happens once is found by thresholds in time, so that what is left of a step need not be twice as long."""
    content, report, folder = recording
    slower = _report_on(metamorphic.scale(content), folder)
    assert slower.steps.count == report.steps.count
    for after in slower.account:
        assert sum(after.buckets.values()) == after.window_ns
    for one, other in zip(report.timeline, slower.timeline, strict=True):
        lengths = [(each.window_ns or 0, each.busy_ns or 0) for each in (one, other)]  # None on a CPU
        assert lengths[1] == pytest.approx(tuple(2 * ns for ns in lengths[0]), rel=0.001)


@pytest.mark.corpus
def test_a_second_kernel_at_the_same_time_makes_nothing_busier(recording: tuple[Content, Report, Path]) -> None:
    content, report, folder = recording
    doubled = _report_on(metamorphic.double_kernels(content), folder)
    assert doubled.steps.median_ns == report.steps.median_ns
    for one, other in zip(report.timeline, doubled.timeline, strict=True):
        assert (other.window_ns, other.busy_ns) == (one.window_ns, one.busy_ns)


def _middle_step(content: Content, report: Report) -> tuple[float, float]:
    steps = metamorphic.profiler_steps(content)
    if len(report.account) != 1 or report.steps.count != len(steps) or len(steps) < 3:
        pytest.skip("not one rank with three steps or more, which the profiler marked")
    return steps[len(steps) // 2]


@pytest.mark.corpus
def test_a_pause_between_steps_is_said(recording: tuple[Content, Report, Path]) -> None:
    content, report, folder = recording
    begin_us, _ = _middle_step(content, report)
    paused = _report_on(metamorphic.pause(content, begin_us, _PAUSE_NS / 1e3), folder)
    before_ns = report.steps.between_ns
    assert before_ns is not None
    # A step ends with the work on the GPU that it launched, where nothing follows.
    between_ns = before_ns + _PAUSE_NS / (report.steps.count - 1)
    assert between_ns - paused.account[0].mean_step_ns <= paused.steps.between_ns <= between_ns + 1
    is_large = paused.steps.between_ns >= 0.05 * paused.account[0].mean_step_ns
    assert (" more lie between two steps on average" in verdict_of(paused)) == is_large
    assert paused.to_dict()["steps"]["between_ns"] == paused.steps.between_ns


@pytest.mark.corpus
def test_a_pause_in_one_step_hides_no_finding_of_the_others(recording: tuple[Content, Report, Path]) -> None:
    content, report, folder = recording
    begin_us, end_us = _middle_step(content, report)
    paused = _report_on(metamorphic.pause(content, (begin_us + end_us) / 2, _PAUSE_NS / 1e3), folder)
    assert paused.account[0].window_ns == pytest.approx(report.account[0].window_ns + _PAUSE_NS, rel=0.001)
    lasting = {f.rule for f in report.findings if f.severity in ("medium", "high") and not f.occurs_once}
    assert lasting <= {finding.rule for finding in paused.findings}
