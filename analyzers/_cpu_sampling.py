"""Whether a serving engine samples on the CPU: what its sampler computes there while the GPU idles."""

from __future__ import annotations

import numpy as np

from perfdoctor.rules import Int64Array, Intervals, Rank, vocabulary
from perfdoctor.rules import intervals as iv
from perfdoctor.rules.internal import frozen_dataclass

# What samplers and penalties call.
_SAMPLING_OP = (
    r"^aten::(sort|topk|argsort|argmax|_?softmax|_?log_softmax|multinomial|cumsum|masked_fill_?|scatter(_add)?_?|"
    r"index_put_?|bincount|exponential_|where|div_?|mul_?|sub_?|gather)$"
)
# A token takes 8 bytes a request, and its 20 best alternatives 240; the smallest vocabularies of today's language
# models, 32,000 words, 64,000 in half precision.
_MIN_LOGITS_BYTES = 32_000
_MIN_PASSES = 3
_COPY_OP = r"^aten::(copy_|_to_copy|to)$"


@frozen_dataclass(eq=False)
class CpuSampling:
    """What an engine samples on the CPU, in the window.

    Attributes:
        time: When the GPU idles for it.
        copied: Rows of the copies of logits to the CPU.
        ops: Rows of the ops that compute there.
    """

    time: Intervals
    copied: Int64Array
    ops: Int64Array


def find_cpu_sampling(rank: Rank) -> CpuSampling | None:
    """What the sampler computes on the CPU; None where nothing shows that it does.

    Ops that launch nothing show it in a sampler's frames. Where logits are copied to the CPU, such ops show it anywhere
    between passes, and the sampler's own Python belongs to it.
    """
    passes, trace = rank.engine_passes, rank.trace
    if passes is None:
        return None
    copies = rank.copies.copying(vocabulary.COPY_DIRECTIONS[vocabulary.DTOH]).in_steps().mask & (
        passes.pass_of_item >= 0
    )
    copies &= np.append(trace.match_rows(trace.ops, _COPY_OP), False)[trace.gpu.op]
    copied = np.flatnonzero(copies)
    requests = np.array([each.requests or 1 for each in passes.passes])[passes.pass_of_item[copied]]
    copied = copied[trace.gpu.bytes[copied] >= _MIN_LOGITS_BYTES * requests]
    copied = copied if len(set(passes.pass_of_item[copied].tolist())) >= _MIN_PASSES else copied[:0]
    idle = iv.intersect(iv.union_of(passes.idle.values()) if len(copied) else passes.idle["sampling"], rank.window)
    computing = _find_ops_on_cpu(rank, passes.thread, idle)
    spans = iv.union(trace.ops.start_ns[computing], trace.ops.end_ns[computing])
    time = iv.intersect(idle, spans)
    if len(copied):
        time = iv.union_of((time, iv.intersect(passes.idle["sampling"], rank.window)))
    return CpuSampling(time, copied, computing) if len(time) else None


def _find_ops_on_cpu(rank: Rank, thread: int, idle: Intervals) -> Int64Array:
    """The ops of a sampler on a thread that launch nothing, while the GPU idles."""
    trace, ops = rank.trace, rank.trace.ops
    rows = np.flatnonzero(trace.match_rows(ops, _SAMPLING_OP) & (ops.thread == thread))
    start_ns, end_ns = ops.start_ns[rows], ops.end_ns[rows]
    launched_ns = np.sort(trace.calls.start_ns[trace.calls.thread == thread])
    launches = np.searchsorted(launched_ns, end_ns) > np.searchsorted(launched_ns, start_ns)
    found: Int64Array = rows[~launches & (iv.overlap(start_ns, end_ns, idle) > 0)]
    return found
