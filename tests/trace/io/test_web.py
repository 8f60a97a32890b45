"""Folders and patterns on the web, which are what their index pages list; and URLs that hold a password."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from servers import Folder, serving

import perfdoctor
from perfdoctor.cli.main import main
from perfdoctor.errors import InputError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.io import web
from perfdoctor.trace.io.remote_path import RemotePath

pytestmark = pytest.mark.process

APACHE = """<html><body><h1>Index of /run</h1><table>
<a href="?C=N;O=D">Name</a> <a href="/">Parent Directory</a>
<tr><td><a href="rank0.json.gz">rank0.json.gz</a><td><a href="rank0.json.gz">again</a>
<tr><td><a href="/run/rank1.json.gz?download">rank1.json.gz</a><td><A HREF='rank%202.json'>rank 2.json</a>
<a href="deeper/">deeper/</a> <a href="deeper/rank3.json">no</a> <a href="../other.json">no</a> <a name="x">no</a>
<a href="http://elsewhere/run/rank4.json">no</a> <a href="rank0.json.gz#top">no</a>"""


def test_a_folder_holds_what_its_page_links_to_beneath_it() -> None:
    found = ["deeper/", "rank%202.json", "rank0.json.gz", "rank1.json.gz"]
    assert web.list_index_page("http://host/run/", APACHE) == found
    assert web.list_index_page("http://me:secret@host/run/", APACHE) == found
    assert web.list_index_page("http://host/run/", "no page < at > all") == []


def steps(rank: int) -> TraceBuilder:
    return TraceBuilder(rank=rank, world_size=2).step(0, 100).kernel("sgemm", 5, 60 + 10 * rank, launch_us=1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Two ranks as files, and two as a capture."""
    for rank in (0, 1):
        inner = tmp_path / "capture" / f"rank{rank}"
        inner.mkdir(parents=True)
        steps(rank).write(tmp_path / f"rank{rank}.json.gz")
        steps(rank).write(inner / "timing.json.gz")
        (inner / "facts.json").write_bytes(b'{"schema": "perfdoctor.facts/1"}')
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "empty").mkdir()
    with serving(partial(Folder, directory=str(tmp_path))) as address:
        yield address


def test_a_folder_on_the_web_is_analysed_as_its_ranks(served: str) -> None:
    report = perfdoctor.analyze(f"{served}/")
    assert [(t.rank, t.path) for t in report.traces] == [(r, f"{served}/rank{r}.json.gz") for r in (0, 1)]


def test_a_capture_on_the_web_is_found_with_its_facts(served: str) -> None:
    found = find_traces([f"{served}/capture/"])
    assert [(file.rank, os.fspath(file.path)) for file in found] == [
        (rank, f"{served}/capture/rank{rank}/timing.json.gz") for rank in (0, 1)
    ]
    assert [str(file.facts_path) for file in found] == [f"{served}/capture/rank{rank}/facts.json" for rank in (0, 1)]
    assert [file.evidence_path for file in found] == [None, None]
    assert len(perfdoctor.analyze(f"{served}/capture/").traces) == 2


def test_a_pattern_on_the_web_is_for_names(served: str) -> None:
    assert [file.rank for file in find_traces([f"{served}/rank[1-9]*.json.gz"])] == [1]
    with pytest.raises(InputError, match="no file matches this pattern"):
        find_traces([f"{served}/*.sqlite"])


def test_a_folder_without_traces_on_the_web_is_one_sentence(served: str) -> None:
    with pytest.raises(InputError, match="/empty/: no traces in this folder"):
        find_traces([f"{served}/empty/"])
    with pytest.raises(InputError, match="/gone/: there is no such file"):
        find_traces([f"{served}/gone/"])


def test_what_lets_one_in_is_passed_on_from_a_folder_to_its_files() -> None:
    folder = RemotePath("https://me:secret@host/run/?sig=1")
    assert folder.is_dir()
    assert (folder / "rank0.json").url == "https://me:secret@host/run/rank0.json?sig=1"
    assert str(folder / "rank0.json") == "https://host/run/rank0.json"


def test_a_password_goes_to_the_server_and_nowhere_else(tmp_path: Path) -> None:
    path = steps(0).write(tmp_path / "rank0.json")

    class Locked(Folder):
        def do_GET(self) -> None:  # noqa: N802
            if self.path.startswith("/there"):  # the same server under another name is another host to the client
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/open")
                self.end_headers()
            elif self.path == "/open" or self.headers["Authorization"] != f"Basic {b64encode(b'me:a b').decode()}":
                self.send_error(418 if "Authorization" in self.headers else 401)
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(path.read_bytes())

    with serving(Locked) as address:
        known, wrong = (address.replace("://", f"://me:{word}@") for word in ("a%20b", "secret"))
        assert perfdoctor.read(f"{known}/t.json").path == f"{address}/t.json"
        for url, status in ((f"{wrong}/t.json", "418"), (f"{known}/there", "no permission")):
            with pytest.raises(InputError) as caught:
                perfdoctor.read(url)
            assert status in str(caught.value)
            assert "secret" not in str(caught.value)


def without_end(first: bytes, again: bytes) -> type[Folder]:
    """A handler whose answer never ends."""

    class Endless(Folder):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.end_headers()
            self.wfile.write(first)
            while True:
                self.wfile.write(again * (100_000 // len(again)))

    return Endless


def test_an_index_page_without_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(without_end(b"", b"<a href='rank0.json'>x</a>")) as address:
        with pytest.raises(InputError) as caught:
            perfdoctor.analyze(f"{address}/run/")
        assert "its index page does not end after 16,000,000 bytes; name the traces" in str(caught.value)
        assert main(["analyze", f"{address}/run/*.json", "--max-index", "0.5"]) == 2
    assert "does not end after 500,000 bytes; name the traces, or give a larger --max-index" in capsys.readouterr().err


EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": 1},'


def test_of_a_stream_without_end_as_much_is_read_as_the_limit_says() -> None:
    with serving(without_end(b'{"traceEvents": [', EVENT)) as address:
        trace = perfdoctor.read(f"{address}/t.json", max_text_bytes=1_000_000)
    assert trace.events == (1_000_000 - 17) // len(EVENT)
    assert not trace.complete
    assert "reading ended after 0.001 GB of text, the limit" in trace.warnings[-1]
