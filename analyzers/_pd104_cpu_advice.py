"""What to do about a program on the CPU alone whose steps go to calling ops: by what calls them."""

from __future__ import annotations

import math
from typing import NamedTuple

from perfdoctor.analyzers._pd104_busiest_line import BusiestLine
from perfdoctor.rules import Evidence, Intervals, Rank, captured_list, captured_part, intervals, vocabulary
from perfdoctor.savings.unprofiled_time import UnprofiledTime

_CELL_OP = r"(?i)(lstm|gru|rnn_tanh|rnn_relu)_cell"
_MODULE_OF_CELL = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
# A line that calls half of the ops, one of them so often a step, is a loop over rows, not over layers.
_MIN_LOOP_SHARE, _MIN_LOOP_CALLS = 0.5, 32
# Fewer cells a step are layers of a network, not the steps in time of a sequence.
_MIN_CELLS = 8
# The first steps of small programs took 12 to 40 s longer with torch.compile on a CPU of two cores (torch 2.13).
_COMPILE_NS = 15_000_000_000


class CellLoop(NamedTuple):
    """A loop that calls a recurrent cell for each step in time.

    Attributes:
        module: The module that does the same over a whole sequence: "LSTM", "GRU" or "RNN".
        calls_per_step: How often a step it calls the cell.
    """

    module: str
    calls_per_step: int


def is_loop_over_rows(line: BusiestLine) -> bool:
    """Whether a line loops over rows of a tensor, so that one op could do the work of many."""
    return not line.has_matrix_ops and line.share >= _MIN_LOOP_SHARE and line.calls_per_step >= _MIN_LOOP_CALLS


def find_cell_loop(rank: Rank) -> CellLoop | None:
    """The loop over recurrent cells in each step; None where there is none."""
    trace = rank.trace
    cells = rank.ops.named(_CELL_OP).in_steps()
    calls = rank.count_per_step(len(cells))
    if calls < _MIN_CELLS:
        return None
    name = trace.strings[int(trace.ops.name[cells.mask][0])].lower()
    module = next(module for kind, module in _MODULE_OF_CELL.items() if kind in name)
    return CellLoop(module, calls)


def situation_of(rank: Rank) -> str:
    """The situation in the table of advice, where no loop calls most of the ops.

    torch.compile is offered only where nothing is compiled yet, and not beside LBFGS, whose closures and line searches
    it would compile again and again.
    """
    trace = rank.trace
    has_compiled = (
        bool(captured_part(rank.facts, "compile").get("graphs"))
        or trace.match_rows(trace.ranges, vocabulary.COMPILED_CODE).any()
        or trace.match_rows(trace.ops, vocabulary.COMPILED_CODE).any()
    )
    classes = {each.get("class") for each in captured_list(rank.facts, "optimizers")}
    steps = trace.match_rows(trace.ranges, f"{vocabulary.OPTIMIZER_STEP}LBFGS")
    if has_compiled or "LBFGS" in classes or steps.any():
        return "bound by ops on the CPU, not to be compiled"
    return "bound by ops on the CPU"


def bound_ns(rank: Rank, time: Intervals, unprofiled: UnprofiledTime) -> int:
    """The most that goes when calling ops takes no time: the unprofiled step less all else that it does.

    All else is what the recorded step does outside of `time`: it computes, loads, and updates the weights.
    """
    step_ns = rank.unprofiled_step_ns
    if not unprofiled.timed or step_ns is None:
        return unprofiled.max_ns
    others_ns = round((rank.window_ns - intervals.total(time)) / max(rank.steps.count, 1))
    return min(unprofiled.max_ns, max(unprofiled.program_ns, step_ns - others_ns))


def evidence_of_compiling(saved_ns: int) -> Evidence:
    """How many steps it takes, at best, until compiling has paid."""
    return Evidence(
        "steps until torch.compile pays, at best (it compiles for 15 s and more)",
        math.ceil(_COMPILE_NS / saved_ns) if saved_ns else None,
        "count",
    )
