"""Traces in S3, as moto serves it over HTTP: read in ranges, listed, refused; from Python and from the command line."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsys_files import limit_to_nsys, write_nsys
from servers import answering, serving

import perfdoctor
from perfdoctor.errors import InputError, TraceError
from perfdoctor.fleet.discover import find_traces
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse, read
from perfdoctor.trace.io import remote

pytestmark = pytest.mark.process

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("flask_cors")
moto = pytest.importorskip("moto.server")

AssertSame = Callable[[Trace, Trace], None]
Pack = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Where moto answers as S3, with the environment of a user who has an account there."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        account(patch, address)
        yield address
    server.stop()


def account(patch: pytest.MonkeyPatch, address: str) -> None:
    """The variables that AWS's own tools go by."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ENDPOINT_URL", address)
    patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Lets fsspec make each test's connections anew, and list anew."""
    yield
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(endpoint: str) -> Iterator[Any]:
    """A bucket of the name `bucket`, empty."""
    store = s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True, use_listings_cache=False)
    store.mkdir("bucket")
    yield store
    store.rm("bucket", recursive=True)


def steps(rank: int) -> TraceBuilder:
    return TraceBuilder(rank=rank, world_size=2).step(0, 100).kernel("sgemm", 5, 60 + 10 * rank, launch_us=1)


def large() -> bytes:
    b = TraceBuilder(rank=1)
    for i in range(10_000):
        b.op(f"aten::op{i * 7919 % 1009}", i * 10 + 0.125, 5, shapes=[[i % 64, 3]])
    return b.to_bytes()


def zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").ZstdCompressor(level=1).compress(data)
    return compressed


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_an_object_is_read_in_ranges(
    bucket: Any, pack: Pack, assert_same: AssertSame, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = large()
    data = pack(text)
    monkeypatch.setattr(remote, "_REQUEST_BYTES", len(data) // 5)
    bucket.pipe("bucket/run/t", data)
    reported: list[tuple[int, int | None]] = []
    trace = read("s3://bucket/run/t", lambda done, total: reported.append((done, total)))
    assert_same(trace, parse(text, "x"))
    assert trace.complete
    assert trace.path == "s3://bucket/run/t"
    assert reported[-1] == (len(data), len(data))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_object_that_is_removed_meanwhile_is_kept_as_far_as_it_came(
    bucket: Any, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfdoctor.trace.io.stream._PAUSE_S", 0.0)
    data = pack(large())
    # Many requests: it is removed before the last one, however far reading is ahead of the progress.
    monkeypatch.setattr(remote, "_REQUEST_BYTES", len(data) // 20)
    bucket.pipe("bucket/t", data)

    def progress(_done: int, _total: int | None) -> None:
        if bucket.exists("bucket/t"):
            bucket.rm("bucket/t")

    trace = read("s3://bucket/t", progress)
    assert not trace.complete
    assert 100 < trace.events < 9_000
    assert trace.warnings[-1].startswith("the connection ended after ")
    assert f" of {len(data)} bytes (" in trace.warnings[-1]


def test_ranks_are_found_by_folder_pattern_and_prefix(bucket: Any) -> None:
    for rank in (0, 1, 10):
        bucket.pipe(f"bucket/run/rank{rank}.json.gz", gzip.compress(steps(rank).to_bytes()))
    bucket.pipe("bucket/run/report.json", b"{}")
    everything = [(rank, f"s3://bucket/run/rank{rank}.json.gz") for rank in (0, 1, 10)]
    for path in ("s3://bucket/run", "s3://bucket/run/", "s3://bucket/run/*.json.gz", "s3://bucket/run/rank"):
        assert [(file.rank, os.fspath(file.path)) for file in find_traces([path])] == everything
    assert [file.rank for file in find_traces(["s3://bucket/run/rank1"])] == [1, 10]
    report = perfdoctor.analyze("s3://bucket/run/")
    assert [t.rank for t in report.traces] == [0, 1, 10]


def test_a_capture_is_read_with_its_facts(bucket: Any) -> None:
    for rank in (0, 1):
        bucket.pipe(f"bucket/capture/rank{rank}/timing.json.gz", gzip.compress(steps(rank).to_bytes()))
        bucket.pipe(f"bucket/capture/rank{rank}/evidence.json.gz", gzip.compress(steps(rank).to_bytes()))
        bucket.pipe(f"bucket/capture/rank{rank}/facts.json", json.dumps({"schema": "perfdoctor.facts/1"}).encode())
    found = find_traces(["s3://bucket/capture"])
    assert [str(file.facts_path) for file in found] == [f"s3://bucket/capture/rank{rank}/facts.json" for rank in (0, 1)]
    assert len(perfdoctor.analyze("s3://bucket/capture").traces) == 2
    bucket.pipe("bucket/capture/rank1/facts.json", b"{")
    (_, second) = perfdoctor.analyze("s3://bucket/capture").traces
    assert not second.complete
    assert "s3://bucket/capture/rank1/facts.json cannot be read as captured facts" in second.warnings[0]


def test_an_export_of_nsight_systems_is_read(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe("bucket/t.sqlite", write_nsys(tmp_path / "t", limit_to_nsys(steps(0).to_dict())).read_bytes())
    trace = read("s3://bucket/t.sqlite")
    assert (len(trace.gpu), trace.path) == (1, "s3://bucket/t.sqlite")


def refusal(path: str) -> str:
    with pytest.raises(TraceError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_what_is_not_there_is_one_sentence(bucket: Any) -> None:
    bucket.pipe("bucket/empty", b"")
    assert refusal("s3://bucket/gone.json") == "there is no such file; check the URL"
    assert refusal("s3://nobody/gone.json") == "there is no such file; check the URL"
    assert refusal("s3://bucket/empty").startswith("the file is empty")
    with pytest.raises(InputError, match="no file matches this pattern"):
        find_traces(["s3://bucket/*.json"])


def test_what_may_not_be_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering(403)) as address:
        account(monkeypatch, address)
        assert refusal("s3://bucket/t.json") == "no permission to read it; check the credentials"


def analysed(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfdoctor", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


def test_the_command_line_reads_and_annotates_what_is_in_s3(bucket: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        bucket.pipe(f"bucket/run/rank{rank}.json.zst", zstd(steps(rank).to_bytes()))
    ended = analysed("analyze", "s3://bucket/run/", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    paths = [trace["path"] for trace in json.loads(ended.stdout)["traces"]]
    assert paths == [f"s3://bucket/run/rank{rank}.json.zst" for rank in (0, 1)]
    out = tmp_path / "annotated.json.gz"
    ended = analysed("export", "s3://bucket/run/rank1.json.zst", "-o", out)
    assert ended.returncode == 0, ended.stderr
    assert len(read(out).gpu) == 1


def test_the_endpoint_can_stand_in_the_configuration_of_fsspec(
    bucket: Any, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.pipe("bucket/t.json", steps(0).to_bytes())
    options = {"s3": {"key": "somebody", "secret": "secret", "endpoint_url": endpoint}}
    (tmp_path / "conf.json").write_text(json.dumps(options))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    ended = analysed("analyze", "s3://bucket/t.json", "-q", FSSPEC_CONFIG_DIR=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_missing_object_ends_the_command_with_one_line(bucket: Any) -> None:
    assert bucket.exists("bucket")
    ended = analysed("analyze", "s3://bucket/gone.json")
    assert ended.returncode == 2
    assert ended.stderr == "perfdoctor: s3://bucket/gone.json: there is no such file; check the URL\n"
