"""Files over the workers of a Dask cluster that runs already: only summaries come back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.progress import Tracker
from perfdoctor.fleet.work import Missing, Plan, Result, work_elsewhere

_PATIENCE_SECONDS = 10


def over_cluster(
    files: Sequence[TraceFile], plan: Plan, address: str, tracker: Tracker
) -> Iterator[tuple[int, Result]]:
    """Analyse files on a Dask cluster.

    Dask gives the file of a worker that dies to another one, and gives it up when it has cost several their lives.
    Whatever ends this generator takes back what the cluster has not begun.

    Args:
        files: where the workers find them: on storage that they share, or behind URLs.
        plan: what to do with each.
        address: of the scheduler, as tcp://host:8786.
        tracker: told about each file that is done.

    Yields:
        The index of a file with its result, in the order in which they are done.

    Raises:
        UsageError: Dask is not installed, or the plan cannot be followed.
        InputError: the scheduler cannot be reached.
    """
    client, as_completed = _connected(address)
    with client:
        futures = client.map(work_elsewhere, files, plan=plan, folder=os.getcwd(), pure=False)
        index_of = {future.key: index for index, future in enumerate(futures)}
        try:
            for future in as_completed(futures, loop=client.loop):
                index = index_of[future.key]
                result = _result(files[index], future)
                future.release()
                tracker.finished(index)
                tracker.said(index)
                yield index, result
        finally:
            client.cancel(futures, force=True)


def _connected(address: str) -> tuple[Any, Any]:
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            f"--dask needs Dask on this machine and on the workers ({error}); pip install 'perfdoctor[dask]'"
        ) from None
    try:
        client: Any = Client  # which has no types
        return client(address, timeout=_PATIENCE_SECONDS, set_as_default=False), as_completed
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"--dask {address}: no scheduler can be reached ({why}); give the address that `dask scheduler` prints"
        ) from None


def _result(file: TraceFile, future: Any) -> Result:
    """What became of one file.

    Raises:
        UsageError: the plan cannot be followed.
    """
    if future.cancelled():
        return Missing(file, "the cluster has dropped it")
    error = future.exception()
    if error is None:
        result: Result = future.result()
        return result
    if isinstance(error, UsageError):
        raise error
    if isinstance(error, ModuleNotFoundError):
        return Missing(file, f"a worker of the cluster lacks a module ({error}); install perfdoctor there, too")
    if type(error).__name__ == "KilledWorker":
        return Missing(file, f"the workers that were given it died, {error.allowed_failures + 1} times in all")
    return Missing(file, f"it failed on the cluster: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
