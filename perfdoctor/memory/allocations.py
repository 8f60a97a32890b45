"""The allocations of a device, each with the events at which it begins and ends: pairs of events at one address."""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables.model import MemoryEvents


@frozen_dataclass(eq=False)
class Allocations:
    """The allocations of one device.

    For example, with addresses a and b::

        event      0: +8 a   1: -8 a   2: +4 a   3: -6 b
        bytes  begins  ends
        8      0       1
        4      2       4           the end of the recording
        6      NONE    3           from before the recording

    Attributes:
        rows: The events of the device in their order, rows of `Trace.memory`, from the first recorded one on.
        bytes: The size of each allocation.
        begins: The place in `rows` of the event that made it; NONE for one from before the recording.
        ends: The place of the event that freed it; the number of events where it was not freed.
        origin: The row of `Trace.memory` that says where it was made; NONE where none does.
        unlisted_bytes: What was allocated before the recording and is not freed in it, so that no event names it.
            Negative where the events contradict their totals.
    """

    rows: Int64Array
    bytes: Int64Array
    begins: Int64Array
    ends: Int64Array
    origin: Int64Array
    unlisted_bytes: int

    def alive_at(self, place: int) -> BoolArray:
        """Which of them hold memory after an event."""
        return (self.begins <= place) & (place < self.ends)


def pair_events(memory: MemoryEvents, rows: Int64Array, opening_events: int = 0) -> Allocations:
    """The allocations of a device.

    A free belongs to the last event at its address if that is an allocation of its size. Another free is of memory from
    before the recording; an allocation without a free stays to the end. So what is alive adds up to the recorded total
    at every event, whatever is missing in between.

    Args:
        memory: The events of all devices.
        rows: Those of the device, in their order.
        opening_events: How many of these stand for what was allocated before the recording.
    """
    size, address = memory.bytes[rows], memory.address[rows]
    order = np.argsort(address, kind="stable")
    order = order[(size[order] != 0) & (address[order] != NONE)]
    first, then = order[:-1], order[1:]
    is_pair = (address[first] == address[then]) & (size[first] > 0) & (size[then] == -size[first])
    ends = np.full(len(rows), len(rows), np.int64)
    ends[first[is_pair]] = then[is_pair]
    is_unknown = size < 0
    is_unknown[then[is_pair]] = False
    made, unknown = np.flatnonzero(size > 0), np.flatnonzero(is_unknown)
    nowhere = np.full(len(unknown), NONE, np.int64)
    before_bytes = int(memory.allocated_bytes[rows[0]] - size[0]) if len(rows) else 0
    return Allocations(
        rows=rows[opening_events:],
        bytes=np.concatenate((size[made], -size[unknown])),
        begins=np.concatenate((np.maximum(made - opening_events, NONE), nowhere)),
        ends=np.concatenate((ends[made], unknown)) - opening_events,
        origin=np.concatenate((rows[made], nowhere)),
        unlisted_bytes=before_bytes + int(size[unknown].sum()),
    )
