"""PD210: work that a formula with less of it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._cpu_evidence import ops_within, project, rank_with_shapes, sizes_of, time_of_ops
from perfdoctor.analyzers._pd210_calls import Calls, Work, join_sights
from perfdoctor.analyzers._pd210_formulas import find_formulas
from perfdoctor.analyzers._pd210_marks import (
    find_needed_rows,
    find_repeated_calls,
    find_unchanged_results,
    find_zero_operands,
)
from perfdoctor.analyzers._pd210_recomputed_prefix import find_recomputed_prefix
from perfdoctor.analyzers._pd210_unused_values import find_unused_values
from perfdoctor.rules import BoolArray, Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, Trace, advise, read_texts
from perfdoctor.rules import intervals as iv


class NeedlessMatrixWork(RankAnalyzer):
    """The program computes by matrices what a formula with less work gives."""

    rule = "PD210"
    name = "needless-matrix-work"
    needs = frozenset({"work"})
    # min_share: as PD301 on a CPU; below a twentieth of the step the change of a formula is lost in the noise.
    defaults = {"min_share": 0.05}
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.linalg.inv.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each kind of such work that takes `min_share` of the step."""
        shaped, on_gpu = rank_with_shapes(rank), rank.device_kind == "gpu"
        if shaped is None:
            return
        calls = Calls(shaped)
        unchanged = find_unchanged_results(shaped)
        by_table = {**join_sights((*find_formulas(calls), *find_unused_values(calls))), **find_zero_operands(calls)}
        works = {
            **by_table,
            **find_recomputed_prefix(calls),
            **find_repeated_calls(shaped, next((work.rows for work in unchanged.values()), np.empty(0, np.int64))),
            **unchanged,
        }
        for key, work in _add_needed_rows(works, find_needed_rows(rank, shaped), shaped.trace).items():
            kind = key.partition(" at ")[0].partition(" in ")[0]
            rows = work.rows
            marks = np.zeros(len(shaped.trace.ops), bool)
            marks[rows] = True
            forward = project(rank, shaped, marks)
            both = _with_gradients(rank, forward)
            time = rank.ops.where(both).kernels.in_steps().time if on_gpu else time_of_ops(rank, both)
            cost_ns = rank.per_step(iv.total(time))
            if not self.exceeds_min_share(rank, cost_ns):
                continue
            text = read_texts("needless-work")[kind]
            high, expected, low = (
                None if remaining is None else round(cost_ns * (1 - remaining))
                for remaining in work.remaining or text["remaining"]
            )
            advice = advise(f"needless matrix work: {kind}", rank.context)
            finding = self.finding(
                rank,
                title=text["title"].format(work.number),
                cost_ns=cost_ns,
                # What remains was measured on CPUs.
                saving=Saving(0, None, high, "bounded") if on_gpu else Saving(low, expected, high, "bounded"),
                advice=advice,
                claim=Claim(time, kernels=on_gpu),
                confidence=0.8,
                location=work.location or shaped.places.line_of_ops(rows if work.place is None else work.place),
                evidence=(
                    Evidence("ops per {unit}", rank.count_per_step(int(forward.sum())), "count"),
                    Evidence("the first of them", _describe_op(shaped.trace, int(rows[0]))),
                    *((Evidence("computed before at", str(work.first)),) if work.first is not None else ()),
                ),
                subject=key,
            )
            # What a model of a library computes in vain is seldom its user's to change.
            if shaped.places.is_in_library(rows):
                finding = replace(finding, severity="low")
            is_measurable = not on_gpu and key in by_table
            yield replace(finding, references=(advice.source,), has_table_price=is_measurable)


def _describe_op(trace: Trace, row: int) -> str:
    """An op and the sizes of the tensors that it gets: "linear of 1024x64 and 64x64"."""
    sizes = ["x".join(map(str, size)) for size in sizes_of(trace.text(int(trace.ops.dims[row]))) if size]
    name = trace.strings[trace.ops.name[row]].removeprefix("aten::")
    return f"{name} of {' and '.join(sizes)}" if sizes else name


def _add_needed_rows(works: dict[str, Work], rows: dict[str, Work], trace: Trace) -> dict[str, Work]:
    """All kinds of work: what is known only by the rows of its calls keeps what no other kind has, if that is most."""
    added = dict(works)
    for kind, work in rows.items():
        others = [each.rows for each in added.values()]
        left = work.rows[~np.isin(work.rows, np.concatenate(others))] if others else work.rows
        if 2 * trace.ops.dur_ns[left].sum() > trace.ops.dur_ns[work.rows].sum():
            added[kind] = work._replace(rows=left)
    return added


def _with_gradients(rank: Rank, forward: BoolArray) -> BoolArray:
    """Some ops of the forward pass, those of their backward pass, and those of the backward pass of that one.

    An op inside may have made the node: aten::linear calls aten::addmm.
    """
    marked = forward
    for _ in range(2):
        marked = marked | np.append(ops_within(rank.trace, marked), False)[rank.forward_ops.forward]
    return marked
