"""docs/check_news.py, with what PyPI could answer; and its table, against what we test with."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.error import URLError

import check_news
import pytest

ROOT = Path(__file__).parents[2]
FILE, WITHDRAWN = {"yanked": False}, {"yanked": True}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "looked_at.toml"
    path.write_text('[torch]\nversion = "2.13.0"\nchanges = "names"\n[HTA]\nversion = "0.5.0"\nchanges = "figures"\n')
    return path


def answer(table: Path, capsys: pytest.CaptureFixture[str], **releases: Any) -> tuple[int, str]:
    """The exit code and the text, where PyPI has these releases; an exception is raised, what is no table returned."""

    def fetch(url: str) -> Any:
        found = releases[url.removeprefix("https://pypi.org/pypi/").removesuffix("/json")]
        if isinstance(found, Exception):
            raise found
        return {"releases": found} if isinstance(found, dict) else found

    code = check_news.main(["--table", str(table)], fetch)
    return code, capsys.readouterr().out


SAME = {"0.5.0": [FILE]}


@pytest.mark.parametrize(
    ("releases", "newest"),
    [
        ({"2.13.0": [FILE], "2.14.0": [FILE]}, "2.14.0"),
        ({"2.9.1": [FILE], "2.13.1": [FILE, WITHDRAWN]}, "2.13.1"),
        ({"2.13": [FILE]}, None),
        ({"2.13.0": [FILE], "2.9.1": [FILE]}, None),  # as text 2.9 is the larger one
        ({"2.13.0": [FILE], "2.14.0rc1": [FILE], "2.14.0.dev1": [FILE]}, None),
        ({"2.13.0": [FILE], "2.14.0": [WITHDRAWN], "2.15.0": []}, None),
        ({"2.12.0": [FILE]}, None),  # what we looked at was withdrawn
        ({"2.13.0": [FILE], "nightly": [FILE]}, None),
    ],
)
def test_only_a_newer_final_release_is_news(table, capsys, releases: dict[str, Any], newest: str | None) -> None:
    code, text = answer(table, capsys, torch=releases, HTA=SAME)
    if newest is None:
        assert (code, text) == (0, "Nothing is new.\n")
    else:
        assert code == 1
        assert text.splitlines()[2:] == [f"| torch | 2.13.0 | {newest} | names |"]


@pytest.mark.parametrize(
    "broken", [URLError("no route"), TimeoutError("slow"), ValueError("no JSON"), [], {"2.13.0": [{}]}, {}, "text"]
)
def test_no_answer_is_not_the_same_as_no_news(table, capsys, broken: Any) -> None:
    code, text = answer(table, capsys, torch=broken, HTA=SAME)
    assert code == 2
    assert text.startswith("Nothing is new.\n\ntorch: no answer (")
    code, text = answer(table, capsys, torch=broken, HTA={"0.6.0": [FILE]})
    assert code == 1
    assert "| HTA | 0.5.0 | 0.6.0 | figures |" in text
    assert "torch: no answer (" in text


def test_the_table_has_the_versions_that_we_test_with() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {name.lower(): version for name, version in pins}
    packages = check_news.load_table()
    compared = {p.name: str(p.version) for p in packages if p.name.lower() in pinned}
    assert compared == {name: pinned[name.lower()] for name in compared}
    assert {"torch", "lightning", "transformers"} <= compared.keys()
    assert all(package.changes for package in packages)


@pytest.mark.process
def test_it_runs_as_a_workflow_calls_it(tmp_path: Path) -> None:
    # A table without packages asks nobody.
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert tomllib.loads(empty.read_text()) == {}
    command = [sys.executable, str(ROOT / "docs" / "check_news.py"), "--table", str(empty)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Nothing is new.\n")
