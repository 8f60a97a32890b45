"""Which ops of a program without a GPU use several threads, and what other numbers of threads make of the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import name_longest, own_time_of
from perfdoctor.rules import Int64Array, Intervals, Rank, step_times_of
from perfdoctor.rules import intervals as iv

# Ops that PyTorch runs in one thread whatever their size: random numbers, sorting, scatters, embedding gradients, and
# norms, which are of all elements where they take long (two threads gave norms 1.00 to 1.04 times the speed).
_SERIAL = (
    r"^aten::(sort|argsort|topk|_?unique\w*|nonzero|cumsum|cumprod|searchsorted|bincount|histc|multinomial|random_|normal_"
    r"|uniform_|bernoulli_?|randperm|exponential_|geometric_|native_dropout|embedding_dense_backward|_?index_put\w*"
    r"|_ctc_loss\w*|linalg_vector_norm|norm|item|_local_scalar_dense|resize_|empty\w*|set_|to|_to_copy|is_nonzero)$"
)
# Half of it is divided: two threads made gradients of EmbeddingBag 1.05 to 1.45 times as fast, mostly 1.3.
_HALF_SERIAL = r"^aten::_embedding_bag\w*_backward$"
# An op is divided from 32,768 elements on (at::internal::GRAIN_SIZE), which take 10 to 50 us; to wake threads takes 5.
_MIN_PARALLEL_NS = 50_000
# What n threads give to large ops: n ** 0.8, as measured on two cores for convolutions, products and Adam (1.5 to 2.0
# times as fast; 1.74 by the formula). Memory-bound ops get less of it, and two cores may be one with two threads: a
# program that followed the advice got 1.29 (n ** 0.36).
_EXPECTED_POWER, _LOW_POWER = 0.8, 0.35


class ParallelOps(NamedTuple):
    """The large ops of the training, which share their work among threads.

    Attributes:
        time: When they run in the window, outside of waits for batches.
        time_ns: The same per step.
        top: The name of the op that takes most of it; None without any.
        rows: All of them, rows of `trace.ops`.
    """

    time: Intervals
    time_ns: int
    top: str | None
    rows: Int64Array


class Speedup(NamedTuple):
    """How many times as fast more threads make large ops: at least, as expected, at most."""

    low: float
    expected: float
    high: float


def speedup_of_threads(threads: float) -> Speedup:
    """What so many threads make of one thread's large ops."""
    threads = max(threads, 1.0)
    return Speedup(threads**_LOW_POWER, threads**_EXPECTED_POWER, threads)


def find_parallel_ops(rank: Rank, threads: int = 1) -> ParallelOps:
    """The ops that compute themselves, and long enough to be divided.

    Args:
        rank: The rank.
        threads: Threads that computed in the recording: that many make an op shorter.
    """
    ops = rank.trace.ops
    own_ns = own_time_of(rank.trace)
    is_long = (own_ns >= _MIN_PARALLEL_NS / max(threads, 1)) & (2 * own_ns > ops.dur_ns)
    rows = np.flatnonzero(is_long & ~rank.trace.match_rows(ops, _SERIAL))
    divided_ns = np.where(rank.trace.match_rows(ops, _HALF_SERIAL), ops.dur_ns // 2, ops.dur_ns)[rows]
    time = iv.intersect(iv.union(ops.start_ns[rows], ops.start_ns[rows] + divided_ns), rank.window)
    time = iv.subtract(time, rank.loader_waits.intervals)
    if not len(rows) or not len(time):
        return ParallelOps(time, 0, None, rows[:0])
    return ParallelOps(time, rank.per_step(iv.total(time)), name_longest(rank.trace, rows), rows)


def stopped_by_quota_ns(rank: Rank) -> int:
    """How long a quota keeps the training thread off its core in the mean step; 0 where nobody measured it.

    Of that thread's waits for a core it is as large a part as the quota has in the waits of all threads.
    """
    base, stopped = step_times_of(rank.facts.base), rank.facts.cores.throttled
    if base is None or base.cpu_ns is None or base.queued_ns is None or not stopped:
        return 0
    waits = np.minimum(base.queued_ns, np.maximum(base.dur_ns - base.cpu_ns, 0)).sum() / base.dur_ns.sum()
    of_quota = stopped / max(rank.facts.cores.queued or 0.0, stopped)
    return round(float(waits) * of_quota * rank.mean_step_ns)
