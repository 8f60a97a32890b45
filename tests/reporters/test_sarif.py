from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import report_samples as samples
from markdown_it import MarkdownIt

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.report.finding import Evidence
from perfdoctor.report.report import Report
from perfdoctor.reporters.sarif import Sarif, page_markdown

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0-rtm.5.json"
_URI_REFERENCE = re.compile(r"([a-z][a-z0-9+.-]*:)?([\w\-./~!$&'()*+,;=:@]|%[0-9A-F]{2})+")


@lru_cache(maxsize=1)
def _validator() -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def render(report: Report, **source_files: str) -> dict[str, Any]:
    """The only run of a report's SARIF, which is valid."""
    log = json.loads(Sarif(source_files).render(report))
    _validator().validate(log)
    return log["runs"][0]


@pytest.mark.parametrize("name", samples.ALL)
def test_every_report_is_valid_by_the_official_schema(name):
    run = render(samples.ALL[name]())
    for result in run["results"]:
        location = result["locations"][0]["physicalLocation"]
        assert _URI_REFERENCE.fullmatch(location["artifactLocation"]["uri"])
        assert location["region"]["startLine"] >= 1


def test_the_schema_refuses_what_is_wrong():
    log = json.loads(Sarif().render(samples.loader_stall()))
    log["runs"][0]["results"][0]["level"] = "high"
    with pytest.raises(jsonschema.ValidationError):
        _validator().validate(log)


def test_a_finding_lands_on_its_line_with_its_level_and_figures():
    report = samples.loader_stall()
    run = render(report)
    first = run["results"][0]
    assert (first["ruleId"], first["level"]) == ("PD101", "error")
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "PD101"
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 41}}
    assert first["locations"][0]["logicalLocations"] == [{"name": "train_one_epoch", "kind": "function"}]
    assert "costs 19.0 ms a step (44%); saves" in first["message"]["text"]
    assert "num_workers=4" in first["message"]["text"]
    properties = first["properties"]
    assert (properties["number"], properties["cost_ns"], properties["saving"]["high_ns"]) == (1, 19_000_000, 19_000_000)


def test_levels_follow_severity():
    of = {"high": "error", "medium": "warning", "low": "note", "info": "note"}
    for name in ("loader_stall", "kernel", "whole"):
        report = samples.ALL[name]()
        assert [result["level"] for result in render(report)["results"]] == [of[f.severity] for f in report.findings]


def test_rules_have_their_manual_page():
    rules = {rule["id"]: rule for rule in render(samples.healthy())["tool"]["driver"]["rules"]}
    assert set(rules) >= {"PD101", "PD401"}
    assert rules["PD101"]["name"] == "DataLoaderStall"
    assert rules["PD101"]["properties"]["tags"] == ["performance", "dataloader-stall"]
    assert "**How to fix**" in rules["PD101"]["help"]["markdown"]
    assert "How to fix:" in rules["PD101"]["help"]["text"]
    assert rules["PD101"]["helpUri"].startswith("https://")


def test_a_rule_that_did_not_judge_is_a_notification_and_no_result():
    run = render(samples.incomplete())
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in notes] == ["error", *["note"] * 5, "warning"]
    assert notes[0]["associatedRule"] == {"id": "PD101"}
    assert not run["results"]


def test_a_finding_says_which_fix_makes_it_pointless():
    messages = [result["message"]["text"] for result in render(samples.whole())["results"]]
    assert "The fix of PD201 (Matrix products run without Tensor Cores, in float32) makes this one" in messages[1]
    assert not any("pointless" in message for message in (messages[0], *messages[2:]))


@pytest.mark.parametrize("path", ["../shared/trace.json", "/data/trace.json", "s3://bucket/trace.json"])
def test_a_trace_outside_of_the_repository_is_named_without_its_folders(path):
    report = replace(samples.four_ranks(), traces=(samples.summary(path),))
    (result,) = render(report)["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "trace.json"


def test_a_finding_without_a_line_is_put_on_the_trace():
    report = samples.four_ranks()
    (result,) = render(report)["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "run/rank0.json.gz"
    assert set(result["partialFingerprints"]) == {"perfdoctorFinding/v1", "primaryLocationLineHash"}


@pytest.mark.parametrize("file", ["In[3]", "<string>"])
def test_code_without_a_file_is_put_on_the_trace_and_named(file):
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], location=SourceLocation(file, 3)),))
    place = render(report)["results"][0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "trace.json.gz"
    assert place["logicalLocations"][0]["name"] == f"{file}:3"


@pytest.mark.parametrize(
    ("file", "artifact"),
    [
        ("/home/me/my project/train.py", {"uri": "file:///home/me/my%20project/train.py"}),
        (r"C:\work\train.py", {"uri": "file:///C:/work/train.py"}),
        ("odd:name#1.py", {"uri": "odd%3Aname%231.py", "uriBaseId": "%SRCROOT%"}),
        ("träume.py", {"uri": "tr%C3%A4ume.py", "uriBaseId": "%SRCROOT%"}),
    ],
)
def test_a_file_becomes_a_uri(file, artifact):
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], location=SourceLocation(file, 3)),))
    assert render(report)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == artifact


def test_a_file_is_named_as_the_repository_names_it():
    run = render(samples.loader_stall(), **{"train.py": "examples/train.py"})
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "examples/train.py"


def _fingerprint(**changes: Any) -> str:
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], **changes),))
    return str(render(report)["results"][0]["partialFingerprints"]["perfdoctorFinding/v1"])


LINE = (Evidence("source line", "for x, y in loader:", id="source-line"),)


def test_the_text_of_the_line_is_its_snippet():
    report = samples.loader_stall()
    report = replace(report, findings=(replace(report.findings[0], evidence=LINE),))
    region = render(report)["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 41, "snippet": {"text": "for x, y in loader:"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"cost_ns": 7, "share_of_step": 0.01, "severity": "low"},
        {"title": "3 batches of 21 ms are waited for"},
        {"location": SourceLocation("train.py", 52, "train_one_epoch")},
        {"location": SourceLocation("/elsewhere/train.py", 52, "train_one_epoch")},
        {"subject": "batch of 64"},
    ],
)
def test_a_fingerprint_survives_other_figures_lines_and_folders(changes):
    same = {"subject": "batch of 32"} if "subject" in changes else {}
    assert _fingerprint(**changes) == _fingerprint(**same)


@pytest.mark.parametrize(
    "changes",
    [
        {"location": SourceLocation("train.py", 41, "validate")},
        {"location": SourceLocation("eval.py", 41, "train_one_epoch")},
        {"subject": "aten::item"},
        {"rule": "PD102"},
        {"evidence": LINE},
        {"location": None},
    ],
)
def test_a_fingerprint_tells_findings_apart(changes):
    assert _fingerprint(**changes) != _fingerprint()


def test_with_the_text_of_its_line_a_finding_may_move_to_another_function():
    moved = {"location": SourceLocation("train.py", 80, "fit"), "evidence": LINE}
    assert _fingerprint(**moved) == _fingerprint(evidence=LINE)


def test_findings_that_are_alike_have_fingerprints_of_their_own():
    report = samples.loader_stall()
    report = replace(report, findings=(report.findings[0], report.findings[0]))
    names = [result["partialFingerprints"]["perfdoctorFinding/v1"] for result in render(report)["results"]]
    assert [name[-2:] for name in names] == [":1", ":2"]
    assert names[0][:-2] == names[1][:-2]


def test_nothing_of_a_trace_becomes_a_link_or_a_placeholder():
    report = samples.hostile()
    text = "[x](http://evil.example) {0} {name}"
    report = replace(report, findings=(replace(report.findings[0], title=text, advice=text),))
    message = render(report)["results"][0]["message"]
    assert not re.search(r"(?<!\\)\]\(", message["text"])
    assert "{{0}}" in message["text"]
    assert "{name}" in message["text"]
    shown = MarkdownIt().render(message["markdown"])
    assert "<a" not in shown
    assert "<script" not in shown
    assert "\x1b" not in json.dumps(message["text"]).encode().decode("unicode_escape")


def test_a_page_keeps_its_parts_and_its_lists():
    text = "A summary\nof two lines.\n\nWhat it finds:\n    Waits:\n\n    - one\n    - two\n\nNeeds:\n    Nothing.\n"
    assert page_markdown(text) == (
        "A summary\nof two lines.\n\n**What it finds**\n\nWaits:\n\n- one\n- two\n\n**Needs**\n\nNothing.\n"
    )
