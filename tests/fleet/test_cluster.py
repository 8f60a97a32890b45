"""Ranks analysed on a Dask cluster of two workers, which are processes reached over TCP."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_helpers import BlockingPipe, content_of, needs_proc

import perfdoctor
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import FileProgress
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import FailedFile, analyze_file_remotely

pytestmark = pytest.mark.process

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import dask

    # Dask gives a file up after the first worker that dies with it; its default of four would take longer to show.
    with (
        dask.config.set(
            {"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.no-workers-timeout": "60s"}
        ),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="tcp://", dashboard_address=":0", silence_logs="CRITICAL"
        ) as started,
    ):
        yield started


def test_a_cluster_reports_what_one_process_does(cluster: Any, fleet: Path) -> None:
    states: list[FileProgress] = []
    report = perfdoctor.analyze(fleet, dask=cluster.scheduler_address, progress=states.append)
    assert content_of(report) == content_of(perfdoctor.analyze(fleet, jobs=1))
    assert [state.finished for state in states] == [1, 2, 3, 4]


@pytest.mark.corpus
def test_a_cluster_reports_what_processes_do_of_real_ranks(cluster: Any, corpus: Path) -> None:
    real = corpus / "v100-torchrec-4ranks"
    report = perfdoctor.analyze(real, dask=cluster.scheduler_address)
    assert content_of(report) == content_of(perfdoctor.analyze(real, jobs=2))


def test_relative_paths_are_found_and_stay_as_the_user_wrote_them(
    cluster: Any, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fleet.parent)
    (fleet / "rank3.json").write_text("no trace")
    alone, shared = perfdoctor.analyze("run", jobs=1), perfdoctor.analyze("run", dask=cluster.scheduler_address)
    assert [trace.path for trace in shared.traces] == [trace.path for trace in alone.traces]
    assert "not JSON" in shared.missing[0].warnings[0]


@needs_proc
def test_the_file_of_a_worker_that_dies_goes_to_another(cluster: Any, fleet: Path) -> None:
    whole = perfdoctor.analyze(fleet, jobs=1)
    content = (fleet / "rank1.json").read_bytes()
    pipe = BlockingPipe(fleet / "rank1.json")

    def kill_and_feed() -> None:
        pipe.kill_reader()
        pipe.write(content)

    helper = threading.Thread(target=kill_and_feed, daemon=True)
    helper.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), dask=cluster.scheduler_address)
    helper.join()
    assert content_of(report) == content_of(whole)


@needs_proc
def test_a_file_that_kills_several_workers_is_missing(cluster: Any, fleet: Path) -> None:
    pipe = BlockingPipe(fleet / "rank1.json")

    def kill_twice() -> None:  # also the worker of the retry
        pipe.kill_reader()
        pipe.kill_reader()

    helper = threading.Thread(target=kill_twice, daemon=True)
    helper.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), dask=cluster.scheduler_address)
    helper.join()
    assert [account.rank for account in report.account] == [0, 2, 3]
    (lost,) = report.missing
    assert "the workers that were given it died" in lost.warnings[0]


def test_a_worker_that_does_not_see_a_file_says_where_to_put_it(tmp_path: Path) -> None:
    lost = analyze_file_remotely(TraceFile(Path("run/rank0.json"), rank=0), AnalysisOptions(), str(tmp_path))
    assert isinstance(lost, FailedFile)
    assert lost.file.path == Path("run/rank0.json")
    assert f"{tmp_path}/run/rank0.json cannot be seen by the worker on " in lost.reason
    assert "put the traces where all workers can read them" in lost.reason


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere://x:1"])
def test_a_scheduler_that_is_not_there_is_one_sentence(
    fleet: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfdoctor.fleet.cluster._CONNECT_TIMEOUT_SECONDS", 1)
    with pytest.raises(InputError, match=f"--dask {address}: no scheduler can be reached"):
        perfdoctor.analyze(fleet, dask=address)


def test_without_dask_the_extra_is_named(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"--dask needs Dask .* pip install 'perfdoctor\[dask\]'"):
        perfdoctor.analyze(fleet, dask="tcp://127.0.0.1:8786")
