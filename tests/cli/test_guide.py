"""`perfdoctor guide`: on the terminal, into files, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from perfdoctor.field_guide.render_guide import load_guide_schema


def test_the_guide_is_grouped_by_answer(perfdoctor, stalled) -> None:
    ended = perfdoctor("guide", stalled)
    assert (ended.code, ended.err) == (0, "")
    assert "The field guide: " in ended.out
    headings = [ended.out.index(text) for text in ("Applies (", "Done already (", "Does not apply (", "Cannot tell")]
    assert headings == sorted(headings)
    assert ended.out.index(" 16  Workers load batches") < headings[1]
    assert max(map(len, ended.out.splitlines())) <= 80


def test_json_is_alone_on_standard_output(perfdoctor, stalled) -> None:
    ended = perfdoctor("guide", stalled, "--json", "-o", "guide.md", "-o", "guide.json")
    plain = json.loads(ended.out)
    jsonschema.validate(plain, load_guide_schema())
    assert ended.err == "wrote guide.md\nwrote guide.json\n"
    assert json.loads(Path("guide.json").read_text()) == plain
    assert Path("guide.md").read_text().startswith("# Field guide\n")


def test_only_some_answers(perfdoctor, stalled) -> None:
    ended = perfdoctor("guide", stalled, "--only", "applies", "--only", "unknown", "-o", "guide.txt")
    assert "Applies (" in ended.out
    assert "Cannot tell" in ended.out
    assert "Done already (" not in ended.out
    assert "Done already (" not in Path("guide.txt").read_text()


def test_quiet_has_a_line_for_each_row_and_verbose_says_more(perfdoctor, stalled) -> None:
    quiet, usual, verbose = (perfdoctor("guide", stalled, *option).out for option in (["-q"], [], ["-v"]))
    assert len(quiet.splitlines()) < len(usual.splitlines()) < len(verbose.splitlines())
    assert "checked by: PD101" in verbose
    assert "since then: torch.compile does it." in verbose


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.json",), "no such file"),
        (("--only", "never"), "'never' is not one of"),
        (("-o", "guide.html"), "must be one of .json, .md, .txt"),
        (("-o", "no/folder/guide.md"), "its folder does not exist"),
        (("--json", "--only", "applies"), "--json has all rows"),
        (("-q", "-v"), "exclude each other"),
        (("--steps", "5:2"), "must be A:B"),
        (("--device", "H1000"), "not in the table of devices"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(perfdoctor, stalled, arguments, words) -> None:
    ended = perfdoctor("guide", *([] if arguments[0] == "nothing.json" else [stalled]), *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert words in ended.line


def test_a_file_that_is_no_trace_is_one_sentence(perfdoctor, tmp_path) -> None:
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph"')
    assert perfdoctor("guide", tmp_path / "bad.json").line
