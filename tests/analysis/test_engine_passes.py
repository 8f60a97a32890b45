"""The passes of serving engines whose every time is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_programs import FRAMES, Pass, serve
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.context.name_signs import SCHEDULES_AHEAD
from perfdoctor.rank import Rank
from perfdoctor.report.pass_summary import PassSummary
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

WORK = [work for work in FRAMES if work not in ("model", "between")]


def rows_of(trace: TraceBuilder) -> tuple[PassSummary, ...]:
    return Rank(trace.trace()).pass_summary


@pytest.mark.parametrize("work", FRAMES)
def test_idle_time_by_what_the_engine_does(work: str) -> None:
    (row,) = rows_of(serve([Pass(host_us={work: 700})] * 5))
    gaps = 4  # nothing comes after the last pass
    assert row.idle_ns[work] == pytest.approx(gaps * 700_000 / 5, abs=30_000)  # with launches, or what is between
    assert sum(row.idle_ns[other] for other in WORK if other != work) == 0
    assert row.busy_ns + sum(row.idle_ns.values()) == row.time_ns
    assert row.busy_ns == pytest.approx(10_002_000, abs=10)


def test_an_engine_that_schedules_ahead_does_not_idle() -> None:
    rank = Rank(serve([Pass(host_us={"scheduling": 3000, "preparing": 500})] * 5, overlapped=True).trace())
    (row,) = rank.pass_summary
    assert row.passes == 5
    assert row.busy_ns == pytest.approx(row.time_ns, rel=0.001)
    assert SCHEDULES_AHEAD in rank.context.frameworks


def test_an_account_for_each_kind_of_pass() -> None:
    prefill, mixed = Pass([2000], 0, gpu_us=40_000, graphed=False), Pass([500, 300], 4, gpu_us=20_000, graphed=False)
    rows = rows_of(serve([prefill, mixed, Pass(), Pass(decoded=6), Pass(decoded=6)]))
    found = {row.kind: (row.passes, row.requests, row.tokens) for row in rows}
    assert found == {"prefill": (1, 1, 2000), "mixed": (1, 6, 804), "decode": (3, 6, 6)}
    assert {row.kind: round(row.busy_ns / 1e6) for row in rows} == {"prefill": 40, "mixed": 20, "decode": 10}
    assert {row.kind: row.graph_share for row in rows} == {
        "prefill": 0.0,
        "mixed": 0.0,
        "decode": pytest.approx(0.99, abs=0.01),
    }
    assert [row.kind for row in rows] == ["prefill", "decode", "mixed"]


def test_passes_fill_the_time_from_the_first_item_to_the_last() -> None:
    trace = serve([Pass([700], 0), Pass(), Pass()])
    rank = Rank(trace.trace())
    whole_ns = int(rank.trace.gpu.end_ns.max() - rank.trace.gpu.start_ns.min())
    assert sum(row.passes * row.time_ns for row in rank.pass_summary) == pytest.approx(whole_ns, abs=5)


engines = st.lists(
    st.builds(
        Pass,
        prompt=st.lists(st.integers(1, 900), max_size=2),
        decoded=st.integers(1, 9),
        gpu_us=st.integers(1, 9000),
        kernels=st.integers(1, 4),
        graphed=st.booleans(),
        label=st.just(""),
        cpu_ops=st.dictionaries(st.sampled_from(["aten::sort", "aten::softmax"]), st.integers(1, 3000), max_size=2),
        logits=st.sampled_from([0, 64, 512_000]),
        rows=st.integers(0, 9),
        collectives=st.integers(0, 3),
        collective_us=st.integers(1, 90),
        host_us=st.dictionaries(st.sampled_from([*FRAMES, "launch"]), st.integers(0, 30_000), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


@given(engines, st.booleans(), st.booleans(), st.booleans())
def test_the_account_of_passes_adds_up(passes: list[Pass], overlapped: bool, stacks: bool, worker: bool) -> None:
    rank = Rank(serve(passes, overlapped, stacks, worker).trace())
    found = rank.engine_passes
    assert found is not None
    assert len(found) == len(passes)
    whole = rank.trace.gpu.end_ns.max() - rank.trace.gpu.start_ns.min()
    assert (found.windows[:, 1] - found.windows[:, 0]).sum() == whole
    assert whole - rank.timeline.busy_ns == sum(map(iv.total, found.idle.values()))
    for row in rank.pass_summary:
        assert row.busy_ns >= 0
        assert row.busy_ns + sum(row.idle_ns.values()) == row.time_ns


def test_collectives_and_the_cache() -> None:
    trace = serve([Pass()] * 3)
    for at in (1100, 1200, 1300, 1400):
        trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at, 20, launch_us=at - 20, stream=9)
    trace.kernel("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", 1500, 30, launch_us=1480, stream=9)
    (row,) = rows_of(trace)
    assert (row.collectives, row.communication_ns) == (4 / 3, 80_000 // 3)
    assert (row.cache_writes, row.cache_ns) == (1 / 3, 10_000)


def decode_eagerly(layers: int, shapes: bool = True) -> TraceBuilder:
    """Three passes over layers of a product of 4 rows with 8192 x 8192 weights in half precision."""
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    at = 0.0
    for _ in range(3):
        began = at
        for _ in range(layers):
            known = {"shapes": [[4, 8192], [8192, 8192]], "types": ["c10::BFloat16"] * 2} if shapes else {}
            trace.op("aten::mm", at, 90, **known)
            trace.kernel("nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT", at + 20, 80, launch_us=at + 5)
            at += 100
        trace.range("execute_context_0(0)_generation_4(4)", began, at - began - 10)
    return trace


def test_decoding_is_held_against_the_bytes_of_its_weights() -> None:
    rank = Rank(decode_eagerly(10).trace())
    (row,) = rank.pass_summary
    device = rank.device
    assert device is not None
    assert device.attainable_bandwidth_bytes_per_s
    moved = 2 * (8192 * 8192 + 2 * 4 * 8192)
    assert row.floor_ns == pytest.approx(10 * moved / device.attainable_bandwidth_bytes_per_s * 1e9, rel=1e-6)


def test_no_floor_without_shapes() -> None:
    (row,) = rows_of(decode_eagerly(10, shapes=False))
    assert row.floor_ns is None


def test_no_floor_for_prompts() -> None:
    (row,) = rows_of(serve([Pass([900], 0)] * 3))
    assert row.floor_ns is None


@pytest.mark.parametrize(("name", "kind"), [("step[IDLE bs=0]", "other"), ("step[DRAFT_EXTEND bs=4]", "draft")])
def test_a_pass_that_computes_no_tokens_of_the_model(name: str, kind: str) -> None:
    (row,) = rows_of(TraceBuilder().range(name, 0, 100).kernel("k", 20, 30, launch_us=5))
    assert (row.kind, row.passes) == (kind, 1)


def test_no_passes_without_ranges_of_an_engine() -> None:
    assert Rank(TraceBuilder().range("step 1", 0, 90).kernel("k", 20, 30, launch_us=5).trace()).engine_passes is None


def test_no_passes_without_launches() -> None:
    trace = TraceBuilder().range("execute_context_0(0)_generation_4(4)", 0, 90).kernel("k", 20, 30)
    assert rows_of(trace) == ()


def test_ranks_are_renumbered() -> None:
    (row,) = rows_of(serve([Pass()] * 3))
    assert replace(row, rank=3).rank == 3
