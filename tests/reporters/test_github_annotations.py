from __future__ import annotations

import re
from dataclasses import replace

import pytest
import report_samples as samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.report import Report
from perfdoctor.reporters.finding_gate import Gate
from perfdoctor.reporters.github_annotations import GithubAnnotations

# As the runner reads them: actions/runner, src/Runner.Common/ActionCommand.cs.
_COMMAND = re.compile(r"::(?P<level>error|warning|notice) (?P<properties>[^\n]*?)::(?P<message>[^\n]*)")
_UNESCAPE = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


def _unescape(text: str) -> str:
    for escaped, character in _UNESCAPE:
        text = text.replace(escaped, character)
    return text


def render(report: Report, reporter: GithubAnnotations | None = None) -> list[tuple[str, dict[str, str], str]]:
    """Level, properties and message of each command, as GitHub reads them; nothing else is printed."""
    commands = []
    for line in (reporter or GithubAnnotations()).render(report).splitlines():
        match = _COMMAND.fullmatch(line)
        assert match, line
        properties = dict(each.split("=", 1) for each in match["properties"].split(","))
        commands.append(
            (
                match["level"],
                {name: _unescape(value) for name, value in properties.items()},
                _unescape(match["message"]),
            )
        )
    return commands


@pytest.mark.parametrize("name", samples.ALL)
def test_every_report_is_one_notice_and_a_command_for_each_finding(name):
    report = samples.ALL[name]()
    commands = render(report)
    assert commands[0][0] == "notice"
    assert commands[0][1] == {"title": "perfdoctor"}
    assert len(commands) == 1 + sum(finding.severity != "info" for finding in report.findings)


def test_a_finding_stands_on_its_line():
    level, properties, message = render(samples.loader_stall())[1]
    assert level == "error"
    assert properties == {"file": "train.py", "line": "41", "title": "PD101 dataloader-stall"}
    assert message.startswith("The GPU waits for the DataLoader.\n\nIt costs 19.0 ms a step (44%); saves")
    assert "num_workers=4" in message


def test_the_file_is_that_of_the_repository():
    reporter = GithubAnnotations(source_files={"train.py": "examples/train.py"})
    assert render(samples.loader_stall(), reporter)[1][1]["file"] == "examples/train.py"


@pytest.mark.parametrize("location", [None, SourceLocation("In[3]", 4), SourceLocation("<string>", 1)])
def test_a_finding_without_a_file_has_no_place(location):
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], location=location),))
    assert set(render(report)[1][1]) == {"title"}


def test_a_finding_without_a_line_stands_on_its_file():
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], location=SourceLocation("train.py")),))
    assert set(render(report)[1][1]) == {"file", "title"}


def test_levels_follow_severity_and_info_shows_only_where_it_fails():
    report = samples.whole()
    assert [level for level, _, _ in render(report)[1:]] == ["error", "warning", "notice"]
    assert [level for level, _, _ in render(report, GithubAnnotations(Gate("info")))[1:]] == [
        "error",
        "warning",
        "notice",
        "notice",
    ]


def test_a_name_cannot_end_its_command_or_start_another():
    evil = "100%0A ::error::x, y: z\n::set-output name=a::b\r::stop-commands::t"
    report = samples.loader_stall()
    finding = replace(report.findings[0], title=evil, name=evil, location=SourceLocation(evil, 1), advice=evil)
    commands = render(replace(report, findings=(finding,)))
    assert len(commands) == 2
    one_line = evil.replace("\n", " ").replace("\r", " ")
    assert commands[1][1] == {"file": one_line, "line": "1", "title": f"PD101 {one_line}"}
    assert one_line in commands[1][2]
