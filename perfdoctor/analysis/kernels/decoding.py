"""Which kernels decode a few tokens: their products load all weights for a handful of rows, and wait for the memory.

Serving engines put a range around each pass of the model and write the number of its tokens into the name. Where there
are no such ranges, attention kernels that only decode tell it of the products beside them.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import launching_ranges
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Trace

MAX_DECODED_TOKENS = 100
"""A product with n rows does n operations for each byte of weights in half precision, and in smaller types, whose rates
grow as their size shrinks. GPUs that serve models do from 110 (MI210) and 139 (V100) to 400 (L4) in the time of a byte:
up to this many rows memory bounds the product on all of them."""


def find_decoding_kernels(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether it is a product or an attention of a pass that decodes a few tokens."""
    trace = classes.trace
    is_matrix = classes.match_rows(lambda k: k.category in MATRIX_CATEGORIES and k.tensor_core != "na")
    if not is_matrix.any():
        return is_matrix
    in_pass = launching_ranges(trace, vocabulary.ENGINE_PASS)
    if (in_pass >= 0).any():
        return is_matrix & (_match_decoding_ranges(trace)[in_pass])
    return is_matrix & _find_beside_decoding_attention(classes)


def _match_decoding_ranges(trace: Trace) -> BoolArray:
    """For each range whether it is a pass of an engine that decodes a few tokens; a last False, which -1 finds."""
    by_name = np.zeros(len(trace.strings), bool)
    for name in trace.name_ids(trace.ranges):
        found = vocabulary.parse_engine_pass(trace.strings[name])
        by_name[name] = found is not None and 0 < (found.tokens or 0) <= MAX_DECODED_TOKENS
    return np.append(by_name[trace.ranges.name], False)


def _find_beside_decoding_attention(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether the attention kernels before and after it on its stream, as far as there are, decode.

    A pass that mixes prompts and decoding runs both kinds of attention in each layer, and its products are large::

        qkv  prefill  decode  out  mlp  qkv  prefill  decode     after "decode" comes "prefill": not decoding
        qkv  decode   out     mlp  qkv  decode                   decoding
    """
    trace = classes.trace
    gpu = trace.gpu
    found = np.zeros(len(gpu), bool)
    decodes = classes.match_rows(lambda k: k.decodes)
    if not decodes.any():
        return found
    attends = classes.match_rows(lambda k: k.category == "attention" and k.tensor_core != "na") | decodes
    stream = gpu.stream.astype(np.int64) * (int(gpu.device.max(initial=0)) + 1) + gpu.device
    for each in distinct(stream[decodes]).tolist():
        rows = np.flatnonzero(stream == each)
        rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
        found[rows] = _agree_on_both_sides(attends[rows], decodes[rows])
    return found


def _agree_on_both_sides(attends: BoolArray, decodes: BoolArray) -> BoolArray:
    """For each kernel of a stream whether the nearest attention at or before it, and at or after it, decodes."""
    place = np.arange(len(attends), dtype=np.int64)
    before: Int64Array = np.maximum.accumulate(np.where(attends, place, NONE))
    after: Int64Array = np.minimum.accumulate(np.where(attends, place, len(place))[::-1])[::-1]
    known = np.concatenate((decodes, [True]))  # the last one for kernels without an attention on that side
    result: BoolArray = known[before] & known[after]
    return result
