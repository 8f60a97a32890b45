"""The replay of the CUDA allocator against real snapshots: `python -m benchmarks.allocator_replay FOLDER`.

For each device: the peak of what was reserved, as recorded and as replayed; at how many of the events both are the same
to the byte; and whether the replay ends with the blocks that the snapshot holds: their distances, sizes and states.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.rank import Rank
from perfdoctor.trace import read
from perfdoctor.trace.io.load_pickle import load_plain_pickle
from perfdoctor.trace.tables.model import AllocatorSettings

_ROW = "{:44} {:>3} {:>7} {:>10} {:>10} {:>8} {:>12} {:>10} {:>11} {:>10}  {}"
Blocks = list[tuple[int, int, bool]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    print(
        _ROW.format(
            *("file", "GPU", "events", "recorded", "replayed", "error", "events alike", "end alike"),
            *("expandable", "us / event", "why not"),
        )
    )
    for path in sorted(parser.parse_args().folder.glob("*.pickle")):
        for memory in Rank(read(path)).memory:
            if len(memory.allocations.rows):
                print(
                    _ROW.format(path.name, memory.device, *_compare(memory, load_plain_pickle(path.read_bytes(), "")))
                )


def _compare(memory: DeviceMemory, snapshot: Any) -> tuple[str, ...]:
    replay, count = AllocatorReplay(memory), len(memory.allocations.rows)
    recorded = f"{replay.recorded_bytes.max() / 1e9:.3f} GB"
    start = time.process_time()
    reason = replay.distrust
    per_event_us = (time.process_time() - start) / count * 1e6
    if not replay.can_replay:
        return (str(count), recorded, *("n/a",) * 6, reason or "")
    peak = replay.plain.peak_reserved_bytes
    return (
        str(count),
        recorded,
        f"{peak / 1e9:.3f} GB",
        f"{abs(peak / replay.recorded_bytes.max() - 1):.1%}",
        f"{np.mean(replay.plain.reserved_bytes == replay.recorded_bytes):.1%}",
        "yes" if _replayed_blocks(replay) == _recorded_blocks(memory, snapshot) else "no",
        f"{replay.replay(settings=AllocatorSettings(expandable_segments=True)).peak_reserved_bytes / 1e9:.3f} GB",
        f"{per_event_us:.1f}",
        reason or "",
    )


def _replayed_blocks(replay: AllocatorReplay) -> list[Blocks]:
    blocks = [block for segment in replay.plain.segments for block in segment if block.is_mapped]
    return [
        _by_offset((each.address, each.size, each.in_use) for each in blocks if each.segment.pool.is_small == is_small)
        for is_small in (False, True)
    ]


def _recorded_blocks(memory: DeviceMemory, snapshot: Any) -> list[Blocks]:
    segments = [each for each in snapshot["segments"] if each["device"] == memory.device]
    return [
        _by_offset(
            (block["address"], block["size"], block["state"] != "inactive")
            for each in segments
            if each["segment_type"] == kind
            for block in each["blocks"]
        )
        for kind in ("large", "small")
    ]


def _by_offset(blocks: Iterable[tuple[int, int, bool]]) -> Blocks:
    """The blocks with their distances from the first one: a new expandable segment may lie anywhere."""
    found = sorted(blocks)
    return [(address - found[0][0], size, in_use) for address, size, in_use in found]


if __name__ == "__main__":
    main()
