"""PD210: work that a formula with less of it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._cpu_evidence import ops_within, project, rank_with_shapes, sizes_of, time_of_ops
from perfdoctor.analyzers._pd210_calls import Call, Calls, Sizes
from perfdoctor.analyzers._pd210_experts import find_dense_experts
from perfdoctor.analyzers._pd210_ignored_labels import find_ignored_labels
from perfdoctor.analyzers._pd210_needed_rows import find_needed_rows
from perfdoctor.analyzers._pd210_recomputed_prefix import find_recomputed_prefix
from perfdoctor.analyzers._pd210_repeated_calls import find_repeated_calls
from perfdoctor.analyzers._pd210_sliding_windows import find_sliding_windows
from perfdoctor.analyzers._pd210_sorts_gathers_filters import find_sorts_gathers_filters
from perfdoctor.analyzers._pd210_unchanged_results import find_unchanged_results
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind, find_unused_values
from perfdoctor.analyzers._pd210_weight_penalty import find_weight_penalty
from perfdoctor.analyzers._pd210_zero_operands import find_zero_operands
from perfdoctor.rules import BoolArray, Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, Trace, advise
from perfdoctor.rules import intervals as iv

_PRODUCTS = frozenset({"mm", "matmul", "mv", "linalg_matmul"})
_INVERSES = frozenset({"inverse", "linalg_inv", "linalg_inv_ex"})
_DETERMINANTS = frozenset({"logdet", "slogdet", "linalg_slogdet", "det", "linalg_det"})
_SQUARES = frozenset({"pow", "square", "mul"})
_SUMS = frozenset({"sum", "mean"})
# Views compute nothing and may stand between the others.
_VIEWS = frozenset(
    {"unsqueeze", "transpose", "t", "permute", "view", "reshape", "expand", "numpy_T", "to", "contiguous"}
)


# Measured by CPU time with one thread (AMD EPYC, AVX-512, torch 2.13), with and without the backward pass: diagonal
# matrices of 300 and 900 rows 0.01 to 0.06; inverse with logdet of 200 to 1,000 rows against one Cholesky factor 0.44
# to 0.64; inverse times a vector against solve 0.17 to 0.42 (64 to 1,000 rows); distances of 256 to 1,024 by 128 to
# 512 points of 3 to 128 numbers 0.01 to 0.34, the most for three numbers.
_DIAGONAL = WorkKind("diagonal", "Products with a diagonal matrix of {:,} rows", (0.01, 0.03, 0.06))
_FACTORED_TWICE = WorkKind(
    "determinant", "A matrix of {:,} rows is inverted, and its determinant factors it again", (0.44, 0.5, 0.64)
)
_INVERTED = WorkKind("inverse", "A matrix of {:,} rows is inverted for a product with few columns", (0.17, 0.25, 0.42))
_ALL_PAIRS = WorkKind(
    "pairs", "{:,} differences of all pairs are written out to be squared and summed", (0.01, 0.1, 0.34)
)
# Smaller matrices gained less, and cost little (a diagonal one of 64 rows kept 0.3 to 0.63 of its time).
_MIN_ROWS = 200
# Fewer differences fit into a cache, and take less than 0.1 ms.
_MIN_DIFFERENCES = 100_000
# A product with more columns than this share of the rows may be as well with the inverse.
_MAX_COLUMNS = 0.25
_MAX_SUM_DISTANCE = 3


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
        works = {
            **_find_work(calls),
            **find_unused_values(shaped, calls),
            **find_sorts_gathers_filters(shaped.trace, calls),
            **find_sliding_windows(shaped, calls),
            **find_weight_penalty(shaped, calls),
            **find_dense_experts(shaped, calls),
            **find_ignored_labels(shaped, calls),
            **find_recomputed_prefix(shaped, calls),
            **find_repeated_calls(shaped),
            **find_unchanged_results(shaped),
            **find_zero_operands(shaped, calls),
        }
        for kind, work in _add_needed_rows(works, find_needed_rows(rank, shaped), shaped.trace).items():
            rows = work.rows
            marks = np.zeros(len(shaped.trace.ops), bool)
            marks[rows] = True
            forward = project(rank, shaped, marks)
            both = _with_gradients(rank, forward)
            time = rank.ops.where(both).kernels.in_steps().time if on_gpu else time_of_ops(rank, both)
            cost_ns = rank.per_step(iv.total(time))
            if not self.exceeds_min_share(rank, cost_ns):
                continue
            high, expected, low = (
                None if remaining is None else round(cost_ns * (1 - remaining))
                for remaining in work.remaining or kind.remaining
            )
            advice = advise(f"needless matrix work: {kind.name}", rank.context)
            finding = self.finding(
                rank,
                title=kind.title.format(work.number),
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
                ),
                subject=kind.name,
            )
            # What a model of a library computes in vain is seldom its user's to change.
            if shaped.places.is_in_library(rows):
                finding = replace(finding, severity="low")
            yield replace(finding, references=(advice.source,))


def _describe_op(trace: Trace, row: int) -> str:
    """An op and the sizes of the tensors that it gets: "linear of 1024x64 and 64x64"."""
    sizes = ["x".join(map(str, size)) for size in sizes_of(trace.text(int(trace.ops.dims[row]))) if size]
    name = trace.strings[trace.ops.name[row]].removeprefix("aten::")
    return f"{name} of {' and '.join(sizes)}" if sizes else name


def _add_needed_rows(works: dict[WorkKind, Work], rows: dict[WorkKind, Work], trace: Trace) -> dict[WorkKind, Work]:
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


def _find_work(calls: Calls) -> dict[WorkKind, Work]:
    """The ops of each kind."""
    found: dict[WorkKind, list[Call]] = {}
    determinants = [calls[at] for at in calls.named(*_DETERMINANTS)]
    for at in calls.named("diag", "diag_embed", "sub", "rsub", *_INVERSES):
        call, after = calls[at], calls.behind(at, _MAX_SUM_DISTANCE, _VIEWS)
        name, sizes = call.name, call.sizes
        if name in ("diag", "diag_embed") and len(sizes) and len(sizes[0]) == 1 and sizes[0][0] >= _MIN_ROWS:
            found.setdefault(_DIAGONAL, []).extend(_products_with(sizes[0][0], after))
        elif name in _INVERSES and (length := _rows_of_square(sizes)) >= _MIN_ROWS:
            same = [each for each in determinants if _rows_of_square(each.sizes) == length]
            if same:
                found.setdefault(_FACTORED_TWICE, []).extend([call, *same])
            elif after and _is_narrow_product(length, after[0]):
                found.setdefault(_INVERTED, []).extend([call, after[0]])
        elif name in ("sub", "rsub") and after and after[0].name in _SQUARES and _is_of_all_pairs(sizes):
            last = next((i for i, each in enumerate(after) if each.name in _SUMS), None)
            if last is not None:
                found.setdefault(_ALL_PAIRS, []).extend([call, *after[: last + 1]])
    works = {}
    for kind, each in found.items():
        if each:
            sizes = min(each).sizes
            number = _count(sizes) if kind is _ALL_PAIRS else max(size[0] for size in sizes if size)
            works[kind] = Work(np.array(sorted({call.row for call in each}), np.int64), number)
    return works


def _products_with(length: int, after: list[Call]) -> list[Call]:
    """Which of the next ops are products with the diagonal matrix: the first, and a second one from the right."""
    square = (length, length)
    if not after or after[0].name not in _PRODUCTS or square not in after[0].sizes:
        return []
    has_second = len(after) > 1 and after[1].name in _PRODUCTS and after[1].sizes[1:2] == (square,)
    return after[: 1 + has_second]


def _is_narrow_product(length: int, call: Call) -> bool:
    """Whether an op multiplies a square matrix of so many rows with a vector or few columns."""
    tensors = [size for size in call.sizes if size]
    if call.name not in _PRODUCTS or len(tensors) < 2 or (length, length) not in tensors:
        return False
    other = tensors[1] if tensors[0] == (length, length) else tensors[0]
    return len(other) == 1 or _count((other,)) <= _MAX_COLUMNS * length * length


def _is_of_all_pairs(sizes: Sizes) -> bool:
    """Whether two tensors are broadcast against each other in one dimension each, and share the last one."""
    if len(sizes) < 2 or not sizes[0] or not sizes[1] or _count(sizes) < _MIN_DIFFERENCES:
        return False
    dims = max(len(sizes[0]), len(sizes[1]))
    a, b = ((1,) * (dims - len(size)) + size for size in sizes[:2])
    return (
        a[-1] == b[-1] > 1
        and any(x == 1 < y for x, y in zip(a, b, strict=True))
        and any(y == 1 < x for x, y in zip(a, b, strict=True))
    )


def _count(sizes: Sizes) -> int:
    """The number of elements of the tensors broadcast against each other."""
    dims = max(len(size) for size in sizes)
    padded = [(1,) * (dims - len(size)) + size for size in sizes if size]
    return int(np.prod([max(each) for each in zip(*padded, strict=True)], dtype=np.int64))


def _rows_of_square(sizes: Sizes) -> int:
    """The rows of an op's first argument where that is one square matrix; 0 elsewhere."""
    first = sizes[0] if sizes else ()
    return first[0] if len(first) == 2 and first[0] == first[1] else 0
