"""A worker process: reads files to analyse from a pipe, and writes progress and results to another.

Both directions are pickles, between processes of one user on one machine. `pool` is the other side. The process ends
with its input.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

# Kinds of messages to the pool: started; (bytes read, bytes in all) of the file; its result; the options are wrong.
READY, PROGRESS, RESULT, USAGE_ERROR = "ready", "progress", "result", "usage error"


def main() -> None:
    """Serve standard input and output of this process."""
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the prints of a plugin must not get between the messages
    serve(sys.stdin.buffer, messages)


def serve(tasks: BinaryIO, messages: BinaryIO) -> None:
    """Analyse files until there are no more.

    Args:
        tasks: The `AnalysisOptions`, then each `TraceFile`.
        messages: Gets pairs of a kind of message and its value.
    """
    from perfdoctor.errors import UsageError
    from perfdoctor.fleet.rank_tasks import analyze_file

    def send(kind: str, value: Any) -> None:
        pickle.dump((kind, value), messages, protocol=pickle.HIGHEST_PROTOCOL)
        messages.flush()

    send(READY, None)
    options = _receive(tasks)
    while (file := _receive(tasks)) is not None:
        try:
            send(RESULT, analyze_file(file, options, lambda done, total: send(PROGRESS, (done, total))))
        except UsageError as error:
            send(USAGE_ERROR, error)


def _receive(tasks: BinaryIO) -> Any:
    """The next object; None at the end of the input."""
    try:
        return pickle.load(tasks)
    except (EOFError, pickle.UnpicklingError):
        return None
