"""What to do about a program on the CPU alone whose steps go to calling ops: by what calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import rank_with_shapes, sizes_of
from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._pd104_busiest_line import MIN_LOOP_CALLS, BusiestLine
from perfdoctor.rules import Evidence, Intervals, Rank, Saving, Trace, UnprofiledTime, intervals, vocabulary

_CELL_OP = r"(?i)(lstm|gru|rnn_tanh|rnn_relu)_cell"
_SEQUENCE_OP = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$"
# Between two calls for one step in time each there may be these: then a step needs nothing but the state before it.
_VIEWS = re.compile(r"^aten::(slice|select|unsqueeze|squeeze|view|reshape|transpose|unbind|split|contiguous|zeros)")
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
# 2.13). With nn.GRU and nn.RNN 66 to 102 % remain, which is no promise. The same of one call of a module in place of
# one for each step in time (8 to 128 sequences of 24 to 100 steps, 32 to 256 features, by CPU time with one thread).
_CELLS_REMAIN = (0.16, 0.38, 0.64)
_CALLS_REMAIN: Mapping[str, tuple[float, float, float]] = {
    "LSTM": (0.12, 0.38, 0.64),
    "RNN": (0.42, 0.55, 0.66),
    "GRU": (0.72, 0.77, 0.83),
}


class CellLoop(NamedTuple):
    """A loop that calls a recurrent cell, or a recurrent module, for each step in time.

    Attributes:
        module: The module that does the same over a whole sequence: "LSTM", "GRU" or "RNN".
        op: Name of the cell's op.
        calls_per_step: How often a step it calls the cell.
        share: The share (0 to 1) of the ops' time in the forward pass that it takes.
        remaining: The share of the passes that remains with one call: at best, as expected, at worst; None where too
            much remains to promise anything.
        is_module: Whether it calls the module itself, with one step in time each.
    """

    module: str
    op: str
    calls_per_step: int
    share: float
    remaining: tuple[float, float, float] | None
    is_module: bool = False

    @property
    def name(self) -> str:
        """What is called."""
        return f"nn.{self.module}" if self.is_module else f"nn.{self.module}Cell"


def is_loop_over_rows(line: BusiestLine) -> bool:
    """Whether a line loops over rows of a tensor, so that one op could do the work of many."""
    return not line.has_matrix_ops and line.share >= _MIN_LOOP_SHARE and line.calls_per_step >= MIN_LOOP_CALLS


def find_cell_loop(rank: Rank) -> CellLoop | None:
    """The loop over recurrent cells, or over calls of a recurrent module, in each step; None where there is none."""
    # A packed sequence runs its cells in one op: no loop calls them.
    cells = rank.ops.named(_CELL_OP).in_steps().where(rank.trace.ops.parent < 0)
    calls = rank.count_per_step(len(cells))
    if calls >= _MIN_CELLS:
        op = rank.trace.strings[int(rank.trace.ops.name[cells.mask][0])]
        module = next(module for kind, module in _MODULE_OF_CELL.items() if kind in op.lower())
        remaining = _CELLS_REMAIN if module == "LSTM" else None
        return CellLoop(module, op, calls, _share_of_forward(rank, cells.time_ns), remaining)
    shaped = rank_with_shapes(rank)
    return None if shaped is None else _find_module_loop(rank, shaped)


def _find_module_loop(rank: Rank, shaped: Rank) -> CellLoop | None:
    """A recurrent module that is called for one step in time again and again, with nothing computed between."""
    trace, ops = shaped.trace, shaped.trace.ops
    rows = ops_of_program(trace, shaped.window)
    is_call = trace.match_rows(ops, _SEQUENCE_OP)[rows] & [_takes_one_step(trace, row) for row in rows.tolist()]
    calls = np.flatnonzero(is_call)
    is_view = np.array([bool(_VIEWS.match(trace.strings[code])) for code in ops.name[rows].tolist()], bool)
    computed = np.cumsum(~is_view & ~is_call)
    alone = int(np.count_nonzero(np.diff(computed[calls]) == 0)) if len(calls) else 0
    if shaped.count_per_step(alone) < _MIN_CELLS:
        return None
    op = trace.strings[int(ops.name[rows[calls[0]]])]
    module = next(module for kind, module in _MODULE_OF_CELL.items() if kind in op)
    share = _share_of_forward(rank, rank.ops.named(rf"^{op}$").in_steps().time_ns)
    number = shaped.count_per_step(len(calls))
    return CellLoop(module, op, number, share, _CALLS_REMAIN[module], is_module=True)


def _takes_one_step(trace: Trace, row: int) -> bool:
    """Whether a recurrent op, of batches of sequences, is called for a single step in time."""
    sizes = sizes_of(trace.text(int(trace.ops.dims[row])))
    flags = re.findall(r"true|false", (trace.text(int(trace.ops.concrete[row])) or "").lower())
    is_batch_first = bool(flags) and flags[-1] == "true"
    return bool(sizes) and len(sizes[0]) == 3 and sizes[0][1 if is_batch_first else 0] == 1


def _share_of_forward(rank: Rank, time_ns: int) -> float:
    """A time of ops in the window as a share (0 to 1) of that of all ops in the forward pass."""
    outermost = ops_of_program(rank.trace, rank.window)
    forward = outermost[~rank.trace.match_rows(rank.trace.ops, vocabulary.BACKWARD_OP)[outermost]]
    return min(time_ns / max(int(rank.trace.ops.dur_ns[forward].sum()), 1), 1.0)


def passes_of(rank: Rank) -> Intervals:
    """Forward and backward passes where they are known, else the window."""
    passes = intervals.union_of((rank.phases["forward"], rank.phases["backward"]))
    return passes if len(passes) else rank.window


def saving_by_one_call(rank: Rank, cells: CellLoop, remaining: tuple[float, float, float]) -> Saving:
    """What one call saves in place of the loop; bounds alone where no step was timed without the profiler."""
    share = cells.share * (rank.share(rank.per_step(intervals.total(passes_of(rank)))) or 0.0)
    step_ns = rank.mean_step_ns
    high, expected, low = (round(step_ns * share * (1 - left)) for left in remaining)
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
