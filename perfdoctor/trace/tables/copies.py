"""What the names of copies say: which way each GPU item copies, and from or to which kind of host memory."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.model import MEMCPY, GpuItems, Trace


@frozen_dataclass(eq=False)
class CopyKinds:
    """The copies among the GPU items of a trace.

    For example::

        Memcpy HtoD (Pageable -> Device)   direction HTOD   host_memory PAGEABLE
        Memcpy DtoD (Device -> Device)     direction DTOD   host_memory UNKNOWN_MEMORY
        ampere_sgemm_128x64_nn             direction NONE   host_memory NONE

    Attributes:
        direction: For each GPU item an index into `vocabulary.COPY_DIRECTIONS`; NONE for what is not a copy.
        host_memory: For each GPU item an index into `vocabulary.HOST_MEMORY`; NONE for what is not a copy.
    """

    direction: Int8Array
    host_memory: Int8Array

    def __len__(self) -> int:
        return len(self.direction)

    def matches(self, direction: int, *host_memory: int) -> BoolArray:
        """For each GPU item whether it is a copy in that direction.

        Only the given kinds of `vocabulary.HOST_MEMORY` count; without any, all.
        """
        matches: BoolArray = self.direction == direction
        return matches & np.isin(self.host_memory, host_memory) if host_memory else matches

    @property
    def between_devices(self) -> BoolArray:
        """For each GPU item whether it copies within a device or to another: such calls return at once."""
        between: BoolArray = (self.direction == vocabulary.DTOD) | (self.direction == vocabulary.PTOP)
        return between

    @property
    def with_host(self) -> BoolArray:
        """For each GPU item whether it copies from or to the host, or may do so because its name says no direction."""
        with_host: BoolArray = (self.direction != NONE) & ~self.between_devices
        return with_host


_KINDS: WeakKeyDictionary[GpuItems, CopyKinds] = WeakKeyDictionary()
"""The copies of a table: many facts and rules ask for them."""


def copy_kinds_of(trace: Trace) -> CopyKinds:
    """The direction and host memory of each copy of a trace; each distinct name is taken apart once."""
    gpu = trace.gpu
    if gpu not in _KINDS:
        rows = np.flatnonzero(gpu.kind == MEMCPY)
        codes = gpu.name[rows]
        by_code = np.full((2, len(trace.strings)), NONE, np.int8)
        for code in occurring(codes).tolist():
            name = trace.strings[code]
            by_code[:, code] = vocabulary.copy_direction(name), vocabulary.copy_host_memory(name)
        direction, host_memory = np.full((2, len(gpu)), NONE, np.int8)
        direction[rows], host_memory[rows] = by_code[:, codes]
        direction.flags.writeable = host_memory.flags.writeable = False
        _KINDS[gpu] = CopyKinds(direction, host_memory)
    return _KINDS[gpu]
