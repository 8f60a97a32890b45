"""How many multiprocessors a device has that the file does not list."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from perfdoctor.trace import parse
from perfdoctor.trace.kineto.multiprocessors import MultiprocessorCounter
from perfdoctor.trace.scanner.text_window import sliding_window

Launch = tuple[Sequence[int], Sequence[int], float]


def trace_of(*launches: Launch, **top_level: object) -> bytes:
    """A trace of kernels of these grids, blocks, and warps a multiprocessor."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10 * index, "dur": 5}
        | {"args": {"device": 0, "stream": 7, "warps per SM": warps, "grid": list(grid), "block": list(block)}}
        for index, (grid, block, warps) in enumerate(launches)
    ]
    return json.dumps({**top_level, "traceEvents": events}).encode()


def launch(grid: Sequence[int], block: Sequence[int], sm_count: int) -> Launch:
    """A launch with the warps that the profiler writes, with six digits."""
    return grid, block, float(f"{math.prod(grid) * math.ceil(math.prod(block) / 32) / sm_count:.6g}")


def sm_count_of(text: bytes, block: int | None = None) -> int | None:
    return parse(text, "x", block=block).device.sm_count


@pytest.mark.parametrize("sm_count", [6, 16, 40, 80, 108, 132, 148, 170])
@pytest.mark.parametrize("block", [None, 64, 1 << 20])
def test_launches_say_how_many_there_are(sm_count: int, block: int | None) -> None:
    sizes = [((6, 1, 1), (512, 1, 1)), ((1000, 3, 2), (96, 1, 1)), ((1, 1, 1), (33, 1, 1)), ((65535, 7, 1), (32, 4, 1))]

    assert sm_count_of(trace_of(*(launch(*size, sm_count) for size in sizes)), block) == sm_count


def test_what_the_file_lists_counts_first() -> None:
    listed = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}

    assert sm_count_of(trace_of(launch((6, 1, 1), (512, 1, 1), 80), deviceProperties=[listed])) == 108


@pytest.mark.parametrize(
    "launches",
    [
        [((6, 1, 1), (512, 1, 1), 0)],
        [launch((6, 1, 1), (512, 1, 1), 80), launch((6, 1, 1), (512, 1, 1), 40)],  # of two devices
        [((6, 1, 1), (512, 1, 1), 1.27)],  # 75.6 of them
        [((6, 1, 1), (512, 1, 1), 0.001)],
    ],
)
def test_it_stays_unknown_where_launches_do_not_agree(launches: list[Launch]) -> None:
    assert sm_count_of(trace_of(*launches)) is None


def test_a_number_that_is_none_counts_for_nothing() -> None:
    text = trace_of(launch((6, 1, 1), (512, 1, 1), 80), ((9, 1, 1), (64, 1, 1), 1.5)).replace(b": 1.5,", b": inf,")

    assert sm_count_of(text) == 80


def test_the_text_passes_through_unchanged() -> None:
    text = trace_of(*(launch((n, 1, 1), (512, 1, 1), 80) for n in range(1, 200)))
    counter = MultiprocessorCounter(sliding_window(text, 100)._source)
    seen = bytearray()
    view = memoryview(bytearray(100))
    while count := counter(view):
        seen += view[:count]

    assert bytes(seen) == text
    assert counter.number == 80
    assert 64 <= counter.found.total() <= 66  # then it has seen enough


@pytest.mark.parametrize(("filler_mb", "at_end", "expected"), [(15, True, 80), (17, False, 80), (17, True, None)])
def test_of_each_piece_of_a_long_text_the_beginning_is_searched(
    filler_mb: int, at_end: bool, expected: int | None
) -> None:
    launches, space = trace_of(launch((6, 1, 1), (512, 1, 1), 80)), b" " * (1 << 20)
    padding = space[len(launches) :]
    last = padding + launches if at_end else launches + padding
    pieces = iter([space] * filler_mb + [last])

    def source(view: memoryview) -> int:
        piece = next(pieces, b"")
        view[: len(piece)] = piece
        return len(piece)

    counter = MultiprocessorCounter(source)
    view = memoryview(bytearray(1 << 20))
    while counter(view):
        pass
    assert counter.number == expected


@pytest.mark.parametrize(("listed", "expected"), [([{"id": 0}], None), ([], 80)])
def test_listed_devices_end_the_search_though_the_first_piece_is_short(listed: object, expected: int | None) -> None:
    text = trace_of(launch((6, 1, 1), (512, 1, 1), 80), deviceProperties=listed)
    counter = MultiprocessorCounter(lambda _: 0)
    for piece in (text[:16], text[16:]):
        counter.look_at(piece)
    assert counter.number == expected
