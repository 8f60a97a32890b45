from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoctor.rank import Rank
from perfdoctor.reporters.chrome_trace import gpu_counters as counters
from perfdoctor.testing import TraceBuilder


def of(builder: TraceBuilder, max_points: int = 1000) -> dict[str, counters.Counter]:
    return {counter.name: counter for counter in counters.gpu_counters(Rank(builder.trace()), max_points)}


def points(counter: counters.Counter) -> list[tuple[float, float]]:
    return list(zip((counter.time_ns / 1000).tolist(), counter.value.tolist(), strict=True))


def test_a_queue_holds_what_is_launched_and_not_finished():
    builder = TraceBuilder().kernel("a", 50, 30, launch_us=10).kernel("b", 80, 30, launch_us=40)
    queue = of(builder.kernel("c", 300, 10, launch_us=290))["queue of stream 7"]
    assert points(queue) == [(10, 1), (40, 2), (80, 1), (110, 0), (290, 1), (310, 0)]


def test_each_stream_has_a_queue_of_its_own():
    builder = TraceBuilder().kernel("a", 50, 30, launch_us=10).kernel("b", 50, 30, stream=20, launch_us=20)
    assert points(of(builder)["queue of stream 20"]) == [(20, 1), (80, 0)]


def test_without_launches_no_queue_is_known():
    assert of(TraceBuilder().kernel("a", 50, 30)) == {}


def test_a_trace_of_the_cpu_has_no_counters_of_a_gpu():
    assert of(TraceBuilder().op("aten::mm", 0, 10)) == {}


def test_bandwidth_and_flops_are_of_what_is_known():
    builder = TraceBuilder().op("aten::mm", 0, 30, shapes=[[1024, 1024], [1024, 1024]], types=["float", "float"])
    builder.kernel("ampere_sgemm_128x64_nn", 100, 100, launch_us=10).kernel("a_kernel_of_ours", 250, 50, launch_us=50)
    found = of(builder, max_points=3)
    flops = found["kernel FLOP/s"]
    assert points(flops) == [(100, pytest.approx(2 * 1024**3 / 100e-6 / 1e12)), (200, 0), (300, 0)]
    rate = found["kernel bandwidth"]
    assert (flops.series, rate.series) == tuple(f"{u}, known for 67% of their time" for u in ("TFLOP/s", "GB/s"))
    assert rate.value[0] == pytest.approx(3 * 4 * 1024**2 / 100e-6 / 1e9)


def test_what_is_not_known_at_all_has_no_counter():
    names = of(TraceBuilder().kernel("a_kernel_of_ours", 250, 50, launch_us=50))
    assert list(names) == ["queue of stream 7"]


def test_what_is_known_of_few_kernels_has_no_counter_either():
    builder = TraceBuilder().op("aten::mm", 0, 30, shapes=[[1024, 1024], [1024, 1024]], types=["float", "float"])
    builder.kernel("ampere_sgemm_128x64_nn", 100, 4, launch_us=10).kernel("a_kernel_of_ours", 250, 96, launch_us=50)
    assert list(of(builder)) == ["queue of stream 7"]


def test_copies_from_the_host_have_a_rate():
    builder = TraceBuilder().kernel("k", 0, 10).memcpy("HtoD", 10, 20, 40_000).memcpy("DtoD", 30, 5, 1_000_000)
    rate = of(builder, max_points=36)["host copies"]
    assert dict(points(rate))[15] == pytest.approx(2)
    assert dict(points(rate))[32] == 0


_SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 90)), min_size=1, max_size=40)


@given(_SPANS, st.integers(2, 60))
@example([(0, 0), (1, 1), (3, 0), (4, 3)], 5)  # no point lies in the last part
def test_few_points_keep_every_peak_and_the_end(spans, max_points):
    begin, length = np.array(spans, np.int64).T
    time, depth = counters._depth(begin, begin + length)
    kept_time, kept = counters._keep_peaks(time, depth, max_points)
    assert len(kept) <= max(max_points, 1)
    assert (kept.max(), kept[-1]) == (depth.max(), 0)
    assert (np.diff(kept_time) > 0).all() or len(time) > max_points
    at = np.searchsorted(kept_time, time, side="right") - 1
    assert (kept[at] >= depth).all() or len(time) <= max_points


@given(_SPANS, st.integers(2, 30))
def test_rates_sum_up_to_the_amounts(spans, parts):
    begin, length = np.array(spans, np.int64).T + 1_700_000_000_000_000_000
    end = begin + (length - 1_700_000_000_000_000_000) + 1
    amount = np.linspace(1, 1000, len(spans))
    edges = (
        np.unique(
            np.linspace(begin.min() - 1_700_000_000_000_000_000, end.max() - 1_700_000_000_000_000_000, parts).astype(
                np.int64
            )
        )
        + 1_700_000_000_000_000_000
    )
    total = (counters._rates(begin, end, amount, edges) * np.diff(edges)).sum()
    assert total == pytest.approx(amount.sum(), rel=1e-6)


@pytest.mark.parametrize(("slices", "points_"), [(10, 100), (100_000, 2000), (10_000_000, 4000)])
def test_counters_stay_a_small_part_of_the_trace(slices, points_):
    assert counters.points_for(slices) == points_
