"""PD706 on snapshots that the allocator's model has written, and on traces, which do not say what is cached."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import Request, SnapshotBuilder, Step

from perfdoctor.analyzers.pd706_fragmentation import Fragmentation
from perfdoctor.memory.caching_allocator import MIB
from perfdoctor.rank import Rank
from perfdoctor.testing import ExpectedFinding, RuleCase, TraceBuilder, check_rule
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


def fires(**expected: object) -> tuple[ExpectedFinding, ...]:
    given: dict[str, object] = {"severity": "high", "cost_ns": 0, **expected}
    return (ExpectedFinding(**given),)  # type: ignore[arg-type]


CASES = [
    RuleCase(
        "PD706",
        "sizes-that-grow",
        # 40 to 76 MiB are 580; with pages of 20 MiB four of them.
        lambda: SnapshotBuilder(growing(range(40, 80, 4))),
        fires(
            saved_bytes=(500 * MIB,) * 3,
            title="608 MB are reserved on GPU 0, and at most 79.7 MB of it allocated",
            fix="expandable_segments:True",
        ),
    ),
    RuleCase(
        "PD706",
        "sizes-of-a-line-vary",
        lambda: SnapshotBuilder(growing(range(40, 80, 4), line=7)),
        fires(location="/home/me/train.py:7", advice="pad its inputs"),
    ),
    RuleCase(
        "PD706",
        "three-sizes",
        lambda: SnapshotBuilder(growing([300, 340, 380])),
        fires(saved_bytes=(640 * MIB,) * 3, fix="expandable_segments:True"),
    ),
    RuleCase(
        "PD706",
        "a-small-request-cuts-a-large-block",
        # In an expandable segment as well, as the block of 10 MiB keeps the one before it from growing.
        lambda: SnapshotBuilder([Request(800 * MIB), Request(10 * MIB), 0, Request(30 * MIB), Request(800 * MIB)]),
        fires(saved_bytes=(770 * MIB,) * 3, fix="max_split_size_mb:512"),
    ),
    RuleCase(
        "PD706",
        "another-stream",
        lambda: SnapshotBuilder(held_by(0, 5), settings=EXPANDABLE),
        fires(severity="info", fix="torch.cuda.stream", evidence={"of it free for other streams": 402 * MIB}),
    ),
    RuleCase(
        "PD706",
        "a-private-pool",
        lambda: SnapshotBuilder(held_by(1, 0), settings=EXPANDABLE),
        fires(severity="info", fix="pool=first.pool()", evidence={"of it free in private pools": 402 * MIB}),
    ),
    RuleCase("PD706", "a-full-gpu", lambda: trace(1100), fires(severity="info", fix="_dump_snapshot")),
    RuleCase("PD706", "room-in-a-trace", lambda: trace(80_000)),
    RuleCase("PD706", "expandable", lambda: SnapshotBuilder(growing(range(40, 80, 4)), settings=EXPANDABLE)),
    RuleCase("PD706", "one-size", lambda: SnapshotBuilder(growing([400] * 10))),
    RuleCase("PD706", "small", lambda: SnapshotBuilder(growing(range(70, 80, 4)))),
    RuleCase("PD706", "sizes-that-shrink", lambda: SnapshotBuilder(growing(range(400, 40, -4)))),
    RuleCase("PD706", "a-small-request-after-it", lambda: SnapshotBuilder([Request(800 * MIB), 0, Request(30 * MIB)])),
    # What is cached at the end alone is no loss: it was needed, and goes to the next request.
    RuleCase("PD706", "cached-at-the-end", lambda: SnapshotBuilder([Request(600 * MIB), Request(400 * MIB), 0, 0])),
]


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
