"""A file becomes columns: readers, the Trace they make, its steps, and interval arithmetic."""

from __future__ import annotations

from perfdoctor.trace.model import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NONE,
    Calls,
    Comms,
    DeviceProperties,
    Frames,
    GpuItems,
    Ops,
    Ranges,
    Syncs,
    Table,
    Trace,
)
from perfdoctor.trace.opening import read
from perfdoctor.trace.reader import parse

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
    "Ops",
    "Ranges",
    "Syncs",
    "Table",
    "Trace",
    "parse",
    "read",
]
