"""PD509: a larger batch would take hardly longer, and there is memory for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._batch_scaling import BatchScaling, scale_batch
from perfdoctor.analyzers._memory_headroom import Memory, read_memory
from perfdoctor.analyzers._sample_counts import Samples, find_samples
from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer, format_bytes
from perfdoctor.rules import intervals as iv

# Of a batch up to this many times as large the most that can be saved is asked: farther the line through one and two
# times the samples says nothing.
_MAX_RATIO = 16.0


class BatchHeadroom(RankAnalyzer):
    """A batch twice as large would take hardly longer, and the memory holds it."""

    rule = "PD509"
    name = "batch-headroom"
    needs = frozenset({"work", "cpu", "facts", "steps"})
    # min_saving: of a step of the same samples, at worst. Below a fifth (1.25 times the samples per second)
    # nobody tunes a learning rate again. min_ratio: a batch that is not twice as large for certain is no headroom.
    # linear_samples: to 8,192 samples Goyal et al. scale the learning rate linearly without a loss of accuracy.
    defaults = {"min_saving": 0.2, "min_ratio": 2.0, "linear_samples": 8192}
    references = (
        "https://arxiv.org/abs/1706.02677",
        "https://arxiv.org/abs/1708.03888",
        "https://arxiv.org/abs/1812.06162",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where twice the samples fit and save at least `min_saving` of the time of each, at worst."""
        memory = read_memory(rank)
        # What serves or evaluates may have a latency to keep; of other programs nobody knows what a batch is.
        if (
            memory is None
            or memory.largest_batch_ratio < self.settings["min_ratio"]
            or rank.context.phase != "training"
        ):
            return
        # Longer batches of sequences of many lengths hold more padding: nothing here says how much.
        if rank.context.steady is False or rank.breakdown.has_varying_shapes:
            return
        scaling = scale_batch(rank)
        if scaling is None or not scaling.step_ns:
            return
        low_ns = scaling.step_ns - scaling.twice.high_ns / 2
        if low_ns >= self.settings["min_saving"] * scaling.step_ns:
            yield self._report(rank, scaling, memory, find_samples(rank))

    def _report(self, rank: Rank, scaling: BatchScaling, memory: Memory, samples: Samples) -> Finding:
        step_ns, twice = scaling.step_ns, scaling.twice
        ratio = min(memory.largest_batch_ratio, _MAX_RATIO)
        low_ns, high_ns = (round(step_ns - each) for each in (twice.high_ns / 2, scaling.at(ratio).low_ns / ratio))
        finding = self.finding(
            rank,
            title=f"A batch twice as large would take {_say_longer(twice.expected_ns / step_ns)}, "
            f"{2 * step_ns / twice.expected_ns:.2g} times the samples per second",
            # No step gets shorter by it: it costs none, and is no part of what the step becomes after all fixes.
            advice=self._advice_of(rank, memory, samples),
            fix=_fix_of(samples),
            confidence=0.6,
            location=samples.location,
            evidence=(
                Evidence("samples per {unit}", samples.per_step),
                Evidence("step with twice the samples, at least", round(twice.low_ns), "ns"),
                Evidence("step with twice the samples, at most", round(twice.high_ns), "ns"),
                Evidence("known by", scaling.basis),
                Evidence(f"{memory.name} in use at most", memory.peak_bytes, "bytes"),
                Evidence(f"{memory.name} left, less a tenth", memory.left_bytes, "bytes"),
                Evidence("memory allows a batch so many times as large", round(memory.largest_batch_ratio, 1)),
                Evidence("time of a step that does not grow with it", rank.per_step(iv.total(scaling.fixed)), "ns"),
                Evidence("saved of the time of the same samples, at least", low_ns, "ns"),
                Evidence("saved of the time of the same samples, at most", max(low_ns, high_ns), "ns"),
            ),
        )
        # A hint: it asks for another training, whose throughput is estimated. It stands behind all of this one.
        return replace(finding, severity="info", order_key_ns=-1e12)

    def _advice_of(self, rank: Rank, memory: Memory, samples: Samples) -> str:
        times = min(memory.largest_batch_ratio, 100)
        text = (
            f"Take a larger batch: {format_bytes(memory.left_bytes)} of {memory.name} are left, enough for about "
            f"{times:.0f} times the samples. "
        )
        if samples.accumulates:
            return text + (
                "The step accumulates gradients: larger and fewer micro-batches make the same gradients (batch norms "
                "aside)."
            )
        text += "What does not grow with it is then shared by more samples; each further doubling gives less. "
        whole = 2 * (samples.per_step or 0) * (rank.facts.world_size or 1)
        if whole > self.settings["linear_samples"]:
            return text + (
                f"With {whole:,.0f} samples a step on all ranks warm-up and an optimizer for large batches (LARS, LAMB)"
                " may be needed to keep the accuracy."
            )
        return text + "It changes the training: let the learning rate grow with it."


def _say_longer(ratio: float) -> str:
    return "no longer" if ratio < 1.01 else f"{ratio:.3g} times as long"


def _fix_of(samples: Samples) -> str | None:
    if samples.batch_size is None:
        return None
    return f"DataLoader(..., batch_size={2 * samples.batch_size})"
