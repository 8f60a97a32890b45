"""PD706 on snapshots that the allocator's model has written, and on traces, which do not say what is cached."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from all_cases import cases_of
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import Request, SnapshotBuilder, Step

from perfdoctor.analyzers.pd706_fragmentation import Fragmentation
from perfdoctor.memory.caching_allocator import MIB
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder, check_rule
from perfdoctor.trace.tables.model import AllocatorSettings

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def growing(sizes: Sequence[int], line: int = 0) -> list[Step]:
    """A tensor of each size in MiB, one after the other: the block of the one before is too small."""
    return [each for size in sizes for each in (Request(size * MIB, line=line), 0)]


def held_by(pool: int, stream: int) -> list[Step]:
    """What a stream or a private pool has freed, and what another one takes."""
    kept: list[Step] = [Request(9 * MIB, pool, stream)] * 2
    return [Request(400 * MIB, pool, stream), *kept, 0, Request(600 * MIB)]


def trace(capacity_mb: int) -> TraceBuilder:
    """A GPU of some size, of which 1.07 GB are reserved and 700 MB allocated, in a trace."""
    b = TraceBuilder(memory_bytes=capacity_mb * 1_000_000).op("aten::add", 0, 9)
    b.memory(1, 700_000_000, 64, device=0).memory(5, -700_000_000, 64, device=0)
    return b


CASES = list(cases_of(sys.modules[__name__]))


def test_the_rule_holds_its_contract_and_its_cases() -> None:
    check_rule(Fragmentation, CASES)


SIZES = st.sampled_from([500, 200_000, 2 * MIB, 8 * MIB, 12 * MIB, 24 * MIB, 70 * MIB])
STEPS = st.lists(st.one_of(st.tuples(SIZES, st.just(0), st.integers(0, 1)), st.integers(0, 20)), max_size=40)


@given(STEPS)
def test_what_is_promised_of_a_setting_is_what_a_recording_with_it_has(steps: list[Step]) -> None:
    steps = [Request(60 * MIB), *steps]  # something to record
    plain, expandable = (Rank(SnapshotBuilder(steps, settings=each).trace()) for each in (None, EXPANDABLE))
    reserved, better = (int(rank.allocators[0].recorded_bytes.max()) for rank in (plain, expandable))
    assert plain.allocators[0].bytes_saved_by(EXPANDABLE) == max(reserved - better, 0)
