"""What to do about a program on the CPU alone whose steps go to calling ops: by what calls them."""

from __future__ import annotations

import math
from typing import NamedTuple

from perfdoctor.analyzers._pd104_busiest_line import MIN_LOOP_CALLS, BusiestLine
from perfdoctor.rules import Evidence, Intervals, Rank, Saving, UnprofiledTime, intervals, vocabulary
from perfdoctor.rules.internal import ops_of_program

_CELL_OP = r"(?i)(lstm|gru|rnn_tanh|rnn_relu)_cell"
_MODULE_OF_CELL = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
# A line that calls half of the ops, one of them again and again, is a loop over rows, not over layers.
_MIN_LOOP_SHARE = 0.5
# Fewer cells a step are layers of a network, not the steps in time of a sequence.
_MIN_CELLS = 8
# With torch.compile the first four steps of four small programs took 6 to 14.5 s and more on a CPU of two cores (torch
# 2.13), and later steps 0.74 to 1.44 times as long as without: at best it has to make up for this.
_COMPILE_NS = 6_000_000_000


# The share of forward and backward pass that remains with nn.LSTM in place of a loop over nn.LSTMCell: at best, as
# expected, at worst (8 to 64 sequences of 40 to 100 steps in time, 32 to 256 features, one and two threads, torch
# 2.13). With nn.GRU and nn.RNN 66 to 102 % remain, which is no promise.
_LSTM_REMAINS = (0.16, 0.38, 0.64)


class CellLoop(NamedTuple):
    """A loop that calls a recurrent cell for each step in time.

    Attributes:
        module: The module that does the same over a whole sequence: "LSTM", "GRU" or "RNN".
        op: Name of the cell's op.
        calls_per_step: How often a step it calls the cell.
        share: The share (0 to 1) of the ops' time in the forward pass that it takes.
    """

    module: str
    op: str
    calls_per_step: int
    share: float


def is_loop_over_rows(line: BusiestLine) -> bool:
    """Whether a line loops over rows of a tensor, so that one op could do the work of many."""
    return not line.has_matrix_ops and line.share >= _MIN_LOOP_SHARE and line.calls_per_step >= MIN_LOOP_CALLS


def find_cell_loop(rank: Rank) -> CellLoop | None:
    """The loop over recurrent cells in each step; None where there is none."""
    trace = rank.trace
    cells = rank.ops.named(_CELL_OP).in_steps()
    calls = rank.count_per_step(len(cells))
    if calls < _MIN_CELLS:
        return None
    op = trace.strings[int(trace.ops.name[cells.mask][0])]
    module = next(module for kind, module in _MODULE_OF_CELL.items() if kind in op.lower())
    outermost = ops_of_program(trace, rank.window)
    forward = outermost[~trace.match_rows(trace.ops, vocabulary.BACKWARD_OP)[outermost]]
    forward_ns = int(trace.ops.dur_ns[forward].sum())
    return CellLoop(module, op, calls, min(cells.time_ns / max(forward_ns, 1), 1.0))


def passes_of(rank: Rank) -> Intervals:
    """Forward and backward passes where they are known, else the window."""
    passes = intervals.union_of((rank.phases["forward"], rank.phases["backward"]))
    return passes if len(passes) else rank.window


def saving_by_lstm(rank: Rank, cells: CellLoop) -> Saving:
    """What nn.LSTM saves in place of the loop; bounds alone where no step was timed without the profiler."""
    share = cells.share * (rank.share(rank.per_step(intervals.total(passes_of(rank)))) or 0.0)
    step_ns = rank.mean_step_ns
    high, expected, low = (round(step_ns * share * (1 - remaining)) for remaining in _LSTM_REMAINS)
    if rank.profiler_factor is None:
        return Saving(0, None, high, "bounded")
    return Saving(low, expected, high, "bounded")


def situation_of(rank: Rank) -> str:
    """The situation in the table of advice, where no loop calls most of the ops.

    torch.compile is offered only where nothing is compiled yet, and not beside LBFGS, whose closures and line searches
    it would compile again and again.
    """
    trace = rank.trace
    has_compiled = (
        bool(rank.facts.compile.graphs)
        or trace.match_rows(trace.ranges, vocabulary.COMPILED_CODE).any()
        or trace.match_rows(trace.ops, vocabulary.COMPILED_CODE).any()
    )
    classes = {each.class_ for each in rank.facts.optimizers}
    steps = trace.match_rows(trace.ranges, f"{vocabulary.OPTIMIZER_STEP}LBFGS")
    if has_compiled or "LBFGS" in classes or steps.any():
        return "bound by ops on the CPU, not to be compiled"
    return "bound by ops on the CPU"


def bound_ns(rank: Rank, time: Intervals, unprofiled: UnprofiledTime) -> int:
    """The most that goes when calling ops takes no time: the unprofiled step less all else that it does.

    All else is what the recorded step does outside of `time`: it computes, loads, and updates the weights. The profiler
    makes that hardly longer.
    """
    if not unprofiled.timed or rank.profiler_factor is None:
        return unprofiled.max_ns
    recorded_ns = rank.count_per_step(rank.window_ns - intervals.total(time))
    return min(unprofiled.max_ns, max(unprofiled.program_ns, rank.mean_step_ns - recorded_ns))


def evidence_of_compiling(saved_ns: int) -> Evidence:
    """How many steps it takes, at best, until compiling has paid."""
    return Evidence(
        "steps until torch.compile pays, at best (it compiles for 6 to 15 s and more)",
        math.ceil(_COMPILE_NS / saved_ns) if saved_ns else None,
        "count",
    )
