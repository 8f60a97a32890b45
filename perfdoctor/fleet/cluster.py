"""Files over the workers of a Dask cluster that runs already: only summaries come back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import Missing, Plan, Result, work_elsewhere
from perfdoctor.fleet.read_progress import Tracker

_PATIENCE_SECONDS = 10
# Each costs several more workers their lives if it is the one to blame.
_SECOND_CHANCES = 16


def over_cluster(
    files: Sequence[TraceFile], plan: Plan, address: str, tracker: Tracker
) -> Iterator[tuple[int, Result]]:
    """Analyse files on a Dask cluster.

    Dask gives the files of a worker that dies to another one, and gives those up that were with several when they died.
    Only one of them is to blame: each gets a second chance alone. Whatever ends this generator takes back what the
    cluster has not begun.

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
    given = {"plan": plan, "folder": os.getcwd(), "pure": False}
    with client:
        futures = client.map(work_elsewhere, files, **given)
        index_of = {future.key: index for index, future in enumerate(futures)}
        suspects: list[int] = []
        try:
            for future in as_completed(futures, loop=client.loop):
                index = index_of[future.key]
                if _killed(future) and len(suspects) < _SECOND_CHANCES:
                    suspects.append(index)
                    continue
                yield index, _done(files, index, future, tracker)
            for index in suspects:
                futures = [client.submit(work_elsewhere, files[index], **given)]
                for future in as_completed(futures, loop=client.loop):
                    yield index, _done(files, index, future, tracker)
        finally:
            client.cancel(futures, force=True)


def _done(files: Sequence[TraceFile], index: int, future: Any, tracker: Tracker) -> Result:
    """What became of a file, once that is known; the cluster may forget it then."""
    result = _result(files[index], future)
    future.release()
    tracker.finished(index)
    tracker.said(index)
    return result


def _killed(future: Any) -> bool:
    """Whether it was given up because workers died that had it."""
    return future.status == "error" and type(future.exception()).__name__ == "KilledWorker"


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
    """What became of one file, of a future that is done.

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
    if _killed(future):
        return Missing(file, "the workers that were given it died")
    return Missing(file, f"it failed on the cluster: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
