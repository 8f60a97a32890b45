"""PD309: large embeddings get dense gradients, though a batch looks up few of their rows."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._pd309_embedding_tables import DenseTables, find_dense_tables, saving_of
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, advise
from perfdoctor.rules import intervals as iv

_SITUATIONS = {"SGD": "SGD", "Adagrad": "Adagrad", "Adam": "Adam", "AdamW": "Adam", "NAdam": "Adam", "RAdam": "Adam"}


class EmbeddingGradients(RankAnalyzer):
    """Dense gradients of large embeddings: a step writes and updates all rows, and looks up few of them."""

    rule = "PD309"
    name = "embedding-gradients"
    needs = frozenset({"work", "work_launches"})
    # min_elements, min_rows_ratio: a table of 320,000 numbers, or with 10 rows for each looked-up one, took 0.3 to 1.3
    # times as long with sparse gradients, one of 1.6 million with 100 rows 0.1 to 0.4 times (see the tables' file).
    # min_share: of the expected saving; a second optimizer is work, which a medium finding is worth.
    defaults = {"min_elements": 1_000_000, "min_rows_ratio": 16, "min_share": 0.03}
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html",
        "https://docs.pytorch.org/torchrec/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where sparse gradients would save at least `min_share` of the step."""
        tables = find_dense_tables(rank, self.settings["min_elements"], self.settings["min_rows_ratio"])
        if tables is None or rank.context.is_forward_only:  # nothing is updated
            return
        cost_ns = rank.per_step(iv.total(tables.time))
        saving = saving_of(rank, tables).cap(cost_ns)
        if not self.exceeds_min_share(rank, saving.expected_ns if saving.expected_ns is not None else cost_ns):
            return
        (rows, columns), count = tables.largest, tables.rows[tables.largest]
        yield self.finding(
            rank,
            title=f"An embedding of {rows:,} rows gets dense gradients, and a {rank.unit_name} looks up at most "
            f"{count:,} of them",
            cost_ns=cost_ns,
            saving=saving,
            advice=advise(_situation_of(rank, tables), rank.context, optimizer=tables.optimizer or "the optimizer"),
            claim=Claim(tables.time, kernels=rank.device_kind == "gpu"),
            edit=tables.edit,
            confidence=0.8,
            location=tables.location,
            evidence=(
                Evidence("such embeddings", sum(tables.numbers.values()), "count"),
                Evidence("columns of the largest", columns, "count"),
                Evidence("making their gradients", rank.per_step(iv.total(tables.gradient_time)), "ns"),
                Evidence("their part of the optimizer", rank.per_step(iv.total(tables.optimizer_time)), "ns"),
                Evidence("optimizer", tables.optimizer),
            ),
        )


def _situation_of(rank: Rank, tables: DenseTables) -> str:
    """The situation in the table of advice: by the optimizer, and whether gradients are clipped."""
    if rank.facts.amp.clipped:
        return "gradients of embeddings, clipped"
    kind = _SITUATIONS.get(tables.optimizer or "", "another optimizer")
    return f"gradients of embeddings: {kind}"
