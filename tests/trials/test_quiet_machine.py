"""The wait for other programs before a run: how long, and what is said of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perfdoctor.trials import quiet_machine
from perfdoctor.trials.quiet_machine import LOOK_S, QuietWait


def wait_beside(cores_of_others: list[float], limit_s: float = 60.0) -> tuple[QuietWait, list[str]]:
    """A wait in whose looks others use so many cores, which is over."""

    def read() -> Iterator[int]:
        busy_ns = 5_000_000_000
        for cores in cores_of_others:
            yield busy_ns
            busy_ns += round(cores * LOOK_S * 1e9)
            yield busy_ns

    said: list[str] = []
    wait = QuietWait(limit_s, lambda: said.append("waiting"), read_busy_ns=read().__next__, sleep=lambda _: None)
    wait.wait()
    return wait, said


def test_a_quiet_machine_is_not_waited_for() -> None:
    wait, said = wait_beside([0.1])
    assert (wait.waited_s, wait.note, said) == (0.0, None, [])


def test_a_run_begins_when_others_have_left() -> None:
    wait, said = wait_beside([2.0] * 10 + [0.0])
    assert wait.note == "Waited 2 s for other programs to leave the cores, and they did."
    assert said == ["waiting"]


def test_a_machine_that_stays_busy_is_used_after_the_limit_and_never_waited_for_again() -> None:
    wait, _ = wait_beside([2.0] * 10, limit_s=1.9)
    assert wait.note == "Waited 2 s for other programs to leave the cores, they did not: try again when it is quiet."
    wait.wait()
    assert wait.waited_s == pytest.approx(2.0)


def test_two_busy_cores_are_little_of_a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert wait_beside([2.0])[0].waited_s == 0


def test_where_nothing_tells_who_computes_there_is_no_wait() -> None:
    wait = QuietWait(60.0, read_busy_ns=lambda: None, sleep=lambda _: None)
    wait.wait()
    assert wait.waited_s == 0
    assert quiet_machine.read_machine_busy_ns() is None or quiet_machine.read_machine_busy_ns() > 0
