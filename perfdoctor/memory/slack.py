"""What the CUDA allocator holds of a device and no allocation asked for, by why it is not given to one.

At every instant the parts and what is allocated add up to what is reserved, to the byte.
"""

from __future__ import annotations

from collections import Counter

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.caching_allocator import Block


@frozen_dataclass
class Slack:
    """What is reserved and not allocated, in bytes.

    Attributes:
        rounding_bytes: In blocks in use, beyond what was requested.
        cached_bytes: Free segments, and free whole pages of expandable ones: they go to the next request that fits, or
            back to the device when a reservation fails.
        fragmented_bytes: Free blocks in segments of which another part is in use: they fit smaller requests only.
        other_streams_bytes: Free blocks that belong to other streams than the one that holds most.
        private_pools_bytes: Free blocks in private pools, as of CUDA graphs.
    """

    rounding_bytes: int
    cached_bytes: int
    fragmented_bytes: int
    other_streams_bytes: int
    private_pools_bytes: int


def slack_at(replay: AllocatorReplay, place: int) -> Slack | None:
    """The slack after an event, a place in `Allocations.rows`; None where the replay is not to be trusted."""
    if replay.distrust is not None:
        return None
    state, memory = replay.state_at(place), replay.memory
    blocks = [block for segment in state.segments for block in segment if block.is_mapped]
    in_use: Counter[int] = Counter()
    for block in blocks:
        if block.in_use:
            in_use[block.segment.pool.stream] += block.size
    main_stream = max(in_use, key=lambda stream: in_use[stream], default=0)
    requested = int(memory.trace.memory.allocated_bytes[memory.allocations.rows[place]])
    cached = fragmented = other = private = 0
    for block in blocks:
        if block.in_use:
            continue
        pool = block.segment.pool
        if pool.is_private:
            private += block.size
        elif pool.stream != main_stream:
            other += block.size
        else:
            whole = _returnable_bytes(block)
            cached += whole
            fragmented += block.size - whole
    return Slack(in_use.total() - requested, cached, fragmented, other, private)


def _returnable_bytes(block: Block) -> int:
    """How much of a free block can go back to the device."""
    if block.segment.is_expandable:
        first, end = block.pages
        return max(end - first, 0)
    return 0 if block.is_split else block.size
