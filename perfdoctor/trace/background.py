"""Work in threads beside this one: as concurrent.futures has it, whose import takes 2.5 ms, with logging."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Background:
    """A function that runs in a thread of its own, from now on."""

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def ended(self, within_s: float | None = None) -> bool:
        """Wait for its end, so long at most; whether it has come. What the function has raised is raised here."""
        self._thread.join(within_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end, whatever that is."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self._error = error


def made(make: Callable[[_Key], _Value], keys: Iterable[_Key], workers: int, name: str) -> dict[_Key, _Value]:
    """What a function makes of each key, in their order, by several threads of which this one is the first."""
    results: dict[_Key, _Value | None] = dict.fromkeys(keys)
    waiting = list(reversed(results))

    def work() -> None:
        while True:
            try:
                key = waiting.pop()
            except IndexError:
                return
            results[key] = make(key)

    others = [Background(work, name) for _ in range(1, min(workers, len(waiting)))]
    try:
        work()
    finally:
        waiting.clear()
        for other in others:
            other.ended()
    return results  # type: ignore[return-value] # all are made
