"""The recorder's looks are in no recording of the thread that they look at."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

from perfdoctor.capture.inject._perfdoctor_inject.call_records import CallRecords
from perfdoctor.capture.inject._perfdoctor_inject.needed_rows import NeededRows
from perfdoctor.capture.inject._perfdoctor_inject.source_lines import SourceLineMode
from perfdoctor.capture.inject._perfdoctor_inject.untraced import NO_PAUSE, pause_for_this_thread
from perfdoctor.capture.inject._perfdoctor_inject.value_looks import UnchangedResults
from perfdoctor.capture.inject._perfdoctor_inject.value_numbers import ValueNumbers


def add_up() -> float:
    return sum(range(3)) + float(torch.ones(8).sum())


def record(mode: SourceLineMode) -> list[str]:
    """The functions that the profiler records of three calls under a mode."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profile, mode:
        for _ in range(3):
            add_up()
    roots = list(profile.profiler.kineto_results.experimental_event_tree())
    names = []
    while roots:
        event = roots.pop()
        names.append(event.name)
        roots += event.children
    return names


def make_mode() -> SourceLineMode:
    calls = CallRecords()
    calls.start()
    return SourceLineMode(UnchangedResults(), NeededRows(), calls, ValueNumbers())


def test_the_program_is_recorded_and_the_looks_are_not() -> None:
    names = record(make_mode())
    assert sum(name.endswith(": add_up") for name in names) == 3
    assert sum("built-in function sum" in name for name in names) == 3
    looks = [name for name in names if "_perfdoctor_inject" in name and "__torch_function__" not in name]
    assert looks == []


def test_without_a_pause_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = make_mode()
    monkeypatch.setattr(mode, "_pause", NO_PAUSE)
    assert any("call_records" in name for name in record(mode))


def test_an_error_of_the_program_ends_the_pause() -> None:
    with make_mode(), pytest.raises(RuntimeError, match="size"):
        torch.ones(3) @ torch.ones(4)
    assert sum("add_up" in name for name in record(make_mode())) >= 3


def test_a_call_on_another_thread_leaves_this_one_alone() -> None:
    begun = []
    mode = make_mode()
    mode._pause = NO_PAUSE._replace(begin=lambda: begun.append(threading.get_ident()))

    def call() -> None:
        with mode:
            add_up()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert begun == []


def test_pauses_count() -> None:
    begin, end = pause_for_this_thread()
    begin()
    begin()
    end()
    end()
    assert any("add_up" in name for name in record(make_mode()))
