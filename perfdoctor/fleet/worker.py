"""A worker process: takes files from its standard input, sends back what became of them, and ends with its input.

Both directions are pickles, between processes of one user on one machine. `pool` is the other end.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

READY, READING, RESULT, REFUSED = "ready", "reading", "result", "refused"


def main() -> None:
    """Work until there is no more."""
    tasks = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a stranger's analyzer prints must not get among the answers
    from perfdoctor.errors import UsageError
    from perfdoctor.fleet.rank_tasks import work

    def send(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()

    send(READY, None)
    plan = _next(tasks)
    while (file := _next(tasks)) is not None:
        try:
            send(RESULT, work(file, plan, lambda done, total: send(READING, (done, total))))
        except UsageError as error:
            send(REFUSED, error)


def _next(tasks: BinaryIO) -> Any:
    """What comes next; None at the end."""
    try:
        return pickle.load(tasks)
    except (EOFError, pickle.UnpicklingError):
        return None
