"""A file becomes columns: readers, the Trace they make, its steps, and interval arithmetic."""

from __future__ import annotations

from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.kineto.reader import parse
from perfdoctor.trace.read_trace import read
from perfdoctor.trace.tables.model import (
    KERNEL,
    MEMCPY,
    MEMSET,
    Calls,
    Comms,
    DeviceProperties,
    Frames,
    GpuItems,
    MemoryEvents,
    Ops,
    Ranges,
    Syncs,
    Table,
    Trace,
)

__all__ = [
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "NONE",
    "Calls",
    "Comms",
    "DeviceProperties",
    "Frames",
    "GpuItems",
    "MemoryEvents",
    "Ops",
    "Ranges",
    "Syncs",
    "Table",
    "Trace",
    "parse",
    "read",
]
