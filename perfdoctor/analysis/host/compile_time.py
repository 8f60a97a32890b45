"""Time in which torch.compile compiles, as PyTorch records it."""

from __future__ import annotations

from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace


def compile_time(trace: Trace) -> Intervals:
    """When any thread compiled."""
    tables = (trace.ops, trace.ranges)
    rows = [trace.match_rows(table, vocabulary.COMPILE_PHASE) for table in tables]
    return iv.union_of(iv.union(t.start_ns[r], t.end_ns[r]) for t, r in zip(tables, rows, strict=True))
