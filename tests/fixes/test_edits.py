"""Every edit: sources that it fits and what becomes of them, and as many that it refuses with a sentence."""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_finding import AT, CALL, find_mark, finding_at, take_marks_out

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.choose_edits import EDITS
from perfdoctor.fixes.patch import make_patch
from perfdoctor.fixes.project import Project


class Case(NamedTuple):
    """A case of one of the files beside this one: what its comment says."""

    action: str
    setting: str
    text: str
    lines: list[str]


def read_cases(name: str) -> dict[str, Case]:
    """The cases of a file by their names."""
    cases = {}
    for part in (Path(__file__).parent / name).read_text().split("\n=== ")[1:]:
        head, _, body = part.partition("\n")
        title, action, setting = (*head.split(" ", 2), "")[:3]
        source, _, last = body.partition("\n+++")
        lines = [line.removeprefix("+++").removeprefix(" ") for line in f"+++{last}".splitlines()]
        text = source.removesuffix("\n\\ no newline") + ("" if source.endswith("no newline") else "\n")
        cases[title] = Case(action, setting, text, [] if lines == [""] else lines)
    return cases


FITS, REFUSES = read_cases("edits_that_fit.txt"), read_cases("edits_that_are_refused.txt")


@pytest.mark.parametrize(("action", "setting", "text", "lines"), FITS.values(), ids=FITS)
def test_an_edit_changes_its_lines_and_nothing_else(edit_text, action, setting, text, lines):
    before, after = take_marks_out(text), edit_text(text, action, setting)
    diff = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert [line[2:] for line in diff if line.startswith("+ ")] == lines
    ast.parse(after)


@pytest.mark.parametrize(("action", "setting", "text", "why"), REFUSES.values(), ids=REFUSES)
def test_an_edit_that_does_not_fit_is_refused_with_its_reason(edit_text, action, setting, text, why):
    with pytest.raises(EditRefusedError, match=why[0]):
        edit_text(text, action, setting)


@pytest.mark.parametrize("name", [name for name, each in FITS.items() if each[0] not in ("make-on-device", "gc")])
def test_an_edit_is_not_made_twice(edit_text, name):
    action, setting, text, _ = FITS[name]
    after = edit_text(text, action, setting)
    again = after.splitlines()
    for mark, line in ((mark, find_mark(text, mark)) for mark in (AT, CALL)):
        if line is not None:
            again[max(n for n, each in enumerate(again) if each.strip() and n <= line)] += mark
    with pytest.raises(EditRefusedError):
        edit_text("\n".join(again) + "\n", action, setting)


def test_each_edit_has_cases_that_fit_or_says_why_there_is_none():
    fitting = {action for action, *_ in FITS.values()}
    assert EDITS.keys() - fitting == {"allocator", "prefetch-factor"}
    refused = Counter(each.action for each in REFUSES.values())
    assert all(refused[action] >= count for action, count in Counter(each.action for each in FITS.values()).items())


LINES = st.lists(
    st.sampled_from(
        ["", "# note", "one = {'a': 1,\n  'b': [2,\n3]}", "text = 'ä → 😀'", "def other(a):\n\treturn a ;"]
    ),
    max_size=4,
)


@given(
    name=st.sampled_from(sorted(FITS)),
    before=LINES,
    after=LINES,
    newline=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
    ends=st.booleans(),
)
def test_an_edit_in_any_surroundings_compiles_and_leaves_them_alone(
    tmp_path_factory, name, before, after, newline, encoding, ends
):
    action, setting, text, _ = FITS[name]
    above, own, below = ("\n".join(each).splitlines() for each in (before, [take_marks_out(text)], after))
    data = (newline.join([*above, *own, *below]) + newline * ends).encode(encoding)
    script = tmp_path_factory.mktemp("any") / "train.py"
    script.write_bytes(data)
    line, called = (number and number + len(above) for number in (find_mark(text, AT), find_mark(text, CALL)))
    finding = finding_at(line, action, setting, called=f"train.py:{called}" if called else "")
    edit = EDITS[action](finding, setting, Project(script, tmp_path_factory.getbasetemp()))
    edited = edit.source.splice(edit.splices)
    assert script.read_bytes() == data
    compile(edited, "train.py", "exec", dont_inherit=True)
    was, is_now = data.split(b"\n"), edited.split(b"\n")
    assert is_now[: len(above)] == was[: len(above)]
    behind = len(below) + ends
    assert is_now[len(is_now) - behind :] == was[len(was) - behind :]
    assert edit.source.splice(()) == data


@pytest.mark.process
@pytest.mark.parametrize("name", ["workers-said-to-be-none", "attention", "no-sync-inner-loop", "rows-in-a-loop", "gc"])
@pytest.mark.parametrize(("newline", "encoding", "end"), [("\n", "utf-8", ""), ("\r\n", "utf-8-sig", "\r\n")])
def test_git_applies_the_patch_of_an_edit_and_takes_it_back(tmp_path, name, newline, encoding, end):
    action, setting, text, _ = FITS[name]
    script = tmp_path / "train.py"
    data = (newline.join(["# ä", *take_marks_out(text).splitlines()]) + end).encode(encoding)
    script.write_bytes(data)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    edit = EDITS[action](finding_at(find_mark(text, AT) + 1, action, setting), setting, Project(script, tmp_path))
    patch = tmp_path / "perfdoctor.patch"
    patch.write_bytes(make_patch([edit], "What was measured\nand where"))
    for options, expected in (((), edit.source.splice(edit.splices)), (("-R",), data)):
        subprocess.run(["git", "-C", tmp_path, "apply", *options, patch], check=True)
        assert script.read_bytes() == expected


@pytest.mark.parametrize("name", ["gelu-tanh", "gelu-erf"])
def test_a_replaced_formula_computes_the_same(edit_text, name):
    torch = pytest.importorskip("torch")
    action, setting, text, _ = FITS[name]
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    results = []
    for code in (take_marks_out(text), edit_text(text, action, setting)):
        names = {"h": x}
        exec(code, names)
        results.append(names["gelu"](x) if "gelu" in names else names["y"])
    assert torch.allclose(*results, atol=1e-12)


@pytest.mark.parametrize("name", ["attention", "attention-plain"])
def test_replaced_attention_computes_the_same(edit_text, name):
    torch = pytest.importorskip("torch")
    action, setting, text, _ = FITS[name]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    arguments = (q, k, v, torch.ones(5, 5).tril()) if name == "attention" else (q, k, v)
    results = []
    for code in (take_marks_out(text), edit_text(text, action, setting)):
        names: dict = {}
        exec(code, names)
        results.append(names["forward" if name == "attention" else "f"](*arguments))
    assert torch.allclose(*results, atol=1e-12)


def test_a_sum_that_moves_out_of_the_loop_is_the_same_number(edit_text):
    torch = pytest.importorskip("torch")
    action, setting, text, _ = FITS["item-sum"]
    results = []
    for code in (take_marks_out(text), edit_text(text, action, setting)):
        names = {"data": [1, 2, 3], "f": lambda x: torch.tensor(x / 4.0), "print": lambda total: results.append(total)}
        exec(code, names)
    assert results == [3.0, 3.0]
    assert [type(each) for each in results] == [float, float]


@pytest.mark.parametrize("name", ["rows-in-a-loop", "rows-in-a-comprehension"])
def test_rows_at_once_are_the_same_rows(edit_text, name):
    torch = pytest.importorskip("torch")
    action, setting, text, _ = FITS[name]
    generator = torch.Generator().manual_seed(0)
    x, gain = (torch.randn(4, size, generator=generator, dtype=torch.float64) for size in (3, 1))
    results = []
    for code in (take_marks_out(text), edit_text(text, action, setting)):
        names = {"x": x}
        exec(code, names)
        results.append(names["scale"](x, gain) if "scale" in names else names["y"])
    assert torch.equal(*results)


def test_a_function_that_remembers_is_called_once_for_each_argument(edit_text):
    torch = pytest.importorskip("torch")
    action, setting, text, _ = FITS["remember"]
    names: dict = {}
    exec(edit_text(text, action, setting), names)
    rows = names["Rows"]()
    rows.lines = ["a bc", "def", "a bc"]
    assert [rows[at].tolist() for at in range(3)] == [[1, 2], [3], [1, 2]]
    assert rows[0] is rows[2]
    assert isinstance(rows[1], torch.Tensor)


@pytest.mark.parametrize(
    ("name", "often"), [("seldom-by-its-interval", 20), ("seldom-by-an-option", 5), ("seldom-by-a-variable", 3)]
)
def test_what_is_done_less_often_is_done_a_tenth_as_often(edit_text, name, often):
    action, setting, text, _ = FITS[name]
    done = []
    for code in (take_marks_out(text), edit_text(text, action, setting)):
        steps: list[int] = []
        lines = [line for line in code.splitlines() if "import torch" not in line and "train(x)" not in line]
        last = next(line for line in lines if line.strip().startswith(("torch.save", "save(", "print(")))
        lines[lines.index(last)] = last[: len(last) - len(last.lstrip())] + "steps.append(step)"
        body = "\n".join(lines).replace("parse_args()", "parse_args([])").replace("range(99)", "range(600)")
        exec(body, {"loader": range(600), "every": 3, "steps": steps})
        done.append(steps)
    before, after = done
    assert len(before) == 600 // often
    assert len(after) == len(before) // 10
    assert set(after) < set(before)


def test_an_option_that_the_command_line_gives_is_not_changed(edit_text):
    text = FITS["workers-of-an-option"].text
    for command in (["train.py", "--num-workers=0"], ["train.py", "-j", "0"]):
        with pytest.raises(EditRefusedError, match="decided elsewhere"):
            edit_text(text, "workers", "2", command=command)
    assert "default=2" in edit_text(text, "workers", "2", command=["train.py", "--epochs", "1"])


@pytest.mark.parametrize(
    ("name", "line", "code"),
    [
        ("workers-of-a-constant", 2, "WORKERS = 2"),
        ("workers-of-an-option", 6, "loader = DataLoader(rows, num_workers=args.num_workers, persistent_workers=True)"),
    ],
)
def test_an_edit_shows_its_own_line_else_the_one_that_decides(tmp_path, name, line, code):
    action, setting, text, _ = FITS[name]
    script = tmp_path / "train.py"
    script.write_text(take_marks_out(text))
    edit = EDITS[action](finding_at(find_mark(text, AT), action, setting), setting, Project(script, tmp_path))
    assert (edit.line, edit.code) == (line, code)
