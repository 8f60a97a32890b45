"""PD116: the model, or a part of it, computes on the CPU of a machine that has a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import name_longest
from perfdoctor.rules import (
    MATRIX_CATEGORIES,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    Trace,
    advise,
    classify_op,
)

# What makes a tensor out of nothing is a matter of its own (PD106), and so is what loads and copies.
_NO_LAYER = (
    r"^aten::(normal_?|uniform_|random_|bernoulli\w*|fill_|zero_|copy_|_to_copy|to|rand\w*|full|arange|linspace)$"
)
# What an op still takes of the CPU where it only launches a kernel: some 5 to 20 us without a profiler.
_LAUNCH_NS = 10_000


class ModelOnCpu(RankAnalyzer):
    """The machine has a GPU, and the model, or a part of it, computes on the CPU."""

    rule = "PD116"
    name = "model-on-cpu"
    needs = frozenset({"cpu"})
    # min_share: less than a tenth of the time is no reason to move a model. min_layer_share: of the time of the ops.
    defaults = {"min_share": 0.1, "min_layer_share": 0.2}
    references = ("https://docs.pytorch.org/docs/stable/notes/cuda.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where layers compute on the CPU of a machine whose GPU PyTorch can use."""
        is_whole = rank.device_kind == "cpu"
        has_gpu = rank.hardware.vendor is not None and rank.hardware.label is not None
        if not has_gpu or not (is_whole or rank.device_kind == "gpu"):
            return
        where = rank.where_it_ran
        ops = rank.ops.where(where.cpu_ops if is_whole else where.surely_cpu_ops).in_steps()
        ops = ops.where(~rank.trace.match_rows(rank.trace.ops, _NO_LAYER))
        layers = ops.where(_match_layers(rank.trace))
        if not len(layers) or layers.time_ns < self.settings["min_layer_share"] * ops.time_ns:
            return
        cost_ns = rank.per_step(ops.time_ns)
        most_ns = max(cost_ns - rank.count_per_step(len(ops)) * _LAUNCH_NS, 0)
        if not self.exceeds_min_share(rank, most_ns):
            return
        what = "The model" if is_whole else "A part of the model"
        yield self.finding(
            rank,
            title=f"{what} computes on the CPU, and the machine has a GPU ({rank.hardware.label})",
            cost_ns=cost_ns,
            saving=Saving(0, None, most_ns, "bounded"),
            advice=advise("model on the CPU", rank.context),
            claim=Claim(ops.time),
            confidence=0.8,
            location=layers.location,
            evidence=(
                Evidence("ops that compute on the CPU, per {unit}", rank.count_per_step(len(ops)), "count"),
                Evidence("time of its layers, per {unit}", rank.per_step(layers.time_ns), "ns"),
                Evidence(
                    "layer that takes longest",
                    name_longest(rank.trace, np.flatnonzero(layers.mask)).removeprefix("aten::"),
                ),
                Evidence("launches of kernels in the recording", rank.where_it_ran.kernel_launches, "count"),
            ),
        )


def _match_layers(trace: Trace) -> BoolArray:
    """For each op whether it is a product, convolution or attention: what runs without them is no model."""
    layers = [code for code in trace.name_ids(trace.ops) if classify_op(trace.strings[code]) in MATRIX_CATEGORIES]
    return np.isin(trace.ops.name, layers)
