"""Analyses files on the workers of a running Dask cluster; only summaries come back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import FailedFile, FileResult, analyze_file_remotely
from perfdoctor.fleet.read_progress import ProgressTracker

_CONNECT_TIMEOUT_SECONDS = 10
# A retry of the file that kills workers costs several more of them.
_MAX_RETRIES = 16


def analyze_on_cluster(
    files: Sequence[TraceFile], options: AnalysisOptions, address: str, tracker: ProgressTracker
) -> Iterator[tuple[int, FileResult]]:
    """Analyse files on a Dask cluster. However this generator ends, tasks that the cluster has not begun are cancelled.

    When a worker dies, Dask gives its files to another one. It gives up all files that were on several workers when
    those died. Only one of these files can be the cause: each is tried again by itself, after all others.

    Args:
        files: the files, on storage that all workers see, or behind URLs.
        options: how to analyse them.
        address: of the scheduler, as tcp://host:8786.
        tracker: gets each file that is done.

    Yields:
        The index of a file with its result, in the order in which they finish.

    Raises:
        UsageError: Dask is not installed, or the options are wrong.
        InputError: the scheduler cannot be reached.
    """
    client, as_completed = _connect(address)
    arguments = {"options": options, "folder": os.getcwd(), "pure": False}
    with client:
        futures = client.map(analyze_file_remotely, files, **arguments)
        index_of = {future.key: index for index, future in enumerate(futures)}
        retries: list[int] = []
        try:
            for future in as_completed(futures, loop=client.loop):
                index = index_of[future.key]
                if _workers_died(future) and len(retries) < _MAX_RETRIES:
                    retries.append(index)
                    continue
                yield index, _finish_file(files, index, future, tracker)
            for index in retries:
                futures = [client.submit(analyze_file_remotely, files[index], **arguments)]
                for future in as_completed(futures, loop=client.loop):
                    yield index, _finish_file(files, index, future, tracker)
        finally:
            client.cancel(futures, force=True)


def _connect(address: str) -> tuple[Any, Any]:
    """A client of the scheduler, and Dask's `as_completed`."""
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            f"--dask needs Dask on this machine and on the workers ({error}); pip install 'perfdoctor[dask]'"
        ) from None
    try:
        client: Any = Client  # which has no types
        return client(address, timeout=_CONNECT_TIMEOUT_SECONDS, set_as_default=False), as_completed
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"--dask {address}: no scheduler can be reached ({reason}); give the address that `dask scheduler` prints"
        ) from None


def _finish_file(files: Sequence[TraceFile], index: int, future: Any, tracker: ProgressTracker) -> FileResult:
    """The result of a finished future, which the cluster may forget from here on."""
    result = _result_of(files[index], future)
    future.release()
    tracker.finish(index)
    tracker.notify_finished(index)
    return result


def _workers_died(future: Any) -> bool:
    """Whether Dask gave a file up because the workers that had it died."""
    return future.status == "error" and type(future.exception()).__name__ == "KilledWorker"


def _result_of(file: TraceFile, future: Any) -> FileResult:
    """The summaries of a finished future, or why there are none.

    Raises:
        UsageError: the options are wrong.
    """
    if future.cancelled():
        return FailedFile(file, "the cluster has dropped it")
    error = future.exception()
    if error is None:
        result: FileResult = future.result()
        return result
    if isinstance(error, UsageError):
        raise error
    if isinstance(error, ModuleNotFoundError):
        return FailedFile(file, f"a worker of the cluster lacks a module ({error}); install perfdoctor there, too")
    if _workers_died(future):
        return FailedFile(file, "the workers that were given it died")
    return FailedFile(file, f"it failed on the cluster: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
