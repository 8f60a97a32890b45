"""Which files of a program may be edited, and copies in which nothing outside is ever written."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_finding import finding_at

from perfdoctor.errors import EditRefusedError, InputError
from perfdoctor.fixes import scratch_copy
from perfdoctor.fixes.choose_edits import apply_edits, choose_edits
from perfdoctor.fixes.edits.contexts import wrap_statements
from perfdoctor.fixes.patch import make_patch
from perfdoctor.fixes.project import Project, find_script
from perfdoctor.fixes.scratch_copy import copy_sources, map_command, map_folder
from perfdoctor.fixes.source_edit import set_arguments
from perfdoctor.fixes.source_file import Splice, read_source

LOADER = "from torch.utils.data import DataLoader\nloader = DataLoader(rows)\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "home"
    for name, text in {
        "train.py": "import data.load\nfrom . import helper\n",
        "helper.py": "x = 1\n",
        "data/__init__.py": "",
        "data/load.py": LOADER,
        "other.py": LOADER,
        "venv/pyvenv.cfg": "",
        "venv/lib/torch.py": LOADER,
        "sub/.git": "gitdir: elsewhere",
        "sub/model.py": LOADER,
        "files/rows.csv": "1,2",
        ".git/config": "",
        "perfdoctor-capture/rank0/x.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "outside.py").write_text(LOADER)
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    return Project(root / "train.py", root)


@pytest.mark.parametrize("name", ["train.py", "data/load.py", "{root}/helper.py"])
def test_files_of_the_project_are_found(project, name):
    assert project.source(name.format(root=project.root)).path.is_file()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("venv/lib/torch.py", "library"),
        ("sub/model.py", "another repository"),
        ("link.py", "link out"),
        ("../outside.py", "library"),
        ("/usr/lib/none.py", "not in"),
        ("files/rows.csv", "no Python"),
        ("<ipython-input-3>", "cell of a notebook"),
        ("/tmp/ipykernel_17/4.py", "cell of a notebook"),
        ("gone.py", "not in"),
    ],
)
def test_other_files_are_refused_with_the_reason(project, name, why):
    with pytest.raises(EditRefusedError, match=why):
        project.source(name)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x = (\n", "parsed"),
        (b"\xff\xfe\x00", "parsed"),
        (b"# coding: no-such\n", "parsed"),
        (b"x = 1\ry = 2\r", "line ends"),
        (b"x = '\x00'\n", "parsed"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "parsed"),
        (b"#" * 4_000_001, "larger"),
    ],
)
def test_sources_that_are_none_are_refused(project, data, why):
    (project.root / "helper.py").write_bytes(data)
    with pytest.raises(EditRefusedError, match=why):
        project.source("helper.py")


def test_a_read_only_file_is_refused(project):
    (project.root / "helper.py").chmod(0o444)
    with pytest.raises(EditRefusedError, match="read-only"):
        project.source("helper.py")


def test_what_the_script_imports_is_the_program(project):
    assert [each.name for each in project.program_files()] == ["train.py", "data/load.py", "helper.py"]


def test_the_one_loader_of_the_program_is_edited_though_another_script_has_one_too(project):
    found, refused = choose_edits([finding_at(1, "workers", "2")], project)
    assert [each.edit.place for each in found] == ["data/load.py:2"]
    assert refused == []


def test_findings_of_one_place_and_action_are_one_edit_and_covered_ones_none(project):
    findings = [finding_at(1, "workers", "2"), finding_at(None, "workers", "2"), finding_at(1, "allocator")]
    findings.append(finding_at(1, "pin-memory", "on") | {"covered_by": 0})
    found, refused = choose_edits(findings, project)
    assert [(each.edit.action, each.answers) for each in found] == [("workers", (0, 1))]
    assert [each.label for each in refused] == ["allocator"]


def test_a_finding_is_edited_where_the_better_fix_is_not_made_or_has_to_be_allowed(project):
    seldom = finding_at(1, "less-often", "10", file="other.py")
    covered = finding_at(1, "workers", "2") | {"covered_by": 0}
    (project.root / "other.py").write_text("for i in range(9): pass\nfor i in range(9):\n    print(i)\n")
    for better in (seldom | {"location": {"file": "other.py", "line": 3}}, finding_at(1, "consider-compiling")):
        found, _ = choose_edits([better, covered], project)
        assert "workers" in [each.edit.action for each in found]


def test_an_action_without_an_edit_says_so(project):
    found, [refused] = choose_edits([finding_at(1, "consider-compiling")], project)
    assert not found
    assert "advice says" in refused.why


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ([sys.executable, "train.py", "--epochs", "1"], "train.py"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train.py"),
        ([sys.executable, "-m", "data.load"], "data/load.py"),
        ([sys.executable, "-m", "data"], "data/__init__.py"),
        (["make", "train"], None),
    ],
)
def test_the_script_of_a_command(project, command, script):
    assert find_script(command, project.root) == (script and project.root / script)


def test_a_copy_has_the_edits_and_links_what_is_no_source(project, tmp_path):
    copy = tmp_path / "copy"
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    copy_sources(project, copy, {"train.py": b"edited\n"})
    assert (copy / "train.py").read_bytes() == b"edited\n"
    assert (copy / "data/load.py").read_text() == LOADER
    assert not (copy / "data/load.py").is_symlink()
    assert (copy / "files").is_symlink()
    assert (copy / "venv").is_symlink()
    assert (copy / "link.py").is_symlink()
    assert not (copy / ".git").exists()
    assert not (copy / "perfdoctor-capture").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_a_copy_inside_of_the_project_does_not_copy_itself(project):
    copy = project.root / "perfdoctor-fix-train" / "sources" / "plain"
    copy_sources(project, copy, {})
    assert not (copy / "perfdoctor-fix-train").exists()
    named = project.root / "out" / "plain"
    copy_sources(project, named, {})
    assert not (named / "out" / "plain").exists()


def test_a_copy_of_read_only_sources_can_be_written_and_they_cannot(project, tmp_path):
    (project.root / "helper.py").chmod(0o444)
    copy_sources(project, tmp_path / "copy", {})
    assert (tmp_path / "copy/helper.py").stat().st_mode & 0o200
    assert not (project.root / "helper.py").stat().st_mode & 0o200


def test_too_many_files_are_one_sentence(project, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch_copy, "MAX_FILES", 3)
    with pytest.raises(InputError, match="more than 3 Python files"):
        copy_sources(project, tmp_path / "copy", {})


def test_commands_and_folders_are_those_of_the_copy(project, tmp_path):
    copy, script = tmp_path / "copy", project.root / "train.py"
    command = [sys.executable, str(script), "--data", str(project.root / "files")]
    assert map_command(command, project, copy) == (sys.executable, str(copy / "train.py"), *command[2:])
    assert map_folder(project.root / "data", project, copy) == copy / "data"
    assert map_folder(tmp_path, project, copy) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfimport gc\r\nx = 'a'\r\n", b"\xef\xbb\xbfimport gc\r\nx = 'b'\r\n"),
        (
            "# coding: latin-1\nx = 'a'; y = 'ä'".encode("latin-1"),
            "# coding: latin-1\nx = 'b'; y = 'ä'".encode("latin-1"),
        ),
        ("π = 'ü'; x = 'a'\n".encode(), "π = 'ü'; x = 'b'\n".encode()),
        (b"if 1:\n\tx = 'a'\n", b"if 1:\n\tx = 'b'\n"),
        (b"\x0cx = 'a'\n", b"\x0cx = 'b'\n"),
    ],
)
def test_other_encodings_and_line_ends_stay(tmp_path, data, expected):
    path = tmp_path / "train.py"
    path.write_bytes(data)
    source = read_source(path, "train.py")
    [value] = [each for each in source.nodes(ast.Constant) if each.value == "a"]
    assert source.splice((Splice(*source.span(value), "'b'"),)) == expected


def test_a_generated_file_of_50_000_lines_is_edited(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOADER + "".join(f"def f{n}(a):\n    return a[{n}]\n\n" for n in range(17_000)))
    found, _ = choose_edits([finding_at(2, "workers", "2")], Project(path, tmp_path))
    patch = make_patch([found[0].edit], "x")
    assert patch.count(b"\n+") == patch.count(b"\n-") == 2


def test_edits_that_change_the_same_code_do_not_fit_together(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("from torch.utils.data import DataLoader\nloader = DataLoader(rows, num_workers=1)\n")
    project = Project(path, tmp_path)
    found, _ = choose_edits([finding_at(2, "workers", "2"), finding_at(2, "workers", "4")], project)
    with pytest.raises(EditRefusedError, match="same code"):
        apply_edits([each.edit for each in found])
    pinned, _ = choose_edits([finding_at(2, "workers", "2"), finding_at(2, "pin-memory", "on")], project)
    [after] = apply_edits([each.edit for each in pinned]).values()
    assert b"DataLoader(rows, num_workers=2, persistent_workers=True, pin_memory=True)" in after


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.sampled_from(["1", "None", "'x, y'", "(2, 3)", "f(4)", "[5]"])


@given(
    positional=st.lists(VALUES, max_size=3),
    keywords=st.dictionaries(NAMES, st.sampled_from(["1", "None", "'x'"]), max_size=4),
    wanted=st.dictionaries(NAMES, st.sampled_from(["True", "7", "None"]), min_size=1, max_size=3),
    comma=st.booleans(),
    newlines=st.booleans(),
)
def test_any_call_gets_its_arguments_and_keeps_the_others(
    tmp_path_factory, positional, keywords, wanted, comma, newlines
):
    between = ",\n    " if newlines else ", "
    inside = between.join([*positional, *(f"{name}={value}" for name, value in keywords.items())])
    text = f"y = call({inside}{',' if comma and inside else ''})\n"
    path = tmp_path_factory.mktemp("calls") / "train.py"
    path.write_text(text)
    source = read_source(path, "train.py")
    [call] = [each for each in source.nodes(ast.Call) if source.code(each.func) == "call"]
    if all(keywords.get(name) == value for name, value in wanted.items()):
        with pytest.raises(EditRefusedError, match="already"):
            set_arguments(source, call, wanted, Project(path, path.parent))
        return
    after = source.splice(set_arguments(source, call, wanted, Project(path, path.parent)))
    [edited] = [
        each for each in ast.walk(ast.parse(after)) if isinstance(each, ast.Call) and ast.unparse(each.func) == "call"
    ]
    assert [ast.unparse(each) for each in edited.args] == [
        ast.unparse(ast.parse(each).body[0].value) for each in positional
    ]
    found = {each.arg: ast.unparse(each.value) for each in edited.keywords}
    assert found == keywords | wanted


@given(
    st.lists(
        st.sampled_from(["x = 1", "if x:\n    y = 2", "", "for i in x:\n    z = i\n\n    w = 3", "# note"]), min_size=1
    )
)
def test_wrapped_statements_are_the_same_statements(tmp_path_factory, parts):
    text = "\n".join([*parts, "last = 1"]) + "\n"
    path = tmp_path_factory.mktemp("blocks") / "train.py"
    path.write_text(text)
    source = read_source(path, "train.py")
    after = ast.parse(source.splice(wrap_statements(source, source.tree.body, "with context:")))
    [block] = after.body
    assert [ast.dump(each) for each in block.body] == [ast.dump(each) for each in source.tree.body]


def test_links_between_folders_of_a_project_end(project, tmp_path):
    (project.root / "data" / "loop").symlink_to(project.root)
    os.symlink("self.py", project.root / "self.py")
    copy_sources(project, tmp_path / "copy", {})
    assert (tmp_path / "copy/data/loop").is_symlink()
