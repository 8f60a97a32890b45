from __future__ import annotations

import os
import stat

import orjson
import pytest
import report_samples as samples

from perfdoctor.errors import InputError, UsageError
from perfdoctor.reporters.output import open_atomically
from perfdoctor.reporters.reporter import Reporter
from perfdoctor.reporters.write_report import save_report, suffix_of


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("r.html", ".html"), ("r.json", ".json"), ("a.b.MD", ".md"), ("r.txt", ".txt"), ("trace.json.gz", ".json.gz")],
)
def test_the_suffix_decides_the_form(name, suffix):
    assert suffix_of(name) == suffix


@pytest.mark.parametrize("name", ["r.pdf", "report", "r.gz", "json"])
def test_other_suffixes_are_refused_with_those_that_work(name):
    with pytest.raises(UsageError, match=r"\.json, \.md, .*\.txt, \.json\.gz"):
        suffix_of(name)


def test_saved_files_hold_the_rendered_report(tmp_path):
    for suffix in (".json", ".md", ".txt"):
        save_report(samples.loader_stall(), tmp_path / f"r{suffix}")
    assert orjson.loads((tmp_path / "r.json").read_bytes())["schema"] == "perfdoctor.report/2"
    assert (tmp_path / "r.md").read_text(encoding="utf-8").startswith("## perfdoctor")
    assert "DataLoader" in (tmp_path / "r.txt").read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "r.md", "r.txt"]


def test_a_failure_while_writing_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "r.md"
    path.write_text("old")

    def fail() -> None:
        with open_atomically(path) as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["missing/r.md", "."])
def test_what_cannot_be_written_is_one_sentence(tmp_path, where):
    with pytest.raises(InputError, match="cannot be written"), open_atomically(tmp_path / where) as out:
        out.write(b"")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_and_permissions_are_the_users_own(tmp_path):
    target, link = tmp_path / "real.md", tmp_path / "link.md"
    target.write_text("old")
    link.symlink_to(target)
    with open_atomically(link) as out:
        out.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no /dev/null here")
def test_a_device_is_written_and_never_replaced():
    with open_atomically("/dev/null") as out:
        out.write(b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_reporter_needs_its_suffix():
    with pytest.raises(TypeError, match="suffix"):
        type("Nameless", (Reporter,), {"render_prepared": lambda _self, _report: ""})
    assert type("Csv", (Reporter,), {"suffix": ".csv", "render_prepared": lambda _self, _report: ""})().suffix == ".csv"
