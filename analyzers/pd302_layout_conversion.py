"""PD302: tensors change their layout around convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import orjson

from perfdoctor.analysis.kernels.traffic_kinds import LAYOUT
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.top_kernels import top_kernels
from perfdoctor.savings.edits import remove_items
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows

_SPATIAL = 2  # dimensions that are not spatial: batch and channels


class LayoutConversion(RankAnalyzer):
    """Convolutions copy their tensors into another memory layout and back.

    What it finds:
        Layout copies beside convolutions: nchwToNhwc and its like of cuDNN, batched_transpose of MIOpen, copies that
        a convolution op makes.

    Why it costs time:
        Tensor Core convolutions want channels last in memory (NHWC). Tensors in PyTorch's default layout (NCHW) are
        copied to it before each such convolution and back after it: a read and a write of whole activations that
        compute nothing.

    How it is measured:
        Time of such kernels launched by convolution ops; without ops, of kernels whose name tells, in a trace that
        has convolutions. Unfolding (im2col) is a way to convolve, not a layout.

    How to fix:
        Keep model and input in channels_last; every op in between keeps it. On ROCm also set
        PYTORCH_MIOPEN_SUGGEST_NHWC=1.

    When it is wrong:
        Where an op in between does not support channels_last the copies only move. Few channels or float32 without
        TF32 can be slower in channels_last: measure.

    Needs:
        Kernels; launches to know the convolution, shapes with strides to know its present layout.

    References:
        NVIDIA Deep Learning Performance, "Convolutional Layers", tensor layouts; PyTorch, "Channels Last Memory
        Format".
    """

    rule: ClassVar[str] = "PD302"
    name: ClassVar[str] = "layout-conversion"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: on real traces a first layer alone (images come in NCHW) takes up to 0.3 %, a network in NCHW 1.4 to
    # 14 %; under 2 % the ops that get slower in channels_last can outweigh it.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.02})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when layout copies take at least `min_share` of the step."""
        rows = rank.traffic.match_rows(LAYOUT)
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if not cost or not self.exceeds_min_share(rank, cost):
            return
        convolutions = rank.kernel_classes.match_rows(lambda k: k.category == "convolution") & rank.in_window
        already = _channels_last_share(rank, rows)
        amd = rank.hardware.vendor == "amd"
        yield self.finding(
            rank,
            title="Convolutions copy tensors into another layout: "
            f"{rank.per_step(int(rows.sum())):,} copies a {rank.unit_name}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=_advice(already, amd),
            fix="model = model.to(memory_format=torch.channels_last)\n"
            "inputs = inputs.to(memory_format=torch.channels_last)",
            claim=Claim(time, kernels=True),
            confidence=0.8 if "launches" in rank.available_data else 0.6,
            location=rank.locations.of_items(rows),
            evidence=(
                Evidence(
                    "convolutions themselves", rank.per_step(iv.total(rank.time_in_window(convolutions & ~rows))), "ns"
                ),
                Evidence("inputs that are channels_last", None if already is None else round(100 * already), "%"),
                *top_kernels(rank, rows),
            ),
            edit=remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)),
        )


def _advice(already: float | None, amd: bool) -> str:
    environment = " and set PYTORCH_MIOPEN_SUGGEST_NHWC=1" if amd else ""
    if already is not None and already > 0.5:
        return (
            f"Most of these convolutions get their input in channels_last: bring the weights to it, too{environment}."
        )
    return f"Keep model and inputs in channels_last{environment}: the fast convolutions want it, and ops keep it."


def _channels_last_share(rank: Rank, rows: BoolArray) -> float | None:
    """How much of some layout copies' time is of ops whose first input has its channels last; None where not known."""
    gpu, ops = rank.trace.gpu, rank.trace.ops
    rows = rows & (gpu.op >= 0)
    if not rows.any() or not len(ops):
        return None
    op, dur = gpu.op[rows], gpu.dur_ns[rows]
    pairs = np.stack((ops.dims[op], ops.strides[op]), axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    spent = np.bincount(which.reshape(-1), weights=dur, minlength=len(distinct)).tolist()
    known = total = 0.0
    for (dims, strides), ns in zip(distinct.tolist(), spent, strict=True):
        last = _channels_last(rank.trace.text(dims), rank.trace.text(strides))
        if last is not None:
            total += ns
            known += ns * last
    return known / total if total else None


def _channels_last(dims: str | None, strides: str | None) -> bool | None:
    """Whether the first of an op's inputs is an image with more than one channel and its channels last in memory."""
    if dims is None or strides is None:
        return None
    try:
        sizes, steps = orjson.loads(dims)[0], orjson.loads(strides)[0]
        if len(sizes) <= _SPATIAL or len(sizes) != len(steps) or sizes[1] < 2:
            return None
        return bool(steps[1] == 1 and steps[-1] >= sizes[1])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
