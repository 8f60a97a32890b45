"""PD011 reports the hang of a job, whatever its kind, and stands first; it is quiet where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from flight_recorder_dumps import call, dump, write_dumps

import perfdoctor
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analyzers.pd011_hang import HangFound
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.reporters.report_notes import describe_hang
from perfdoctor.run_watch.hang import Hang, HangCollective, HangKind, HangReading
from perfdoctor.run_watch.read_hang import find_hang_files, read_hang
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import check_declaration

CALL = HangCollective("all_reduce", "default_pg", 25, ((8, 8),), ("float32",), (0, 2))
DONE, WAITS = call(number=1, state="completed"), call(number=2)


def test_its_page_has_all_parts() -> None:
    check_declaration(HangFound)


@pytest.mark.parametrize("kind", get_args(HangKind))
def test_each_kind_is_a_finding_with_advice_of_its_own(kind: HangKind) -> None:
    line = SourceLocation("/home/me/train.py", 30, "step")
    reading = HangReading((0, 2), (), Hang(kind, (1,), CALL, line, "Rank 1 has not come"))
    [finding] = HangFound().analyze_fleet(Fleet((), reading))
    assert (finding.severity, finding.rank, finding.location, finding.title) == ("high", 1, line, "Rank 1 has not come")
    assert [each.value for each in finding.evidence] == [
        kind,
        "1",
        "all_reduce 25 of default_pg",
        "float32 [8, 8]",
        "0, 2",
    ]
    assert finding.advice
    others = {
        next(HangFound().analyze_fleet(Fleet((), HangReading((), (), Hang(each, (1,), None, None, "x"))))).advice
        for each in get_args(HangKind)
    }
    assert len(others) == len(get_args(HangKind))


@pytest.mark.parametrize("reading", [None, HangReading(()), HangReading((0, 1)), HangReading((0,), ("x: is damaged",))])
def test_without_a_hang_there_is_no_finding(reading: HangReading | None) -> None:
    assert list(HangFound().analyze_fleet(Fleet((), reading))) == []


def test_a_folder_of_dumps_gives_a_report(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path, {0: dump(DONE, WAITS), 1: dump(DONE), 2: dump(DONE, WAITS)}, "_dump_")
    (folder / "_dump_7").write_bytes(b"\x80\x02}(X\x09\x00\x00\x00pg_configq\x00")
    report = perfdoctor.analyze(folder)
    assert report.hang is not None
    assert (report.hang.kind, report.hang.ranks) == ("missing", (1,))
    assert [finding.rule for finding in report.findings] == ["PD011"]
    text = report._repr_mimebundle_()["text/plain"]
    assert text.startswith("The job hangs. Rank 1 has not come")
    assert report.hang_reading is not None
    assert "_dump_7: a pickle that is cut short" in report.hang_reading.unread[0]
    assert "a pickle that is cut short" in " ".join(text.split())
    plain = report.to_dict()["hang"]
    assert plain["collective"]["waiting"] == (0, 2) or plain["collective"]["waiting"] == [0, 2]


def test_a_folder_of_healthy_dumps_says_so(tmp_path: Path) -> None:
    report = perfdoctor.analyze(write_dumps(tmp_path, dict.fromkeys(range(3), dump(DONE))))
    assert (report.hang, report.findings) == (None, ())
    assert report._repr_mimebundle_()["text/plain"].startswith("No hang: in the flight recorders of 3 ranks")


def test_dumps_beside_traces_come_first_in_their_report(tmp_path: Path) -> None:
    TraceBuilder().step(0, 1000).kernel("gemm", 5, 900).write(tmp_path / "rank0.json")
    write_dumps(tmp_path, {0: dump(DONE, WAITS), 1: dump(DONE), 2: dump(DONE, WAITS)})
    report = perfdoctor.analyze(tmp_path)
    assert (len(report.traces), report.findings[0].rule) == (1, "PD011")
    # The head says it once.
    head = " ".join(report._repr_mimebundle_()["text/plain"].split("\n\n")[0].split())
    assert head.startswith("The job hangs. Rank 1 has not come")
    assert head.count("has not come") == 1
    assert "step takes" in head


@pytest.mark.parametrize(
    ("exits", "words"),
    [(("exit", "signal"), "stood still until the program ended"), (("exit", "running"), "hangs"), ((), "hangs")],
)
def test_a_hang_of_a_program_that_has_ended_is_told_in_the_past(
    tmp_path: Path, exits: tuple[str, ...], words: str
) -> None:
    (tmp_path / "hang").mkdir()
    write_dumps(tmp_path / "hang", {0: dump(DONE, WAITS), 1: dump(DONE), 2: dump(DONE, WAITS)})
    report = perfdoctor.analyze(tmp_path / "hang")
    (tmp_path / "hang" / "processes.json").write_text("{}")
    for rank, ended in enumerate(exits):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "facts.json").write_text(f'{{"exit": "{ended}"}}')
    reading = read_hang(find_hang_files([tmp_path]))
    report = replace(report, hang=reading.hang, hang_reading=reading)
    assert describe_hang(report) == f"The job {words}. {reading.hang and reading.hang.sentence}."


def test_only_bad_dumps_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"nothing")
    with pytest.raises(perfdoctor.TraceError, match="give a dump of PyTorch's flight recorder"):
        perfdoctor.analyze(tmp_path)
