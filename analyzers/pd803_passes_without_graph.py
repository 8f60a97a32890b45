"""PD803: batches of a serving engine decode without CUDA graphs, or in graphs that are captured for many more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    CallRows,
    Claim,
    EnginePasses,
    Evidence,
    Finding,
    FloatArray,
    GpuRows,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    Trace,
    activity_kinds,
    advise,
    count_rows_of_passes,
    distinct,
    scale_durations,
    shorten_launches,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_VLLM_SIZES = "https://docs.vllm.ai/en/v0.13.0/api/vllm/config/compilation/"
_SGLANG_SIZES = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM_SIZES = "https://nvidia.github.io/TensorRT-LLM/1.0.0/examples/llm_runtime.html"
# So many passes of each kind tell a limit on the batch from a pass that is an exception.
_MIN_PASSES = 3
_GRAPHED = 0.5
# Captured sizes of engines lie by a factor of two apart at most, so that less is usual.
_MIN_PADDING = 2


class PassesWithoutGraph(RankAnalyzer):
    """Decoding runs in CUDA graphs up to a size of the batch, and kernel by kernel above it; or in graphs too large."""

    rule = "PD803"
    name = "passes-without-graph"
    needs = frozenset({"kernels", "launches"})
    # min_share: of the time of a pass, as for what an engine does between passes.
    defaults = {"min_share": 0.02}
    references = (_VLLM_SIZES, _SGLANG_SIZES, _TENSORRT_LLM_SIZES)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for batches without graphs, and one for padded graphs, of `min_share` of all passes at least."""
        passes = rank.engine_passes
        if passes is not None:
            graphed = _share_of_items_in_graphs(rank.trace, passes) >= _GRAPHED
            yield from self._find_large_batches(rank, passes, graphed)
            yield from self._find_padding(rank, passes, graphed)

    def _find_padding(self, rank: Rank, passes: EnginePasses, graphed: BoolArray) -> Iterator[Finding]:
        padding = find_padding(rank, graphed)
        if padding is None or padding.saved_ns.sum() < self.settings["min_share"] * rank.window_ns:
            return
        cost_ns = rank.per_step(int(padding.saved_ns.sum()))
        starts_ns = passes.windows[padding.rows, 0]
        saved = iv.intersect(iv.union(starts_ns, starts_ns + padding.saved_ns), rank.window)
        items = np.flatnonzero(np.isin(passes.pass_of_item, padding.rows) & rank.in_window)
        share = padding.saved_ns.sum() / max(rank.trace.gpu.dur_ns[items].sum(), 1)
        yield self.finding(
            rank,
            title=f"{len(padding.rows)} passes that decode run in graphs of twice their size or more: "
            f"{padding.captured} rows for {padding.tokens}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise("graphs are padded", rank.context, size=padding.tokens),
            claim=Claim(saved, kernels=True),
            edit=scale_durations(GpuRows(rank.trace.gpu, items), min(share, 1.0)),
            confidence=0.7,
            evidence=(
                Evidence("rows of their graphs", padding.captured, "count"),
                Evidence("tokens that they decode", padding.tokens, "count"),
            ),
        )

    def _find_large_batches(self, rank: Rank, passes: EnginePasses, graphed: BoolArray) -> Iterator[Finding]:
        trace, decoding = rank.trace, [each.requests if each.kind == "decode" else None for each in passes.passes]
        size = np.array([each or 0 for each in decoding])
        with_graph, eager = (size > 0) & graphed, (size > 0) & ~graphed
        if min(with_graph.sum(), eager.sum()) < _MIN_PASSES or size[eager].min() <= size[with_graph].max():
            return
        inside = iv.intersect(iv.union(passes.windows[eager, 0], passes.windows[eager, 1]), rank.window)
        idle = iv.intersect(passes.idle[activity_kinds.ENGINE_MODEL], inside)
        cost_ns = rank.per_step(iv.total(idle))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        items = passes.match_items(eager) & (trace.gpu.call >= 0)
        launches = CallRows(trace.calls, distinct(trace.gpu.call[items]))
        largest, captured = int(size[eager].max()), int(size[with_graph].max())
        yield self.finding(
            rank,
            title=f"{int(eager.sum())} of {int((size > 0).sum())} passes that decode run without a graph, those of "
            f"more than {captured} requests, and the GPU waits for their launches",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise("large batches decode without graphs", rank.context, size=largest),
            claim=Claim(idle),
            edit=shorten_launches(launches, rank.window, pause_ns=rank.pause_threshold_ns),
            confidence=0.8,
            evidence=(
                Evidence("largest batch with a graph", captured, "count"),
                Evidence("largest batch without", largest, "count"),
                Evidence("GPU idle in a pass without", round(iv.total(idle) / int(eager.sum())), "ns"),
            ),
        )


def _share_of_items_in_graphs(trace: Trace, passes: EnginePasses) -> FloatArray:
    """For each pass the share (0 to 1) of its GPU items that graphs launched."""
    in_graph = np.append(trace.match_rows(trace.calls, vocabulary.GRAPH_LAUNCH_CALL), False)[trace.gpu.call]
    mine = passes.pass_of_item >= 0
    counts = np.bincount(passes.pass_of_item[mine], minlength=len(passes))
    result: FloatArray = np.bincount(passes.pass_of_item[mine], in_graph[mine], len(passes)) / np.maximum(counts, 1)
    return result


class Padding(NamedTuple):
    """The padded passes, and what their padding costs at most.

    Attributes:
        rows: Their numbers in `Rank.engine_passes`.
        saved_ns: For each of them the GPU's time above that of a smaller graph.
        tokens: What most of them decode.
        captured: For how many their graph is captured.
    """

    rows: Int64Array
    saved_ns: Int64Array
    tokens: int
    captured: int


def find_padding(rank: Rank, graphed: BoolArray) -> Padding | None:
    """The passes in graphs that compute twice as many rows as they decode tokens, or more; None without any.

    A graph of the right size takes at least as long as the largest recorded one that is smaller: none, no price.
    """
    passes = rank.engine_passes
    if passes is None:
        return None
    tokens = np.array([each.tokens or 0 if each.kind == "decode" else 0 for each in passes.passes])
    rows = np.where(graphed & (tokens > 0), count_rows_of_passes(rank.trace, passes), 0)
    inside, busy_ns = iv.overlap(passes.windows[:, 0], passes.windows[:, 1], rank.window) > 0, passes.busy_ns
    typical_ns = {size: int(np.median(busy_ns[rows == size])) for size in set(rows[rows > 0].tolist())}
    padded, saved_ns = [], []
    for each in np.flatnonzero(inside & (rows > 0) & (rows >= _MIN_PADDING * tokens)).tolist():
        smaller = max((size for size in typical_ns if size <= tokens[each]), default=None)
        if smaller is not None:
            padded.append(each)
            saved_ns.append(max(min(int(busy_ns[each]), typical_ns[int(rows[each])]) - typical_ns[smaller], 0))
    if len(padded) < _MIN_PASSES:
        return None
    (most, captured), _ = Counter(zip(tokens[padded].tolist(), rows[padded].tolist(), strict=True)).most_common(1)[0]
    return Padding(np.array(padded), np.array(saved_ns), most, captured)
