"""`perfdoctor demo`: the report on the trace of the package, and what it says before and after."""

from __future__ import annotations

import json
import os
import socket
from importlib.resources import files
from pathlib import Path

import pytest

import perfdoctor as package

TRACE = files("perfdoctor.demo") / "demo.json.gz"
FOLDER = str(Path(str(TRACE)).parent)


def test_it_prints_the_report_that_analyze_prints_between_what_it_is_and_what_comes_next(perfdoctor) -> None:
    ended = perfdoctor("demo")
    assert (ended.code, ended.err) == (0, "")
    first, rest = ended.out.split("\n", 1)
    assert first.startswith("An example, simulated: six training steps")
    report, following = rest.split("\nNext, your own:\n")
    assert report == perfdoctor("analyze", TRACE).out
    assert [line.split("#")[0].strip() for line in following.splitlines()] == [
        "perfdoctor run train.py",
        "perfdoctor analyze trace.json",
    ]


def test_the_example_has_three_causes_and_says_what_their_fixes_make_of_a_step() -> None:
    report = package.analyze(str(TRACE))
    high = [finding.rule for finding in report.findings if finding.severity == "high"]
    assert high == ["PD201", "PD101"]
    assert {finding.rule for finding in report.findings} == {"PD201", "PD101", "PD102", "PD205"}
    assert all(finding.location is not None for finding in report.findings)
    assert report.context is not None
    assert report.steps.count == 6


def test_json_is_all_that_stands_on_standard_output_and_names_no_folder(perfdoctor) -> None:
    ended = perfdoctor("demo", "--json")
    assert ended.code == 0
    assert [trace["path"] for trace in json.loads(ended.out)["traces"]] == ["demo.json.gz"]
    assert ended.err.startswith("An example, simulated: ")
    assert ended.err.count("\n") == 1


def test_all_outputs_are_written_and_none_but_the_annotated_trace_knows_the_folder(perfdoctor) -> None:
    names = ["d.html", "d.md", "d.json", "d.txt", "d.json.gz"]
    ended = perfdoctor("demo", "-q", *(word for name in names for word in ("-o", name)))
    assert ended.code == 0
    assert ended.err == "".join(f"wrote {name}\n" for name in names)
    assert sorted(os.listdir()) == sorted(names)
    assert all(FOLDER not in Path(name).read_text(encoding="utf-8") for name in names[:-1])
    assert len(package.read("d.json.gz").gpu) == len(package.read(str(TRACE)).gpu)


def test_it_needs_no_network(perfdoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the demo asks the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert perfdoctor("demo", "-v").code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--open"], "none is written: give -o demo.html"),
        (["-q", "-v"], "-q and -v exclude each other"),
        (["-o", "nowhere/d.html"], "its folder does not exist"),
        (["-o", "d.pdf"], "the suffix of an output file"),
    ],
)
def test_a_wrong_option_is_one_line(perfdoctor, options: list[str], says: str) -> None:
    ended = perfdoctor("demo", *options)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.line
