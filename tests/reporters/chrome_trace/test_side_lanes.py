from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.reporters.chrome_trace.side_lanes import find_side_lanes
from perfdoctor.reporters.chrome_trace.slices import read_slices
from perfdoctor.trace.kineto import reader_choice


def written(tmp_path, events: list[dict]):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def kernel(start, dur, *, pid=0, tid=7, category="kernel", **more) -> dict:
    return {"ph": "X", "cat": category, "name": "k", "pid": pid, "tid": tid, "ts": start, "dur": dur} | more


def moves(tmp_path, events: list[dict]) -> dict[int, int | str]:
    return dict(find_side_lanes(read_slices(written(tmp_path, events))).tid_of_moved())


@pytest.mark.parametrize(
    "events",
    [
        [],
        [kernel(0, 10), kernel(10, 10), kernel(30, 5)],
        [kernel(0, 100), kernel(0, 10), kernel(10, 90), kernel(20, 10)],
        [kernel(5, 10), kernel(0, 10, tid=8), kernel(0, 10, pid=1)],
        [kernel(0, 10), kernel(10, 0), kernel(0, 0), kernel(3, 0)],
        [kernel(0, 10), kernel(0, 10)],
        [kernel(0, 10), {"ph": "i", "cat": "x", "ts": 5, "pid": 0, "tid": 7}, {"ph": "M", "name": "process_name"}],
        [kernel(0, 10), kernel("soon", 10), kernel(5, None), kernel(5, 10, category=["kernel"])],
    ],
    ids=["none", "in turn", "nested", "other tracks", "instants", "twice the same", "no slices", "no times"],
)
def test_what_nests_stays(tmp_path, events):
    assert moves(tmp_path, events) == {}


def test_what_overlaps_moves_to_a_lane_of_its_own_process(tmp_path):
    path = written(tmp_path, [kernel(0, 10), kernel(5, 10), kernel(8, 10), kernel(20, 5), kernel(0, 9, tid=40)])
    lanes = find_side_lanes(read_slices(path))
    assert lanes.tid_of_moved() == {1: 41, 2: 42}
    assert [(lane.pid, lane.beside, lane.name) for lane in lanes.lanes] == [
        (0, 7, "stream 7 (overlapping)"),
        (0, 7, "stream 7 (overlapping 2)"),
    ]


def test_what_lies_in_a_moved_slice_and_fits_the_track_stays_there(tmp_path):
    assert moves(tmp_path, [kernel(0, 10), kernel(5, 20), kernel(12, 3)]) == {1: 8}


def test_threads_of_the_cpu_and_tracks_with_names(tmp_path):
    events = [kernel(0, 10, tid="stream 7"), kernel(5, 10, tid="stream 7"), kernel(0, 9, pid=5, category="cpu_op")]
    lanes = find_side_lanes(read_slices(written(tmp_path, [*events, kernel(5, 9, pid=5, category="cpu_op")]))).lanes
    assert [(lane.pid, lane.tid, lane.name) for lane in lanes] == [
        (0, "overlapping on stream 7", "stream 7 (overlapping)"),
        (5, 8, "thread 7 (overlapping)"),
    ]


def test_the_end_of_an_arrow_moves_with_its_kernel(tmp_path):
    def end(start, number, **more):
        return {"ph": "f", "cat": "ac2g", "id": number, "pid": 0, "tid": 7, "ts": start, "bp": "e"} | more

    one, two = ({"args": {"correlation": number}} for number in (11, 12))
    events = [kernel(0, 10, **one), end(0, 11), kernel(5, 10, **two), end(5, 12), end(5, 11), end(5, 12, tid=3)]
    assert moves(tmp_path, events) == {2: 8, 3: 8}


def test_a_track_with_a_thread_id_that_viewers_do_not_know_moves_as_a_whole(tmp_path):
    arrow = {"ph": "s", "cat": "ac2g", "id": 3, "pid": 9, "tid": -5, "ts": 2}
    events = [kernel(0, 10, pid=9, tid=9), kernel(1, 20, pid=9, tid=-5, category="cpu_op"), arrow]
    events += [kernel(5, 30, pid=9, tid=-5, category="cpu_op"), kernel(0, 5, pid=9, tid=1 << 40)]
    lanes = find_side_lanes(read_slices(written(tmp_path, events)))
    assert lanes.tid_of_moved() == {1: 10, 2: 10, 3: 11, 4: 12}
    names = [lane.name for lane in lanes.lanes]
    assert names == ["thread -5", "thread -5 (overlapping)", f"stream {1 << 40}"]


def test_times_of_day_that_overlap_in_viewers_alone_move_too(tmp_path):
    at = 1_701_233_525_388_710
    events = [kernel(f"{at}.123", 0.2), kernel(f"{at}.324", 1), kernel(at + 5, 1), kernel(at + 6, 1)]
    text = (
        json.dumps({"traceEvents": events}).replace(f'"{at}', str(at)).replace('.123"', ".123").replace('.324"', ".324")
    )
    (tmp_path / "trace.json").write_text(text)
    assert find_side_lanes(read_slices(str(tmp_path / "trace.json"))).tid_of_moved() == {1: 8}


_TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=25)


@given(_TIMES)
def test_on_every_lane_all_slices_nest(tmp_path_factory, times):
    folder = tmp_path_factory.mktemp("lanes")
    events = [kernel(start, dur, tid=tid) for start, dur, tid in times]
    new = moves(folder, events)
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for index, (start, dur, tid) in enumerate(times):
        lanes.setdefault(new.get(index, tid), []).append((start, start + dur))
    for on_lane in lanes.values():
        for start, end in on_lane:
            assert not [1 for s, e in on_lane if s < start < e < end]
    crossing = {i for i, (s, d, t) in enumerate(times) if any(t == u and o < s < o + e < s + d for o, e, u in times)}
    assert set(new) <= crossing
    assert bool(new) == bool(crossing)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name", ["b200-eager.json.gz", "v100-legacy-workers0.json.gz", "v100-bare-list-workers4.json.gz"]
)
def test_both_readers_see_the_same_slices(name, corpus, monkeypatch):
    monkeypatch.setenv(reader_choice.VARIABLE, reader_choice.FAST)
    fast = read_slices(str(corpus / name))
    monkeypatch.setenv(reader_choice.VARIABLE, reader_choice.REFERENCE)
    reference = read_slices(str(corpus / name))
    for column in ("start_ns", "end_ns", "index", "kind", "id"):
        assert np.array_equal(getattr(fast, column), getattr(reference, column))
    for column, names in (("track", "tracks"), ("category", "categories")):
        texts = [[getattr(s, names)[code] for code in getattr(s, column).tolist()] for s in (fast, reference)]
        assert texts[0] == texts[1]
