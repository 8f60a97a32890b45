"""Collectives are matched by group and number, or by kind, size and end; clocks are aligned by them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import File, any_file, rank_of

from perfdoctor.analysis.communication.collectives import MAX_ROWS, CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives, match_collectives
from perfdoctor.analysis.communication.stragglers import find_late_rank
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.rank import Rank
from perfdoctor.testing import SyntheticFleet, TraceBuilder, collective
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS, collective_kind

MS = 1_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
IRREGULAR = (1, 4, 9, 11, 18, 25, 27, 40)


def table_of(
    rank: int,
    ends_ms: Sequence[float],
    kind: str | Sequence[str] = "all_reduce",
    groups: Sequence[str] | None = None,
    seq: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    takes_ms: float = 0.5,
    **fields: Any,
) -> CollectiveTable:
    """The collectives of one rank, given by their ends; what is not given is not recorded."""
    count = len(ends_ms)
    end = np.array([round(MS * at) for at in ends_ms], np.int64)
    names = tuple(dict.fromkeys(groups or ()))
    kinds = [kind] * count if isinstance(kind, str) else kind
    unknown = np.full(count, -1, np.int64)
    return CollectiveTable(
        rank=rank,
        strings=names,
        start_ns=end - round(MS * takes_ms),
        end_ns=end,
        kind=np.array([COLLECTIVE_KINDS.index(name) for name in kinds], np.int8),
        group=np.array([names.index(name) for name in groups], np.int32) if groups else unknown.astype(np.int32),
        group_size=unknown.astype(np.int32),
        seq=unknown if seq is None else np.array(seq, np.int64),
        bytes=unknown if size is None else np.array(size, np.int64),
        dtype=unknown.astype(np.int32),
        stream=unknown,
        step=unknown.astype(np.int32),
        exposed_ns=end * 0,
        preceding_phase_ns=np.zeros((count, len(PHASES)), np.float32),
        preceding_once_ns=np.zeros(count, np.int64),
        since_pass_start_ns=unknown,
        window_ns=100 * MS,
        **fields,
    )


def match_all(*tables: CollectiveTable) -> MatchedCollectives:
    """The collectives of these ranks matched; some have to match."""
    found = match_collectives(tables)
    assert found is not None
    return found


def partner_rows(found: MatchedCollectives, at: int) -> list[int]:
    """For each row of the first table the row of its partner in table `at`; -1 where it has none."""
    where = {number: row for row, number in enumerate(found.collective_of_row[at].tolist()) if number >= 0}
    return [where.get(number, -1) if number >= 0 else -1 for number in found.collective_of_row[0].tolist()]


def test_sequence_numbers_name_partners_where_counts_differ() -> None:
    a = table_of(0, [1, 2, 3, 4], groups=["dp"] * 4, seq=[7, 8, 9, 10])
    b = table_of(1, [2.1, 3.1, 4.1, 5.1], groups=["dp"] * 4, seq=[8, 9, 10, 11])
    found = match_all(a, b)
    assert partner_rows(found, 1) == [-1, 0, 1, 2]
    assert found.offset_ns.tolist() == [0, -MS // 10]


def test_numbers_count_within_their_group_and_kind() -> None:
    a = table_of(
        0, IRREGULAR[:4], groups=["dp", "tp", "dp", "dp"], seq=[0, 0, 1, 1], kind=["all_reduce"] * 3 + ["barrier"]
    )
    b = table_of(
        1, IRREGULAR[:4], groups=["tp", "dp", "dp", "dp"], seq=[0, 0, 1, 1], kind=["all_reduce"] * 3 + ["barrier"]
    )
    assert partner_rows(match_all(a, b), 1) in ([1, 0, 2, 3], [-1, -1, 2, 3])


def test_the_same_numbers_at_other_times_are_of_another_run() -> None:
    a = table_of(0, IRREGULAR, groups=["dp"] * 8, seq=range(8))
    other = table_of(1, [3 * end for end in IRREGULAR], groups=["dp"] * 8, seq=range(8))
    assert match_collectives([a, other]) is None
    found = match_all(a, other, table_of(2, IRREGULAR, groups=["dp"] * 8, seq=range(8)))
    assert [t.rank for t in found.tables] == [0, 2]
    assert [t.rank for t in found.unmatched] == [1]


def test_ranks_without_a_common_group_are_aligned_through_other_ranks() -> None:
    """Ranks 0 and 1 share a model, and ranks 2 and 3; ranks 0 and 2 share gradients, and ranks 1 and 3."""
    ends = {"tp0": IRREGULAR, "tp1": IRREGULAR, "dp0": [end + 0.3 for end in IRREGULAR], "dp1": IRREGULAR}
    clocks = [0.0, 500.0, -700.0, 3000.0]
    built = []
    for rank, groups in enumerate([("tp0", "dp0"), ("tp0", "dp1"), ("tp1", "dp0"), ("tp1", "dp1")]):
        rows = sorted((end + clocks[rank], group, number) for group in groups for number, end in enumerate(ends[group]))
        times, names, numbers = zip(*rows, strict=True)
        built.append(table_of(rank, times, groups=names, seq=numbers))
    found = match_all(*built)
    assert [t.rank for t in found.tables] == [0, 1, 2, 3]
    assert [round(offset / MS) for offset in found.offset_ns] == [0, -500, 700, -3000]
    assert found.rank_count.tolist() == [2] * 4 * len(IRREGULAR)


@pytest.mark.parametrize(("kind", "size", "fits"), [("all_reduce", 8, False), ("all_to_all", 8, True)])
def test_another_size_is_another_collective_where_all_put_in_the_same(kind: str, size: int, fits: bool) -> None:
    sizes = [4] * 7
    a = table_of(0, IRREGULAR, kind, size=[*sizes, 4])
    b = table_of(1, IRREGULAR, kind, size=[*sizes, size])
    assert (partner_rows(match_all(a, b), 1)[-1] >= 0) is fits


def test_another_kind_is_another_collective() -> None:
    a = table_of(0, IRREGULAR, ["all_reduce"] * 8)
    b = table_of(1, IRREGULAR, ["all_reduce"] * 7 + ["all_gather"])
    assert partner_rows(match_all(a, b), 1) == [*range(7), -1]


def test_two_that_end_nearly_together_are_both_found() -> None:
    ends = [at + late for at in IRREGULAR for late in (0, 0.02)]
    other = [at + late for at in IRREGULAR for late in (0.03, 0.05)]
    assert sorted(partner_rows(match_all(table_of(0, ends), table_of(1, other)), 1)) == list(range(16))


def equal_steps(rank: int, clock_ms: float, first: int, **fields: Any) -> CollectiveTable:
    """Steps of 10 ms, all alike, with two collectives each."""
    ends = [10 * step + at + clock_ms for step in range(first, first + 6) for at in (4, 9)]
    return table_of(rank, ends, **fields)


def test_of_equal_steps_those_with_the_same_number_meet() -> None:
    def numbered(rank: int, clock_ms: float, first: int) -> CollectiveTable:
        start = np.array([round(MS * (10 * step + clock_ms)) for step in range(first, first + 6)], np.int64)
        return equal_steps(rank, clock_ms, first, step_numbers=tuple(range(first, first + 6)), step_start_ns=start)

    found = match_all(numbered(0, 0, 0), numbered(1, 3000, 2))
    assert found.offset_ns.tolist() == [0, -3000 * MS]
    assert partner_rows(found, 1) == [-1, -1, -1, -1, *range(8)]


def test_of_equal_steps_those_at_the_same_time_meet() -> None:
    found = match_all(equal_steps(0, 0, 0), equal_steps(1, 0, 2))
    assert found.offset_ns.tolist() == [0, 0]
    based = match_all(
        equal_steps(0, 0, 0, base_ns=50 * MS), equal_steps(1, 50, 0)
    )  # the same instants, counted from elsewhere
    assert based.offset_ns.tolist() == [0, -50 * MS]
    assert partner_rows(based, 1) == list(range(12))


def test_the_clock_of_a_host_is_known_once_one_of_its_ranks_is() -> None:
    """Rank 2 shares only barriers at equal distances, of which it recorded the first ones."""
    barriers = [50.0 + 10 * step for step in range(8)]
    first = table_of(0, [*IRREGULAR, *barriers], ["all_reduce"] * 8 + ["barrier"] * 8)
    second = table_of(1, [end + 3000 for end in IRREGULAR], host="b")
    ends = [end + 3000 for end in barriers[:4]]
    assert match_all(first, second, table_of(2, ends, "barrier", host="b")).offset_ns.tolist() == [0, *[-3000 * MS] * 2]
    assert match_all(first, second, table_of(2, ends, "barrier")).offset_ns.tolist() != [0, *[-3000 * MS] * 2]


@pytest.mark.parametrize(("late_ms", "fits"), [(4, True), (8, False)])
def test_threads_of_the_cpu_may_wake_up_late(late_ms: float, fits: bool) -> None:
    """On the CPU ends may differ by a quarter of a step of 20 ms, on a GPU by half a millisecond."""
    steps = np.arange(5, dtype=np.int64) * 20 * MS
    ends = [40.0 * at for at in IRREGULAR]
    others = [end + late_ms * (row % 2) for row, end in enumerate(ends)]
    on_cpu = [table_of(rank, at, on_gpu=False, step_start_ns=steps) for rank, at in enumerate((ends, others))]
    assert (partner_rows(match_all(*on_cpu), 1) == list(range(8))) is fits
    assert partner_rows(match_all(table_of(0, ends), table_of(1, others)), 1) != list(range(8))


@given(st.permutations(range(4)), st.lists(st.integers(-5000, 5000), min_size=4, max_size=4))
def test_the_order_of_ranks_changes_no_lateness(order: Sequence[int], clocks: list[int]) -> None:
    ranks = [table_of(r, [end + clocks[r] for end in IRREGULAR], takes_ms=0.9 - 0.2 * r) for r in range(4)]
    found = match_all(*(ranks[r] for r in order))
    assert [found.tables[i].rank for i in found.last_arriver.tolist()] == [3] * 8
    assert (abs(found.last_arrival_ns - found.second_arrival_ns - 0.2 * MS) < 1000).all()
    assert (abs(found.total_wait_ns - 1.2 * MS) < 1000).all()
    assert (abs(found.transfer_ns - 0.3 * MS) < 1000).all()


def test_one_side_of_a_send_waits_by_design() -> None:
    early, late = table_of(0, IRREGULAR, "send_recv", takes_ms=0.9), table_of(1, IRREGULAR, "send_recv", takes_ms=0.1)
    assert find_late_rank(match_all(early, late)) is None
    early, late = table_of(0, IRREGULAR, "barrier", takes_ms=0.9), table_of(1, IRREGULAR, "barrier", takes_ms=0.1)
    found = find_late_rank(match_all(early, late))
    assert found is not None
    assert found.rank == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ALL_REDUCE, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "other"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("rccl_main_kernel_AllReduce", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>", "all_reduce"),
        ("void mscclpp::collective::allgather6<...>", "all_gather"),
        ("void deep_ep::internode::dispatch<false, 8, true>(int4*, float*, long*)", "all_to_all"),
        ("void deep_ep::intranode::combine<__nv_bfloat16>", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("allreduce", "all_reduce"),
        ("alltoallv", "all_to_all"),
        ("gloo:barrier", "barrier"),
        ("nccl:recv 1<-0", "send_recv"),
        ("wait", "other"),
    ],
)
def test_kinds_follow_from_names(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


def collectives_of_trace(built: TraceBuilder) -> CollectiveTable:
    return Rank(built.trace()).collectives


def test_what_is_recorded_of_a_collective_is_in_the_table() -> None:
    metadata = collective("allreduce", in_elements=1000, dtype="BFloat16", ranks=[0, 1, 2], group="5", sequence=41)
    built = TraceBuilder().step(0, 1000).kernel(ALL_REDUCE, 100, 50, launch_us=10, stream=20, comm=metadata)
    found = collectives_of_trace(built)
    assert (found.bytes.tolist(), found.seq.tolist(), found.group_size.tolist()) == ([2000], [41], [3])
    assert (found.stream.tolist(), found.step.tolist(), found.exposed_ns.tolist()) == ([20], [0], [50_000])
    [total] = found.totals
    assert (total.kind, total.group, total.count, total.bytes) == ("all_reduce", "default_pg", 1, 2000)
    assert [found.strings[code] for code in (*found.group.tolist(), *found.dtype.tolist())] == [
        "5 [0, 1, 2]",
        "BFloat16",
    ]


def test_a_kernel_for_several_kinds_is_what_the_range_around_its_launch_says() -> None:
    name = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"
    built = TraceBuilder().range("nccl:all_to_all", 5, 20).kernel(name, 100, 50, launch_us=10)
    assert [
        COLLECTIVE_KINDS[kind] for kind in collectives_of_trace(built.kernel(name, 200, 50, launch_us=60)).kind
    ] == ["all_to_all", "send_recv"]


def test_gloo_has_a_table_without_kernels() -> None:
    built = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 300)
    for thread, start in ((2, 300), (3, 400)):
        built.range("gloo:all_reduce", start, 200, thread=thread)
        metadata = collective("allreduce", in_elements=start)
        built.op("record_param_comms", start - 10, 5, comm=metadata)
    found = collectives_of_trace(built)
    assert not found.on_gpu
    assert (found.start_ns.tolist(), found.bytes.tolist()) == ([300_000, 400_000], [1200, 1600])
    assert found.phase_ns["communication"] == 305_000  # and the op that issued the first, before it


def test_ops_that_record_collectives_serve_where_no_range_does() -> None:
    built = TraceBuilder(device=None).step(0, 1000).op("record_param_comms", 300, 200, comm=collective("allreduce"))
    built.op("record_param_comms", 600, 10, comm=collective("wait"))
    assert collectives_of_trace(built).start_ns.tolist() == [300_000]


def test_a_long_table_keeps_its_end_and_fits_into_a_summary() -> None:
    built = TraceBuilder().step(0, 10 * (MAX_ROWS + 50))
    for row in range(MAX_ROWS + 50):
        built.kernel(ALL_REDUCE, 10 * row, 5, stream=20)
    found = collectives_of_trace(built)
    assert (len(found), found.dropped_rows, found.start_ns[0]) == (MAX_ROWS, 50, 500_000)
    assert found.totals[0].count == MAX_ROWS + 50
    assert len(pickle.dumps(found)) < 230_000


@given(any_file())
def test_phases_split_the_window_exactly(file: File) -> None:
    run = rank_of(file)
    sets = run.phases
    assert tuple(sets) == PHASES
    assert sum(map(iv.total, sets.values())) == iv.total(iv.union_of(sets.values())) == run.window_ns
    found = run.collectives
    assert (found.exposed_ns <= found.end_ns - found.start_ns).all()
    assert found.preceding_phase_ns.sum() <= run.window_ns * 1.001


def test_phases_are_those_of_the_loop() -> None:
    [built] = SyntheticFleet(ranks=1, steps=3).late_loader(0, 500).builders()
    spent = {name: iv.total(phase) // 3 for name, phase in Rank(built.trace()).phases.items()}
    assert spent["loader"] == pytest.approx(530_000, abs=5_000)
    assert spent["forward"] == pytest.approx(3_000_000, rel=0.01)
    assert spent["backward"] == pytest.approx(6_000_000, rel=0.01)
    assert spent["optimizer"] == pytest.approx(400_000, rel=0.01)
    # 120 us, and two gaps of 1.1 us between kernels of backward, in which the first bucket's transfer is exposed.
    assert spent["communication"] == pytest.approx(122_200, rel=0.001)
