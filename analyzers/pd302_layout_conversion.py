"""PD302: tensors change their layout around convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

from perfdoctor.rules import (
    Advice,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    distinct_rows,
    intervals,
    read_advice,
    remove_items,
    top_kernels,
    traffic_kinds,
)

_BATCH_AND_CHANNELS = 2  # dimensions of an image that are not spatial


class LayoutConversion(RankAnalyzer):
    """Convolutions copy their tensors into another memory layout and back."""

    rule = "PD302"
    name = "layout-conversion"
    needs = frozenset({"kernels"})
    # min_share: on real traces the first layer alone (images come in NCHW) takes up to 0.3 %, a network in NCHW 1.4 to
    # 14 %. Under 2 % the ops that get slower in channels_last can outweigh the saving.
    defaults = {"min_share": 0.02}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when layout copies take at least `min_share` of the step."""
        copies = rank.kernels.where(rank.traffic.match_rows(traffic_kinds.LAYOUT))
        time = copies.time
        cost_ns = rank.per_step(intervals.total(time))
        if not cost_ns or not self.exceeds_min_share(rank, cost_ns):
            return
        convolutions = rank.kernels.of_category("convolution").in_steps() - copies
        channels_last_share = _measure_channels_last(rank, copies)
        yield self.finding(
            rank,
            title="Convolutions copy tensors into another layout: "
            f"{rank.count_per_step(len(copies)):,} copies {rank.per_unit}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=_advise(rank, channels_last_share),
            claim=Claim(time, kernels=True),
            confidence=0.8 if "launches" in rank.available_data else 0.6,
            location=copies.location,
            evidence=(
                Evidence("convolutions themselves", rank.per_step(convolutions.time_ns), "ns"),
                Evidence(
                    "inputs that are channels_last",
                    None if channels_last_share is None else round(100 * channels_last_share),
                    "%",
                ),
                *top_kernels(rank, copies.mask),
            ),
            edit=remove_items(rank.trace, copies.rows),
        )


def _advise(rank: Rank, channels_last_share: float | None) -> Advice:
    miopen = " and set PYTORCH_MIOPEN_SUGGEST_NHWC=1" if rank.hardware.vendor == "amd" else ""
    inputs_follow = channels_last_share is not None and channels_last_share > 0.5
    if not inputs_follow:
        return advise("layout copies", rank.context, miopen=miopen)
    return read_advice("weights to channels_last", miopen=miopen)


def _measure_channels_last(rank: Rank, copies: GpuQuery) -> float | None:
    """The share of the copies' time (0 to 1) whose op has a first input in channels_last; None where unknown."""
    trace = rank.trace
    gpu, ops = trace.gpu, trace.ops
    launched = copies.mask & (gpu.op >= 0)
    op = gpu.op[launched]
    # The layout is worked out once for each distinct input.
    layout, first = distinct_rows((ops.dims[op], ops.strides[op]), len(trace.strings))
    time_ns = np.bincount(layout, weights=gpu.dur_ns[launched]).tolist()
    known_ns = channels_last_ns = 0.0
    for row, ns in zip(op[first].tolist(), time_ns, strict=True):
        is_channels_last = _is_channels_last(trace.text(int(ops.dims[row])), trace.text(int(ops.strides[row])))
        if is_channels_last is not None:
            known_ns += ns
            channels_last_ns += ns * is_channels_last
    return channels_last_ns / known_ns if known_ns else None


def _is_channels_last(dims: str | None, strides: str | None) -> bool | None:
    """Whether the first input of an op has its channels last in memory; None unless it is an image with channels."""
    if dims is None or strides is None:
        return None
    try:
        sizes, steps = orjson.loads(dims)[0], orjson.loads(strides)[0]
        if len(sizes) <= _BATCH_AND_CHANNELS or len(sizes) != len(steps) or sizes[1] < 2:
            return None
        return bool(steps[1] == 1 and steps[-1] >= sizes[1])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
