"""Lines of what is no operator: exact, and of the recorded thread only."""

from __future__ import annotations

import gzip
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")

from perfdoctor.analysis.host.locations import find_locations  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject import window_profiler  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.user_code import absolute_path  # noqa: E402
from perfdoctor.capture.session import profile  # noqa: E402
from perfdoctor.trace import read  # noqa: E402

SIZES = {"skip": 0, "base": 1, "warmup": 1, "timing": 1, "evidence": 2}
STEPS = 6


def nap() -> None:
    tired = 0.004
    time.sleep(tired)


def wait_in_a_library() -> None:
    threading.Event().wait(0.004)


def nap_deeper() -> None:
    nap()


def compute() -> None:
    for _ in range(20_000):
        pass


def look_up() -> None:
    for _ in range(3):
        WORDS.index("last")  # each shorter than a millisecond, and the loop as well
    "last" in WORDS and WORDS.copy()  # a comparison is no call; what calls next says where it was


WORDS = [*map(str, range(5_000)), "last"]


def exponentiate() -> None:
    values = NUMBERS
    values = numpy.exp(values)  # a ufunc is called without an event
    values = values + 1
    values.copy()


NUMBERS = numpy.ones(200_000)


def quick() -> None:
    len(SIZES)


def record(folder: Path, function: Callable[[], Any]) -> Path:
    with profile(folder, **SIZES) as session:
        for _ in range(STEPS):
            with session.step():
                function()
    return session.folder / "rank0"


def lines(folder: Path) -> set[tuple[str, int]]:
    """Function and line (counted from its `def`) of every row of this file that is no operator."""
    with gzip.open(folder / "evidence.json.gz") as file:
        events = json.load(file)["traceEvents"]
    found = set()
    for event in events:
        if event["name"].startswith(f"@{__file__}:") and "Ev Idx" not in event["args"]:
            line, function = event["name"].removeprefix(f"@{__file__}:").split(" ")
            code = getattr(sys.modules[__name__], function, None)
            # Our own `step` is called in `record`, and the tests are around it.
            if code is not None and function != record.__name__ and not function.startswith("test_"):
                found.add((function, int(line) - code.__code__.co_firstlineno))
    return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (nap, {("nap", 2)}),
        (nap_deeper, {("nap", 2)}),
        (wait_in_a_library, {("wait_in_a_library", 1)}),
        (look_up, {("look_up", 2), ("look_up", 3)}),
        (exponentiate, {("exponentiate", 2), ("exponentiate", 4)}),
        (compute, set()),
    ],
)
def test_the_line_that_calls_and_waits_is_named(
    tmp_path: Path, function: Callable[[], Any], expected: set[tuple[str, int]]
) -> None:
    found = lines(record(tmp_path / "out", function))
    # What the function does itself before its first call may take some microseconds, too.
    assert expected <= found <= expected | {(function.__name__, 1)}


def test_the_rows_fit_the_clock_and_the_thread_of_the_trace(tmp_path: Path) -> None:
    trace = read(record(tmp_path / "out", nap) / "evidence.json.gz")
    sleeping = trace.match_rows(trace.frames, "built-in function sleep")
    frames = trace.frames
    middle = (frames.start_ns[sleeping] + frames.end_ns[sleeping]) // 2
    assert len(middle) == 3, "the warm-up step is recorded, too"
    found = find_locations(trace, frames.thread[sleeping], middle)
    assert {(place.file, place.line, place.function) for place in found if place} == {
        (__file__, nap.__code__.co_firstlineno + 2, "nap")
    }


@pytest.fixture
def other_thread() -> Iterator[None]:
    """A thread that sleeps and waits all the time, as a prefetcher does."""
    tasks: queue.Queue[int] = queue.Queue()

    def work() -> None:
        while True:
            quick()
            time.sleep(0.002)
            try:
                if tasks.get(timeout=0.002) is None:
                    return
            except queue.Empty:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    yield
    tasks.put(None)  # type: ignore[arg-type]
    thread.join()


@pytest.mark.usefixtures("other_thread")
def test_other_threads_give_no_lines(tmp_path: Path) -> None:
    folder = record(tmp_path / "out", nap)
    with gzip.open(folder / "evidence.json.gz") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    assert not [name for name in names if name.startswith("@") and name.endswith(" work")]
    assert lines(folder) == {("nap", 2)}


def test_a_trace_without_these_rows_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no tree")

    monkeypatch.setattr(window_profiler, "find_line_stretches", broken)
    folder = record(tmp_path / "out", nap)
    assert lines(folder) == set()
    assert read(folder / "evidence.json.gz").complete
    assert capsys.readouterr().err == "perfdoctor: lines of Python are missing: RuntimeError('no tree')\n"


def test_shortened_file_names_become_absolute() -> None:
    assert absolute_path("torch/__init__.py") == torch.__file__
    assert absolute_path("threading.py") == threading.__file__
    assert absolute_path("no/such/file.py") == "no/such/file.py"
    assert absolute_path("<string>") == "<string>"
    assert absolute_path(__file__) == __file__
