"""Sequences that grow by a token each step and are computed as a whole each time: PD210 finds it by recorded sizes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np

from perfdoctor.analyzers._cpu_evidence import ROWS_ARGUMENT, rows_argument
from perfdoctor.analyzers._module_calls import lines_of_module_calls
from perfdoctor.analyzers._pd210_calls import Calls, Work
from perfdoctor.rules import NONE, BoolArray, Int64Array, most_common_location

# Five lengths one after the other, each longer by the same, are no chance; a prompt begins anew at times.
_MIN_GROWTHS, _MIN_GROWING_SHARE = 4, 0.75
# Where a quarter of the rows and more are new, the step computes what it has to.
_MIN_ROWS_PER_NEW = 4
# A capture has sizes of three steps. That each of so many layers gets one token more twice is no chance either. What a
# row adds cannot be read off three: of four layers, with 40 to 63 tokens, 0.26 to 0.42 of the CPU time remained.
_FEW_GROWTHS, _MIN_LAYERS = 2, 4
_FEW_REMAIN = (0.34, 0.6)


def find_recomputed_prefix(calls: Calls) -> dict[str, Work]:
    """The products of a window whose rows grow from step to step by the same few, as when text is generated.

    What remains without the earlier rows is read off the steps: their products take longer by so much for each row.
    """
    trace, step_of_call = calls.rank.trace, calls.step.tolist()
    products: dict[int, list[tuple[int, tuple[str, int], int, int]]] = defaultdict(list)
    for at in calls.named(*ROWS_ARGUMENT):
        call, step = calls[at], step_of_call[at]
        size = rows_argument(call.name, call.sizes)
        if len(size) > 1 and step != NONE:
            products[step].append((call.row, (call.name, size[-1]), math.prod(size[:-1]), math.prod(size[:-2])))
    kinds = Counter(tuple(kind for _, kind, *_ in found) for found in products.values())
    if not kinds:
        return {}
    [(usual, _)] = kinds.most_common(1)
    alike = [found for _, found in sorted(products.items()) if tuple(kind for _, kind, *_ in found) == usual]
    lengths = np.array([[length for _, _, length, _ in found] for found in alike], np.int64)
    sequences = np.array([[number for *_, number in found] for found in alike], np.int64)
    growing = _find_growing(lengths, sequences)
    if not growing.any():
        return {}
    index = np.array([[row for row, *_ in found] for found in alike], np.int64)[:, growing]
    first = lengths[:, growing][:, 0]
    remaining = _estimate_remaining(
        first, trace.ops.dur_ns[index].sum(1), int(np.diff(first)[np.diff(first) > 0].min())
    )
    line = most_common_location(lines_of_module_calls(trace, index.ravel()))
    return {"prefix": Work(index.ravel(), int(np.median(first)), remaining=remaining, location=line)}


def _find_growing(lengths: Int64Array, sequences: Int64Array) -> BoolArray:
    """Of each product (a column) whether its rows grow by the same few from step to step (a row)."""
    grown = np.diff(lengths, axis=0)
    if len(grown) < _MIN_GROWTHS:
        by_token: BoolArray = ((grown == sequences[1:]) & (np.diff(sequences, axis=0) == 0)).all(0)
        by_token &= lengths[0] >= _MIN_ROWS_PER_NEW * sequences[0]
        return by_token & (len(grown) >= _FEW_GROWTHS and by_token.sum() >= _MIN_LAYERS)
    by = np.median(grown, axis=0)
    is_steady = (grown == by).mean(0) >= _MIN_GROWING_SHARE
    growing: BoolArray = is_steady & (by > 0) & (np.median(lengths, axis=0) >= _MIN_ROWS_PER_NEW * by)
    return growing


def _estimate_remaining(lengths: Int64Array, dur_ns: Int64Array, new: int) -> tuple[float, float, float]:
    """The share of the time that remains with the new rows alone: at best, as expected, at worst.

    Best is in proportion to the rows. The line through the steps (its slope the median of all pairs' slopes, Theil and
    Sen) says what a row adds; at worst half of that is saved.
    """
    mean = lengths.mean()
    best = new / mean
    if len(lengths) <= _MIN_GROWTHS:
        expected, worst = _FEW_REMAIN
        return best, max(best, expected), max(best, worst)
    first, second = np.triu_indices(len(lengths), 1)
    apart = lengths[second] - lengths[first]
    slopes = (dur_ns[second] - dur_ns[first])[apart != 0] / apart[apart != 0]
    saved = min(max(float(np.median(slopes)) * (mean - new) / dur_ns.mean(), 0.0), 1 - best)
    return best, 1 - saved, 1 - saved / 2
