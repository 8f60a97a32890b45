"""PD803: batches of a serving engine decode without CUDA graphs, or in graphs that are captured for many more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._pd803_padding import find_padding
from perfdoctor.rules import (
    BoolArray,
    CallRows,
    Claim,
    EnginePasses,
    Evidence,
    Finding,
    FloatArray,
    GpuRows,
    Rank,
    RankAnalyzer,
    Saving,
    Trace,
    When,
    activity_kinds,
    advise,
    distinct,
    rows_of,
    scale_durations,
    shorten_launches,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_FITTING = "Capture a graph for the batch that is served: each takes memory and time at the start."
_VLLM_SIZES = "https://docs.vllm.ai/en/v0.13.0/api/vllm/config/compilation/"
_SGLANG_SIZES = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM_SIZES = "https://nvidia.github.io/TensorRT-LLM/1.0.0/examples/llm_runtime.html"
_CAPTURE = "Capture graphs up to the batch that is served: more memory and a longer start are what it costs."
_ROWS = rows_of(
    "large batches decode without graphs",
    (
        When(uses=("vLLM",)),
        _CAPTURE,
        """vllm serve ... --compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8, ..., {size}]}'""",
        _VLLM_SIZES,
    ),
    (When(uses=("SGLang",)), _CAPTURE, "python -m sglang.launch_server ... --cuda-graph-max-bs {size}", _SGLANG_SIZES),
    (
        When(uses=("TensorRT-LLM",)),
        _CAPTURE,
        "LLM(..., cuda_graph_config=CudaGraphConfig(batch_sizes=[1, 2, 4, 8, ..., {size}], enable_padding=True))",
        _TENSORRT_LLM_SIZES,
    ),
    (When(), f"{_CAPTURE} The largest here is {{size}}.", None, _TENSORRT_LLM_SIZES),
)
_PADDED_ROWS = rows_of(
    "graphs are padded",
    (
        When(uses=("vLLM",)),
        _FITTING,
        """vllm serve ... --compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, ..., {size}, ...]}'""",
        _VLLM_SIZES,
    ),
    (
        When(uses=("SGLang",)),
        _FITTING,
        "python -m sglang.launch_server ... --cuda-graph-bs 1 2 4 {size}",
        _SGLANG_SIZES,
    ),
    (
        When(uses=("TensorRT-LLM",)),
        _FITTING,
        "LLM(..., cuda_graph_config=CudaGraphConfig(batch_sizes=[1, 2, 4, ..., {size}, ...], enable_padding=True))",
        _TENSORRT_LLM_SIZES,
    ),
    (When(), _FITTING, None, _TENSORRT_LLM_SIZES),
)
# So many passes of each kind tell a limit on the batch from a pass that is an exception.
_MIN_PASSES = 3
_GRAPHED = 0.5


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
            advice=advise(_PADDED_ROWS, rank.context, size=padding.tokens),
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
            advice=advise(_ROWS, rank.context, size=largest),
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
