from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto_engine import TraceProcessor

from perfdoctor.reporters.chrome_trace.copy_events import microseconds
from perfdoctor.reporters.chrome_trace.viewer_times import seen_ns

# Perfetto 52, of microseconds 1701233525388710.123 and so on.
SEEN = {
    1_701_233_525_388_710_123: 1_701_233_525_388_710_000,
    1_701_233_525_388_710_200: 1_701_233_525_388_710_144,
    1_701_233_525_388_710_376: 1_701_233_525_388_710_400,
    1_701_233_525_388_710_999: 1_701_233_525_388_711_000,
    1_606_910_596_297_023_125: 1_606_910_596_297_023_000,
    123_456_789_012_345: 123_456_789_012_345,
    7: 7,
    0: 0,
    -1500: -1500,
}


@pytest.mark.parametrize(("time", "seen"), SEEN.items())
def test_times_are_as_perfetto_has_them(time, seen):
    assert seen_ns(np.array([time])) == [seen]


@pytest.mark.process
def test_a_perfetto_agrees():
    times = [time for time in SEEN if time >= 0]
    events = b",".join(
        b'{"ph":"X","cat":"c","name":"%d","pid":1,"tid":%d,"ts":%s,"dur":1}' % (time, tid, microseconds(time))
        for tid, time in enumerate(times, 1)
    )
    with TraceProcessor(b'{"traceEvents":[' + events + b"]}") as imported:
        found = {int(name): ts for name, ts in imported.rows("select name, ts from slice")}
    assert found == {time: SEEN[time] for time in times}


@given(st.lists(st.integers(0, 1 << 61), min_size=2))
def test_times_stay_in_order_and_near(times):
    exact = np.sort(np.array(times, np.int64))
    seen = seen_ns(exact)
    assert (np.diff(seen) >= 0).all()
    assert (np.abs(seen - exact) <= np.maximum(exact / (1 << 52), 1)).all()


@given(st.integers(0, 10**15))
def test_times_from_the_start_of_a_recording_are_exact(time):
    assert seen_ns(np.array([time])) == [time]
    assert json.loads(microseconds(time)) * 1000 == pytest.approx(time)
