"""PD802: decoding takes much longer than reading the weights, because of small kernels between the products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    KERNEL,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Rank,
    RankAnalyzer,
    Saving,
    When,
    advise,
    format_time,
    fuse,
    rows_of,
)
from perfdoctor.rules.internal import MAIN_SHARE, MATRIX_CATEGORIES

_VLLM = "https://docs.vllm.ai/en/stable/configuration/optimization/"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/features/torch_compile_and_piecewise_cuda_graph.html"
_TRANSFORMERS = "https://huggingface.co/docs/transformers/llm_optims"
_FUSE = "Fuse what lies between the products: each kernel takes some microseconds, however little it computes."
_ROWS = rows_of(
    "small kernels between products that decode",
    (
        When(min_compiled=MAIN_SHARE),
        "Serve more requests in a pass: these kernels take about as long for many as for one, and so does reading the "
        "weights.",
        None,
        _VLLM,
    ),
    (When(uses=("vLLM",)), _FUSE, "vllm serve ... -O2   # the default; without --enforce-eager", _VLLM),
    (When(uses=("SGLang",)), _FUSE, "python -m sglang.launch_server ... --enable-torch-compile", _SGLANG),
    (
        When(uses=("TensorRT-LLM",)),
        _FUSE,
        "LLM(..., torch_compile_config=TorchCompileConfig(enable_inductor=True))",
        _TENSORRT_LLM,
    ),
    (
        When(uses=("Hugging Face Transformers",)),
        f"{_FUSE} A cache of fixed size lets the model be compiled.",
        'model.generation_config.cache_implementation = "static"\n'
        'model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)',
        _TRANSFORMERS,
    ),
    (When(), _FUSE, None, _TRANSFORMERS),
)


class DecodeAboveFloor(RankAnalyzer):
    """A pass that decodes keeps the GPU busy for a multiple of the time in which it could read all weights.

    What it finds:
        Passes of a serving engine, or of transformers' generate, that decode, and whose kernels take twice as long or
        more as the memory needs for what the products read; where small kernels between the products make it so.

    Why it costs time:
        A token needs each weight once, and next to no computing: reading them is the floor. Norms, rotations, casts and
        additions of a few thousand numbers add some microseconds each, hundreds of times a pass.

    How it is measured:
        The floor is bytes of the products' and the attention's inputs and outputs by their recorded shapes, over the
        attainable bandwidth. The rest is the time of kernels too short for any roof that are neither of these nor
        collectives. The saving is at most what is left out when only one kernel remains between two products. Products
        that are slow themselves are PD209's, idle time is that of PD801, PD803 and PD104.

    How to fix:
        Compile the model, so that what lies between products is fused. Where that is done, more requests in a pass make
        it count less. Quantized weights lower the floor itself, and speculative decoding reads them less often.

    When it is wrong:
        Shapes are recorded of ops, and kernels in graphs have none: then there is no floor, and this rule is silent.
        Experts that no token chose are not read, though their shapes are recorded.

    Needs:
        Launches and input shapes; a device whose bandwidth is known.

    References:
        Transformers, "Optimizing inference"; vLLM, "Optimization and Tuning".
    """

    rule = "PD802"
    name = "decode-above-floor"
    needs = frozenset({"kernels", "launches", "shapes"})
    # min_ratio: products of a few rows reach 0.6 of the bandwidth in the table of efficiencies, so that 1.7 is usual.
    # min_share: as for unfused work in general.
    defaults = {"min_ratio": 2.0, "min_share": 0.03}
    references = (_TRANSFORMERS, _VLLM)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when small kernels keep decoding from its floor, for `min_share` of the time at least."""
        passes, trace = rank.passes, rank.trace
        row = next((each for each in rank.pass_summary if each.kind == "decode"), None)
        if passes is None or row is None or not row.floor_ns or row.busy_ns < self.settings["min_ratio"] * row.floor_ns:
            return
        decoding = rank.kernels.where(passes.match_items(passes.match_kind("decode"))).in_steps()
        others = decoding - decoding.of_category(*MATRIX_CATEGORIES, "communication")
        small = others.where(rank.bounds.short & (trace.gpu.kind == KERNEL))
        kept = _find_one_between_products(decoding, small)
        small_ns = int(trace.gpu.dur_ns[small.mask].sum())
        saved_ns = small_ns - int(trace.gpu.dur_ns[kept.mask].sum())
        cost_ns = rank.per_step(saved_ns)
        if not self.exceeds_min_share(rank, cost_ns):
            return
        count = round(len(small) / row.passes)
        yield self.finding(
            rank,
            title=f"A pass that decodes keeps the GPU busy for {format_time(row.busy_ns)}, "
            f"{row.busy_ns / row.floor_ns:.1f} times what reading its weights takes; {count} small kernels take "
            f"{format_time(small_ns // row.passes)}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(_ROWS, rank.context),
            claim=Claim((small - kept).time, kernels=True),
            edit=fuse(trace, small.rows, saved_ns / small_ns, kept.rows),
            confidence=0.7,
            evidence=(
                Evidence("GPU busy in a pass", row.busy_ns, "ns"),
                Evidence("reading its weights takes at least", row.floor_ns, "ns"),
                Evidence("small kernels in a pass", count, "count"),
            ),
        )


def _find_one_between_products(decoding: GpuQuery, small: GpuQuery) -> GpuQuery:
    """The first small kernel behind each product: one remains where several are fused."""
    gpu = decoding.table
    rows = np.flatnonzero(decoding.mask)
    rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
    is_small = small.mask[rows]
    behind = np.cumsum(decoding.of_category(*MATRIX_CATEGORIES).mask[rows])[is_small]
    kept = np.zeros(len(gpu), bool)
    kept[rows[is_small][np.unique(behind, return_index=True)[1]]] = True
    return small.where(kept)
