"""PD519: a model infers in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._pd519_training_mode import TrainingMode, find_training_mode
from perfdoctor.analyzers._unused_graphs import find_unused_graphs, may_be_differentiated
from perfdoctor.rules import (
    Claim,
    Edit,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    remove_items,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# What goes of batch norm on a CPU with model.eval(), as shares of its time in training mode. Measured with PyTorch 2.13
# on one core and two, in turns, inputs of 0.4 to 26 MB: 77 to 94 % of contiguous inputs, 37 to 59 % of channels_last
# ones; 34 % of contiguous 26 MB where each result is new memory, whose pages the system clears in both modes.
_MIN_SHARE_OF_NORM, _SHARE_OF_NORM, _MAX_SHARE_OF_NORM = 0.34, 0.67, 0.94


class EvalMode(RankAnalyzer):
    """A model that only infers is in training mode: dropout draws, and batch norm computes statistics."""

    rule = "PD519"
    name = "eval-mode"
    needs = frozenset({"cpu"})
    # min_share: none, as results are wrong whatever it costs.
    defaults = {"min_share": 0.0}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where anything shows training mode."""
        if not rank.context.is_forward_only or may_be_differentiated(rank):
            return
        mode = find_training_mode(rank)
        if not mode.is_seen:
            return
        cost_ns, saving, claim, edit = _price_on_cpu(rank, mode) if rank.device_kind == "cpu" else _price(rank, mode)
        if not self.exceeds_min_share(rank, cost_ns):
            return
        # Passes that record a graph may be the forward part of a training, and dropout alone may be meant.
        records_graph = find_unused_graphs(rank.trace, trains=False).pass_count > 0
        situation = (
            "dropout draws in evaluation mode" if mode.is_of_dropout_alone else "training mode without a training"
        )
        yield self.finding(
            rank,
            title=_name(mode),
            cost_ns=cost_ns,
            saving=saving,
            advice=advise(situation, rank.context),
            claim=claim,
            confidence=0.5 if mode.is_of_dropout_alone else 0.7 if records_graph else 0.9,
            location=(mode.dropouts | mode.norms).location or mode.kernels.location,
            evidence=(
                Evidence("calls of dropout that draw, per {unit}", rank.count_per_step(len(mode.dropouts)), "count"),
                Evidence("batch norms in training mode, per {unit}", rank.count_per_step(len(mode.norms)), "count"),
                *_list_times(rank, mode),
            ),
            edit=edit,
        )


def _name(mode: TrainingMode) -> str:
    """The title: what runs in training mode."""
    if mode.is_of_dropout_alone:
        return "Dropout draws in a model that is in evaluation mode otherwise"
    if not len(mode.dropouts) and not len(mode.norms):
        return "The model infers in training mode: kernels of dropout or of batch norm's training run"
    parts = ("dropout draws" if len(mode.dropouts) else "", "batch norm computes statistics" if len(mode.norms) else "")
    return f"The model infers in training mode: {' and '.join(part for part in parts if part)}"


def _list_times(rank: Rank, mode: TrainingMode) -> Iterator[Evidence]:
    """How long dropout and batch norm take: their kernels, or on a CPU their ops."""
    for name, calls in (("dropout", mode.dropouts), ("batch norm, of which inference needs a part", mode.norms)):
        time_ns = calls.time_ns if rank.device_kind == "cpu" else calls.kernels.time_ns
        if time_ns:
            yield Evidence(f"time of {name}, per {{unit}}", rank.per_step(time_ns), "ns")


def _price(rank: Rank, mode: TrainingMode) -> tuple[int, Saving, Claim, Edit | None]:
    """Cost, saving, claim and edit on a GPU: the kernels that go."""
    statistics = (mode.norms.kernels | mode.kernels).named(vocabulary.BATCH_STATISTICS_KERNEL)
    draws = mode.dropouts.kernels | mode.kernels.named(vocabulary.DROPOUT_KERNEL)
    gone = (draws | statistics | mode.counters.kernels).in_steps()
    cost_ns = rank.per_step(gone.time_ns)
    if not len(gone):
        return 0, Saving(), Claim(), None
    edit = remove_items(rank.trace, gone.rows, is_upper_bound=False)
    return cost_ns, Saving(0, cost_ns, cost_ns, "bounded"), Claim(gone.time, kernels=True), edit


def _price_on_cpu(rank: Rank, mode: TrainingMode) -> tuple[int, Saving, Claim, None]:
    """Cost, saving and claim on a CPU: dropout and the counts go, and of batch norm a share that was measured."""
    norm = mode.norms.time
    parts = iv.shorten(norm, round(_MAX_SHARE_OF_NORM * iv.total(norm)))
    time = iv.union_of((mode.dropouts.time, mode.counters.time, parts))
    cost_ns, norm_ns = rank.per_step(iv.total(time)), rank.per_step(iv.total(parts)) / _MAX_SHARE_OF_NORM
    low_ns, expected_ns = (
        max(round(cost_ns - (_MAX_SHARE_OF_NORM - share) * norm_ns), 0)
        for share in (_MIN_SHARE_OF_NORM, _SHARE_OF_NORM)
    )
    return cost_ns, Saving(low_ns, expected_ns, cost_ns, "bounded"), Claim(time), None
