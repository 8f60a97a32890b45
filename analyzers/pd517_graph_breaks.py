"""PD517: compiled code falls apart into several graphs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    captured_location,
    distinct,
    read_advice,
    vocabulary,
)
from perfdoctor.rules import intervals as iv


class GraphBreaks(RankAnalyzer):
    """torch.compile cannot take a function whole: it falls apart into graphs, with Python in between."""

    rule = "PD517"
    name = "graph-breaks"
    needs = frozenset({"cpu"})
    # min_share: where a low finding begins.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/docs/stable/compile/programming_model.common_graph_breaks.html",
        "https://docs.pytorch.org/docs/stable/compile/programming_model.fullgraph_true.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when Python between two halves takes at least `min_share` of the step."""
        compiled = rank.facts.compile
        if compiled.graph_breaks == 0:
            return
        time, pieces = find_python_time(rank)
        cost_ns = rank.per_step(iv.total(time))
        if not len(time) or not self.exceeds_min_share(rank, cost_ns):
            return
        reasons = sorted(compiled.break_reasons, key=lambda reason: -compiled.break_reasons[reason])
        places = [captured_location(each) for each in compiled.break_lines]
        lines = [place for place in places if place is not None]
        advice = read_advice("graph breaks")
        also = f"They are {', '.join(line.short for line in lines[:4])}." if len(lines) > 1 else ""
        yield self.finding(
            rank,
            title=f"Graph breaks cut compiled code into {pieces:g} pieces a call: Python takes "
            f"{rank.share(cost_ns):.0%} of the step between them",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice.extend(also),
            claim=Claim(time),
            confidence=0.8,
            location=lines[0] if lines else None,
            evidence=(
                Evidence("graph breaks of the whole run", compiled.graph_breaks, "count"),
                Evidence("most common reason", reasons[0] if reasons else None),
            ),
        )


def find_python_time(rank: Rank) -> tuple[Intervals, float]:
    """When a compiled call that broke runs neither an op nor a compiled graph, and the pieces of such a call.

    What follows a break is a compiled region of its own, within that of the call::

        Torch-Compiled Region: 0/0 [ CompiledFunction   python   Torch-Compiled Region: 1/0 [ CompiledFunction ] ]
    """
    trace = rank.trace
    regions, work = [], []
    for table in (trace.ops, trace.ranges):
        is_region = trace.match_rows(table, vocabulary.COMPILED_REGION)
        lasts = is_region & (table.dur_ns > 0)
        regions.append(np.stack((table.start_ns, table.end_ns, table.thread))[:, lasts])
        is_work = trace.match_rows(table, vocabulary.COMPILED_CODE) if table is trace.ranges else ~is_region
        is_work &= ~is_region & ~trace.match_rows(table, vocabulary.AROUND_COMPILED_GRAPH)
        work.append(iv.union(table.start_ns[is_work], table.end_ns[is_work]))
    start, end, thread = np.concatenate(regions, axis=1)
    broken: list[Intervals] = []
    pieces: list[Int64Array] = []
    for each in distinct(thread):
        mine = thread == each
        calls = iv.union(start[mine], end[mine])
        regions_inside = np.bincount(np.searchsorted(calls[:, 0], start[mine], "right") - 1)
        broken.append(calls[regions_inside > 1])
        pieces.append(regions_inside[regions_inside > 1])
    time = iv.intersect(iv.subtract(iv.union_of(broken), iv.union_of(work)), rank.window)
    return time, float(np.median(np.concatenate(pieces))) if len(time) else 0.0
