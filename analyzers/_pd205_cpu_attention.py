"""PD205 on the CPU alone: written-out attention, and what scaled_dot_product_attention leaves of it.

Measured on a CPU with AVX-512 (AMD EPYC, 2.6 GHz, torch 2.13, one thread, CPU time) for 22 attentions of 128 to 2,048
elements, 4 to 64 heads of 16 to 128, with and without a causal mask. The fused op still has to multiply: it takes 0.5
to 1.5 times as long as the products did (1.0 in the middle), with the backward pass 0.5 to 1.6 times (1.15). All else
goes: scaling, mask, softmax and copies. Under 256 elements little is left to save (0.8 to 1.0 of the time remains in
training). In bfloat16 the fused op takes up to 5 times as long as the products with mkldnn. With dropout it falls back.
"""

from __future__ import annotations

import numpy as np
import orjson

from perfdoctor.analyzers._attention import Attentions, find_attentions
from perfdoctor.analyzers._cpu_evidence import FoundWork, own_time_of, rank_with_shapes
from perfdoctor.rules import BoolArray, Evidence, Rank, Saving, advise, nesting
from perfdoctor.rules import intervals as iv

# Times of the fused op over those of the products, at best, as expected, at worst.
_FORWARD_TIMES_PRODUCTS = (0.5, 1.0, 1.5)
_TRAINING_TIMES_PRODUCTS = (0.5, 1.15, 1.6)
_PRODUCT_OP = r"^aten::(bmm|baddbmm)$"
_FUSED_OP = "scaled_dot_product_attention"
_DROPOUT_OP = r"dropout|bernoulli"


def find_cpu_attention(rank: Rank, min_sequence: float) -> FoundWork | None:
    """The written-out attention of the window over `min_sequence` keys and more.

    None without any, in half precision, with dropout, and without shapes.
    """
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return None
    sequence = _sequence_length(shaped)
    spans = find_attentions(rank)
    time = iv.intersect(iv.union(spans.start_ns, spans.end_ns), rank.window)
    if sequence is None or sequence < min_sequence or not len(time):
        return None
    ops, own_ns = rank.trace.ops, own_time_of(rank.trace)
    products = rank.trace.match_rows(rank.trace.ops, _PRODUCT_OP) & iv.contains(time, ops.start_ns)
    if (rank.trace.match_rows(ops, _DROPOUT_OP) & iv.contains(time, ops.start_ns)).any():
        return None
    products_ns = rank.per_step(int(own_ns[products].sum()))
    whole_ns = rank.per_step(iv.total(time))
    times = _TRAINING_TIMES_PRODUCTS if spans.is_backward.any() else _FORWARD_TIMES_PRODUCTS
    high, expected, low = (max(whole_ns - round(each * products_ns), 0) for each in times)
    first = spans.first_product[~spans.is_backward]
    inside = iv.contains(rank.window, spans.start_ns)
    return FoundWork(
        f"Attention is not fused: product, softmax and product over a sequence of {sequence}",
        advise("unfused attention", rank.context, where="the model's attention"),
        time,
        Saving(low, expected, high, "bounded"),
        rank.places.line_of_ops(first),
        (
            Evidence("attentions and their backward passes", rank.count_per_step(int(inside.sum())), "count"),
            Evidence("sequence", sequence, "count"),
            Evidence("all but the products", max(whole_ns - products_ns, 0), "ns"),
        ),
        confidence=0.8,
        worth_ns=expected,
    )


def _sequence_length(shaped: Rank) -> int | None:
    """The number of keys of most attentions; None where they are fused and fell back, or do not compute in float32."""
    spans, ops = find_attentions(shaped), shaped.trace.ops
    forward = ~spans.is_backward & ~_fell_back(shaped, spans)
    lengths: list[int] = []
    for row in spans.first_product[forward].tolist():
        try:
            sizes, types = (orjson.loads(shaped.trace.text(int(column[row])) or "") for column in (ops.dims, ops.types))
            tensors = [size for size, name in zip(sizes, types, strict=True) if name == "float" and len(size) > 2]
            lengths += [int(tensors[1][-1])] if len(tensors) > 1 else []
        except (orjson.JSONDecodeError, TypeError, ValueError, LookupError):
            continue
    if 2 * len(lengths) <= int((~spans.is_backward).sum()):
        return None
    return int(np.median(lengths))


def _fell_back(shaped: Rank, spans: Attentions) -> BoolArray:
    """For each attention whether scaled_dot_product_attention computes it in its unfused form."""
    trace = shaped.trace
    outermost = nesting.outermost(trace.ops.parent, spans.first_product.astype(np.int32))
    fused = np.array([_FUSED_OP in name for name in trace.strings], bool)
    result: BoolArray = fused[trace.ops.name[outermost]]
    return result
