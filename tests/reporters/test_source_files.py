from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report_samples as samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.reporters.source_files import find_source_files
from perfdoctor.trace.io.untrusted_files import find_root


@pytest.fixture
def repository(tmp_path):
    for file in ("train.py", "examples/train.py", "src/model/blocks.py"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".git").mkdir()
    return tmp_path


def _find(root: Path, file: str, folders: tuple[str, ...] = ()) -> str:
    report = samples.loader_stall()
    finding = replace(report.findings[0], location=SourceLocation(file, 3))
    return find_source_files(replace(report, findings=(finding,), program_folders=folders), root)[file]


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("train.py", "train.py"),
        ("examples/train.py", "examples/train.py"),
        ("/gpu-machine/job/examples/train.py", "examples/train.py"),
        ("/gpu-machine/job/train.py", "train.py"),
        (r"C:\job\src\model\blocks.py", "src/model/blocks.py"),
        ("./src/model/blocks.py", "src/model/blocks.py"),
        ("/gpu-machine/job/other.py", "/gpu-machine/job/other.py"),
        ("../train.py", "../train.py"),
        ("In[3]", "In[3]"),
        ("<string>", "<string>"),
        ("bad\0name.py", "bad\0name.py"),
    ],
)
def test_a_file_is_the_one_of_the_repository_with_the_longest_end_in_common(repository, file, found):
    assert _find(repository, file) == found


def test_a_file_below_the_root_is_named_from_there_even_if_it_has_gone(repository):
    assert _find(repository, f"{repository}/gone/train.py") == "gone/train.py"


def test_a_file_that_is_not_here_is_named_from_its_program_on(repository):
    assert _find(repository, "/job/code/other.py", ("/job/code",)) == "other.py"


def test_the_root_is_that_of_the_repository_or_the_folder_itself(repository, tmp_path_factory):
    assert find_root(repository / "src" / "model") == repository
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_root(elsewhere) == elsewhere
