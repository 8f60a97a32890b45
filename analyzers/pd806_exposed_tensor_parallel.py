"""PD806: each layer of a model that a serving engine splits over GPUs waits for its collectives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    SHORTEST_KERNEL_NS,
    Claim,
    Evidence,
    Finding,
    GpuRows,
    Rank,
    RankAnalyzer,
    Saving,
    When,
    advise,
    rows_of,
    set_durations,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_VLLM = "https://docs.vllm.ai/en/v0.10.2/configuration/engine_args.html"
_VLLM_FUSIONS = "https://docs.vllm.ai/en/stable/design/fusions/"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_FEWER = "Use fewer tensor-parallel ranks, and more replicas of a model that fits on fewer GPUs"
_FEWER_ROWS = (
    (When(uses=("vLLM",)), f"{_FEWER}.", "vllm serve ... --tensor-parallel-size N --data-parallel-size M", _VLLM),
    (When(uses=("SGLang",)), f"{_FEWER}.", "python -m sglang.launch_server ... --tp-size N --dp-size M", _SGLANG),
    (When(), f"{_FEWER}: each layer waits for its all-reduce.", None, _TENSORRT_LLM),
)
_OWN_KERNELS = (
    "Let the engine reduce by its own kernels, which need less time than NCCL's for what a pass that decodes sends. "
    "They need NVLink between all GPUs of the group; without it use fewer ranks."
)
_BY_NCCL = rows_of(
    "decoding reduces by NCCL",
    (When(uses=("vLLM",)), _OWN_KERNELS, "vllm serve ...   # without --disable-custom-all-reduce", _VLLM),
    (
        When(uses=("SGLang",)),
        _OWN_KERNELS,
        "python -m sglang.launch_server ...   # without --disable-custom-all-reduce",
        _SGLANG,
    ),
    (When(uses=("TensorRT-LLM",)), _OWN_KERNELS, 'LLM(..., allreduce_strategy="AUTO")', _TENSORRT_LLM),
    (When(), _OWN_KERNELS, None, _VLLM),
)
_FUSE = "Fuse each all-reduce with the norm behind it; and try fewer tensor-parallel ranks."
_BY_OWN_KERNELS = rows_of(
    "decoding reduces by kernels of the engine",
    (
        When(uses=("vLLM",)),
        f"{_FUSE} It is the default on Hopper and Blackwell in releases from 0.18 on.",
        """vllm serve ... --compilation-config '{"pass_config": {"fuse_allreduce_rms": true}}'""",
        _VLLM_FUSIONS,
    ),
    (When(uses=("SGLang",)), _FUSE, "python -m sglang.launch_server ... --enable-flashinfer-allreduce-fusion", _SGLANG),
    _FEWER_ROWS[-1],
)
_FUSED = rows_of("decoding reduces within other kernels", *_FEWER_ROWS)
_PROMPTS = rows_of(
    "prompts wait for collectives",
    (
        When(uses=("vLLM",)),
        "Overlap the products with their collectives, by sequence parallelism and asynchronous tensor parallelism; or "
        "use fewer tensor-parallel ranks.",
        """vllm serve ... --compilation-config '{"pass_config": {"enable_sp": true, "fuse_gemm_comms": true}}'""",
        _VLLM_FUSIONS,
    ),
    *_FEWER_ROWS[1:],
)
_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
_FUSED_KERNEL = r"(?i)all_?reduce_?fusion|all_?reduce\w*(rms|norm)|lamport"
_MAIN_SHARE = 0.5


class ExposedTensorParallel(RankAnalyzer):
    """Two collectives a layer, which nothing hides: what a model costs that is split over GPUs.

    What it finds:
        Time in the passes of a serving engine in which all-reduces, all-gathers and reduce-scatters run and nothing
        computes.

    Why it costs time:
        A tensor-parallel layer needs the sum of all ranks before the next one can begin. Decoding sends a few kilobytes
        to some megabytes a layer, where the time to begin counts, not the bandwidth.

    How it is measured:
        The exposed time of those collectives; whether it lies in passes that decode, and whether kernels of NCCL, of
        the engine, or such as norms contain do it, say what to change. It includes the wait for ranks that come late.

    How to fix:
        Let the engine use its own all-reduce where the GPUs have NVLink, fuse it with the norm that follows, overlap
        that of prompts with products, or split the model over fewer GPUs.

    When it is wrong:
        A rank that is late makes the collectives of all others long: record the other ranks, and PD401 tells. Some
        weights do not fit on fewer GPUs.

    Needs:
        Launches, and the ranges of the engine.

    References:
        vLLM, "Fusion torch.compile passes"; SGLang, "Server Arguments".
    """

    rule = "PD806"
    name = "exposed-tensor-parallel"
    needs = frozenset({"kernels", "launches"})
    # min_share: as for exposed communication in general.
    defaults = {"min_share": 0.03}
    references = (_VLLM_FUSIONS, _SGLANG)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when exposed collectives take at least `min_share` of the passes."""
        passes, trace = rank.engine_passes, rank.trace
        if passes is None:
            return
        kinds = [vocabulary.collective_kind(name) in _KINDS for name in trace.strings]
        of_kind = rank.kernels.of_category("communication").where(np.array(kinds)[trace.gpu.name]).in_steps()
        mine = of_kind.where(passes.pass_of_item >= 0)
        exposed = iv.intersect(rank.exposed_parts["communication"], mine.time)
        cost_ns = rank.per_step(iv.total(exposed))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        decoding = mine.where(passes.match_items(passes.match_kind("decode")))
        by_nccl = decoding.named(vocabulary.NCCL_KERNEL).time_ns / max(decoding.time_ns, 1)
        rows = (
            _PROMPTS
            if decoding.time_ns < _MAIN_SHARE * mine.time_ns
            else _BY_NCCL
            if by_nccl >= _MAIN_SHARE
            else _FUSED
            if len(decoding.named(_FUSED_KERNEL))
            else _BY_OWN_KERNELS
        )
        layers = len(rank.kernels.named(vocabulary.KV_CACHE_KERNEL).in_steps())
        by_layer = f", {len(mine) / layers:.2g} a layer," if layers else ""
        count = rank.count_per_step(len(mine))
        yield self.finding(
            rank,
            title=f"{count} collectives a pass{by_layer} run while nothing computes"
            + (", by NCCL where it decodes" if rows is _BY_NCCL else ""),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(rows, rank.context),
            claim=Claim(exposed),
            edit=set_durations(GpuRows(trace.gpu, np.flatnonzero(mine.mask)), SHORTEST_KERNEL_NS),
            confidence=0.5,
            evidence=(
                Evidence("collectives per {unit}", count, "count"),
                Evidence("exposed in passes that decode", iv.total(iv.intersect(exposed, decoding.time)), "ns"),
                Evidence("of the decoding ones by NCCL", round(100 * by_nccl), "%"),
            ),
        )
