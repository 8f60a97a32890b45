"""PD104: the GPU is faster than the CPU can launch; without a GPU, calling ops takes longer than they do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._module_calls import ModuleCalls, module_calls_of
from perfdoctor.analyzers._own_steps import recorded_steps_of
from perfdoctor.analyzers._pd104_busiest_line import BusiestLine, calls_of_program, find_busiest_line
from perfdoctor.analyzers._pd104_cpu_advice import (
    CellLoop,
    bound_ns,
    evidence_of_compiling,
    find_cell_loop,
    is_loop_over_rows,
    passes_of,
    saving_by_one_call,
    situation_of,
)
from perfdoctor.analyzers._pd104_launches import LaunchFacts, launch_facts_of
from perfdoctor.analyzers._pd104_python_time import PythonTime, find_python_time
from perfdoctor.analyzers._pd104_repeated_calls import find_op_loop, find_row_calls, find_sibling_modules
from perfdoctor.analyzers._sample_counts import find_samples
from perfdoctor.rules import (
    NONE,
    Action,
    Advice,
    BoolArray,
    CallRows,
    Claim,
    Edit,
    Evidence,
    Finding,
    Int64Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    StarvationRoot,
    advise,
    most_common_location,
    read_advice,
    shorten_launches,
)
from perfdoctor.rules import activity_kinds as kinds
from perfdoctor.rules import intervals as iv

_SYNCS_WITHIN = "launch-bound, syncs within"
# From this share of the kernels on the advice counts a program as run by graphs.
_GRAPHED_SHARE = 0.5
# Launching that takes less than this many times as long as the GPU works needs no larger batch.
_MIN_LAG = 1.2
# One CUDA graph reaches from one sync to the next: where the longest such part has less than two thirds of the
# launches, many remain. Code that reads a loss once a step, before the backward pass, keeps that much in one part.
_MIN_GRAPHABLE_SHARE = 0.66
# From this share of the step on PD102 reports waits.
_MIN_SYNC_SHARE = 0.01
# A line that takes most of the time without ops is worth a low finding from a third of `min_share` on: from a twentieth
# of the step on slices of the account are explained as well.
_MAIN_LINE_SHARE, _SHARE_AT_A_LINE = 0.6, 1 / 3
# Of the time without ops in torch.tensor, from which on lists are named as its cause: lists are also made for it.
_MIN_LIST_SHARE = 0.3
# Below, making the lists takes longer than torch.tensor does: code that replaces the call alone would leave that.
_MOST = 0.5
# Waits, in which a thread computes nothing: work on whole arrays makes none of them shorter.
_WAITS: Mapping[str, str] = {
    kinds.LOCK_WAIT: "the loop waits for a lock, a queue or another thread",
    kinds.CHILD_PROCESS: "the loop waits for another process",
}
# Of a step, between one and the next: a server that waits for requests pauses for longer.
_MAX_PAUSE, _MIN_STEPS = 0.5, 2
_GROWS_ARRAYS = frozenset({"append", "insert", "delete"})
_OF_TORCH = r"(^|/)torch/(nn|_tensor|functional)"
# A line that calls so many of the ops is worth a look, loop or not.
_MIN_LINE_SHARE = 0.2


class LaunchBound(RankAnalyzer):
    """The GPU waits for the CPU to launch the next kernel: Python and the framework are the bottleneck."""

    rule = "PD104"
    name = "launch-bound"
    needs = frozenset({"work", "work_launches"})
    # min_share: XProf calls 3 % of launch time moderate and 15 % high; below 15 % the profiler's own slow-down
    # explains as much.
    # min_late: on 38 real traces 0 to 6 % of the kernels of graphs and well-fed GPUs were waited for, and 18 to 100 %
    # of the others.
    # min_cpu_share: on a CPU five programs without this fault had 0 to 8 %, one that goes row by row 64 to 79 %; a
    # small model for which there is no larger batch lies between. A loop over rows that is seen needs min_share alone:
    # counting a confusion matrix sample by sample was half of a step, and 26 % without the profiler's part.
    # min_ops: fewer in a step are a toy.
    # pause_ns: the CPU launches a kernel in 5 to 20 us, so a gap of 1 ms is no launch but something else that it did.
    defaults = {
        "min_share": 0.15,
        "min_late": 0.15,
        "min_kernels": 20,
        "pause_ns": 1_000_000,
        "min_cpu_share": 0.3,
        "min_ops": 100,
    }
    references = (
        "https://horace.io/brrr_intro.html",
        "https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when late launches starve the GPU for at least `min_share` of the step.

        Without a GPU: when Python and the dispatcher take `min_cpu_share` of it.
        """
        found = list(self._check_cpu(rank) if rank.device_kind == "cpu" else self._check_gpu(rank))
        yield from found
        if not found and rank.context.is_forward_only and self.exceeds_min_share(rank, rank.mean_step_ns):
            yield from self._check_single_samples(rank)

    def _check_single_samples(self, rank: Rank) -> Iterator[Finding]:
        """A hint where one step follows the other, each with one sample: nobody waits for a single answer then."""
        steps = rank.steps.intervals
        if len(steps) < _MIN_STEPS or find_samples(rank).per_step != 1:
            return
        if np.median(steps[1:, 0] - steps[:-1, 1]) > _MAX_PAUSE * np.median(steps[:, 1] - steps[:, 0]):
            return
        shown = [(each, module_calls_of(each.trace)) for each in (rank, rank.evidence) if each is not None]
        lines = next((calls.lines for each, calls in shown if _is_one_a_step(each, calls)), None)
        if lines is None:
            return
        finding = self.finding(
            rank,
            title="The model gets one sample at a time, in one call behind the other",
            advice=read_advice("samples one by one"),
            confidence=0.6,
            location=most_common_location(lines),
            subject="samples",
        )
        yield replace(finding, severity="low", order_key_ns=0.0)

    def _check_gpu(self, rank: Rank) -> Iterator[Finding]:
        kernels = rank.kernels.in_steps()
        pause_ns = round(min(self.settings["pause_ns"], rank.pause_threshold_ns))
        gaps = rank.gaps.late_launch_time(below_ns=pause_ns)
        without_root = iv.intersect(gaps, rank.starvation.time_after(StarvationRoot.NO_ROOT))
        starved = iv.intersect(without_root, rank.account.parts["idle_launch"])
        late = _count_late_kernels(rank, starved, kernels.mask)
        cost_ns = rank.per_step(iv.total(starved))
        if len(kernels) < self.settings["min_kernels"] or late < self.settings["min_late"] * len(kernels):
            return
        if not self.exceeds_min_share(rank, cost_ns):
            return
        launches = launch_facts_of(rank)
        if launches is None or rank.is_subsampled:
            return
        median_ns = int(np.median(rank.trace.gpu.dur_ns[kernels.mask]))
        number = rank.count_per_step(len(kernels))
        situation = _find_situation(rank, launches)
        edit = _shorten_launches(rank, kernels.calls.rows, launches, pause_ns)
        if situation == _SYNCS_WITHIN:
            edit = replace(edit, blocked_by=launches.syncs)
        after_syncs = iv.intersect(rank.starvation.time_after(StarvationRoot.SYNC), rank.window)
        yield self.finding(
            rank,
            title=f"The GPU waits for launches: {number:,} kernel{'' if number == 1 else 's'} {rank.per_unit}, "
            f"of {median_ns / 1e3:.1f} us in the median, and {_describe_launch(launches)}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=_advise(rank, launches, situation),
            claim=Claim(starved),
            edit=edit,
            confidence=0.6 if len(rank.trace.frames) else 0.8,
            evidence=(
                Evidence("kernels that the GPU had to wait for", round(100 * late / len(kernels), 1), "%"),
                Evidence("median wait for one", int(np.median(starved[:, 1] - starved[:, 0])), "ns"),
                Evidence("median kernel", median_ns, "ns"),
                Evidence("launches per {unit}", rank.count_per_step(launches.launches), "count"),
                Evidence("queue depth in the median", launches.depth, "count"),
                Evidence("syncs between launches per {unit}", rank.count_per_step(len(launches.syncs.index)), "count"),
                Evidence("GPU waits for launches after syncs", rank.per_step(iv.total(after_syncs)), "ns"),
                Evidence("launches with another one waiting", round(100 * launches.ahead_share, 1), "%"),
                Evidence("CPU for a launch: Python", launches.python_ns, "ns"),
                Evidence("CPU for a launch: dispatcher", launches.dispatcher_ns, "ns"),
                Evidence("CPU for a launch: runtime", launches.runtime_ns, "ns"),
                Evidence("Python stacks recorded, which slows launches", "yes" if len(rank.trace.frames) else "no"),
            ),
        )

    def _check_python(self, rank: Rank, python: PythonTime) -> Iterator[Finding]:
        """The time in which no op runs, where a capture shows at which line."""
        unprofiled = rank.unprofiled_time(python.time)
        min_share = self.settings["min_share"]
        is_small = unprofiled.share < min_share
        if unprofiled.share < _SHARE_AT_A_LINE * min_share or (is_small and python.share < _MAIN_LINE_SHARE):
            return
        deepest = python.path.deepest
        if rank.contention.is_severe and deepest is not None and re.search(_OF_TORCH, deepest.name):
            return  # torch's own functions take microseconds: there the thread had lost its core
        what, advice = _describe_python(rank, python)
        without_ops_ns = rank.per_step(iv.total(python.time))
        # What the fix takes away is all that passes at the line, in pieces of any length.
        at_line_ns = round(max(python.share_with_short, python.list_share) * without_ops_ns)
        cost_ns = min(max(without_ops_ns, at_line_ns), rank.mean_step_ns)
        found = self.finding(
            rank,
            title=f"No op runs for {rank.share(without_ops_ns):.0%} of the {rank.unit_name}: {what}, most at "
            f"{'lines behind ' if python.is_definition else ''}{python.location.short}"
            f"{f', in {python.helper}' if python.helper else ''}",
            cost_ns=cost_ns,
            # What could do without that time is not known; of that at other lines this place says nothing.
            saving=Saving(0, None, min(at_line_ns, cost_ns), "bounded"),
            advice=advice,
            claim=Claim(python.time, unshared_ns=rank.in_window_ns(cost_ns - without_ops_ns)),
            confidence=0.8 if unprofiled.timed else 0.6,
            location=python.location,
            evidence=(
                Evidence("of it at this line", round(100 * python.share, 1), "%"),
                Evidence("of it in torch.tensor", round(100 * python.tensor_share, 1), "%"),
            ),
            subject="python",
        )
        yield replace(found, severity="low", fix=None) if is_small else found

    def _check_cpu(self, rank: Rank) -> Iterator[Finding]:
        yield from report_work(self, rank, find_row_calls(rank))
        yield from report_work(self, rank, find_sibling_modules(rank))
        cells, python = find_cell_loop(rank), find_python_time(rank)
        if python is not None and not _is_usual(rank, python.time):
            python = None  # a thread loses its core now and then, for longer than many steps take
        if cells is not None and cells.remaining is not None:
            cells_ns = round(rank.per_step(iv.total(passes_of(rank))) * cells.share)
            if self.exceeds_min_share(rank, cells_ns, self.settings["min_cpu_share"]):
                yield self._report_cells(rank, cells, cells.remaining)
                if python is not None:
                    yield from self._check_python(rank, python)
                return
        ops, calling = calls_of_program(rank)
        share, min_share = rank.unprofiled_time(calling).share, self.settings["min_share"]
        min_cpu_share = max(min_share, self.settings["min_cpu_share"])
        calls_ops = rank.count_per_step(len(ops)) >= self.settings["min_ops"] and share >= min_share
        line = find_busiest_line(rank) if calls_ops or python is not None else None
        if python is not None and line is not None and _are_one_loop(line, python):
            both, python_share = iv.union_of((calling, python.time)), rank.unprofiled_time(python.time).share
            if python_share >= min_share or rank.unprofiled_time(both).share >= min_cpu_share:
                yield self._report_calls(rank, ops, both, line, cells, python)
                return
        if python is not None:
            yield from self._check_python(rank, python)
        if calls_ops and (share >= min_cpu_share or (line is not None and is_loop_over_rows(line))):
            yield self._report_calls(rank, ops, calling, line, cells)
            return
        yield from report_work(self, rank, find_op_loop(rank, min_share))

    def _report_calls(
        self,
        rank: Rank,
        ops: Int64Array,
        time: Intervals,
        line: BusiestLine | None,
        cells: CellLoop | None,
        python: PythonTime | None = None,
    ) -> Finding:
        """The time of calling ops; with that of the Python of the same loop where `python` is given."""
        unprofiled = rank.unprofiled_time(time)
        loop = line if line and is_loop_over_rows(line) else None
        median_us = rank.to_unprofiled_ns(float(np.median(rank.trace.ops.dur_ns[ops]))) / 1e3
        number = f"{rank.count_per_step(len(ops)):,} {rank.per_unit}, {median_us:.1f} us each in the median"
        title = (
            f"The CPU spends much of the {rank.unit_name} on calling ops, not on computing: {number}"
            f"{_describe_loop(loop, cells)}"
        )
        advice = _advise_on_cpu(rank, loop, cells)
        if python is not None:
            what, python_advice = _describe_python(rank, python)
            title = f"Little is computed: {what}, and many ops: {number}"
            advice = advice if loop else python_advice
        saving = unprofiled.saving(1 - loop.share * loop.repeated_share if loop else None)
        max_ns = bound_ns(rank, time, unprofiled)
        return self.finding(
            rank,
            title=title,
            cost_ns=rank.per_step(iv.total(time)),
            saving=saving.cap(max_ns),
            advice=advice,
            claim=Claim(time),
            confidence=0.8 if unprofiled.timed else 0.6,
            location=line.location if line and (loop or line.share >= _MIN_LINE_SHARE) else None,
            evidence=(
                *((evidence_of_compiling(max_ns),) if Action("consider-compiling") in advice.actions else ()),
                Evidence("in short pieces of ops", _time_in_part_ns(rank, time, "latency"), "ns"),
                Evidence("between ops", _time_in_part_ns(rank, time, "idle_launch"), "ns"),
                Evidence("of it by the profiler's cost of an event", unprofiled.program_ns, "ns"),
                Evidence("the line where calling ops takes most time", str(line.location) if line else None),
                Evidence("time of calling ops that it takes", round(100 * line.share, 1) if line else None, "%"),
            ),
        )

    def _report_cells(self, rank: Rank, cells: CellLoop, remaining: tuple[float, float, float]) -> Finding:
        passes = passes_of(rank)
        return self.finding(
            rank,
            title=f"{cells.name} is called {cells.calls_per_step:,} times {rank.per_unit} in a loop"
            + (", for one step in time each" if cells.is_module else ""),
            cost_ns=rank.per_step(iv.total(passes)),
            saving=saving_by_one_call(rank, cells, remaining),
            advice=_advise_lstm(cells),
            claim=Claim(passes),
            confidence=0.7,
            location=rank.places.line_of_named(f"^{re.escape(cells.op)}$"),
            evidence=(Evidence("share of the ops' time in the forward pass", round(100 * cells.share, 1), "%"),),
            subject=cells.module,
        )


def _is_one_a_step(rank: Rank, calls: ModuleCalls) -> bool:
    """Whether each step of a window calls a model once: of several calls each may need the one before, as text does."""
    return bool(calls.lines) and int((rank.steps.at(calls.start_ns) >= 0).sum()) == rank.steps.count


def _is_usual(rank: Rank, time: Intervals) -> bool:
    """Whether the usual step has at least a third of the mean of a time, without its part of the waits for a core.

    A wait falls on what runs, ops as well: no more of them lie in the time than it has pieces as long as a wait::

        a step that lost its core 5 times, for 32 ms      pieces of time: 1.7, 9.9, 10.2, 10.2 ms     3 waits, 19 ms
    """
    steps = rank.steps.intervals
    own_ns = spent_ns = iv.overlap(steps[:, 0], steps[:, 1], time)
    recorded = recorded_steps_of(rank)
    if recorded is not None and recorded.queued_ns is not None:
        queued_ns, lost = recorded.queued_ns, recorded.preempted
        if lost is None:
            own_ns = spent_ns * (1 - np.minimum(queued_ns / (steps[:, 1] - steps[:, 0]), 1))
        else:
            wait_ns = queued_ns // np.maximum(lost, 1)
            step = rank.steps.at(time[:, 0])
            has_wait = (step != NONE) & (time[:, 1] - time[:, 0] >= wait_ns[step])
            pieces = np.bincount(step[has_wait], minlength=rank.steps.count)
            own_ns = spent_ns - np.minimum(wait_ns * pieces, queued_ns)
    return bool(np.median(own_ns) >= spent_ns.mean() / 3)


def _are_one_loop(line: BusiestLine, python: PythonTime) -> bool:
    """Whether the function that calls most of the ops is the one with most of the time in which none runs."""
    at, other = line.location, python.location
    return line.share >= _MOST and (at.file, at.function) == (other.file, other.function)


def _advise_on_cpu(rank: Rank, loop: BusiestLine | None, cells: CellLoop | None) -> Advice:
    """What to do in a program on the CPU alone: first about a loop that calls most of the ops."""
    if loop and loop.takes_single_numbers:
        return read_advice("single numbers")
    if loop:
        return read_advice("one op for a loop")
    if cells:
        return _advise_lstm(cells)
    return advise(situation_of(rank), rank.context)


def _advise_lstm(cells: CellLoop) -> Advice:
    return Advice(
        f"Call nn.{cells.module} once over the whole sequence in place of "
        f"{'a call for each step' if cells.is_module else cells.name} in a loop, where a step in time needs nothing "
        "but the state of the one before.",
        f"nn.{cells.module}(..., batch_first=True)",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
    )


def _describe_loop(loop: BusiestLine | None, cells: CellLoop | None) -> str:
    """What the title says of the loop that calls most of the ops."""
    if loop:
        return f", most of them in a loop at {loop.location.short}{f', in {loop.helper}' if loop.helper else ''}"
    return f", {cells.calls_per_step:,} times {cells.name} among them" if cells else ""


def _time_in_part_ns(rank: Rank, time: Intervals, part: str) -> int:
    """How much of some time lies in a part of the account, in ns a step."""
    return rank.per_step(iv.total(iv.intersect(time, rank.account.parts[part])))


def _find_situation(rank: Rank, launches: LaunchFacts) -> str:
    """What decides how to launch faster."""
    count = round(len(launches.syncs.index) / max(rank.steps.count, 1))
    if count and (_are_reported(rank, launches.syncs) or launches.graphable_share < _MIN_GRAPHABLE_SHARE):
        return _SYNCS_WITHIN
    if launches.steady is False:
        return "launch-bound, steps differ"
    if launches.python_ns is not None and launches.python_ns > launches.cpu_ns / 2:
        return "launch-bound in Python"
    return "launch-bound"


def _advise(rank: Rank, launches: LaunchFacts, situation: str) -> Advice:
    """First what takes away most of the CPU time for a launch, then what gives a launch more to do."""
    count = round(len(launches.syncs.index) / max(rank.steps.count, 1))
    are_reported = count > 0 and _are_reported(rank, launches.syncs)
    syncs = f"{'sync' if count == 1 else f'{count:,} syncs'}{' (PD102)' if are_reported else ''}"
    first = advise(situation, rank.context, syncs=syncs, unit=rank.unit_name)
    lags_far_behind = launches.cpu_ns * launches.launches > _MIN_LAG * _gpu_busy_ns(rank)
    more = advise(f"launch-bound: {'larger batch' if lags_far_behind else 'other ways'}", rank.context)
    return first.extend(more.sentence)


def _are_reported(rank: Rank, syncs: CallRows) -> bool:
    """Whether syncs leave the GPU idle for so long that PD102 reports them."""
    idle_ns = rank.per_step(iv.total(rank.starvation.time_after_syncs(syncs.index.astype(np.int32))))
    return (rank.share(idle_ns) or 0) >= _MIN_SYNC_SHARE


def _gpu_busy_ns(rank: Rank) -> int:
    """How long the GPU works in the window."""
    return rank.window_ns - sum(ns for name, ns in rank.account.detail.items() if name.startswith("idle_"))


def _describe_launch(launches: LaunchFacts) -> str:
    """What a launch takes; where nothing was recorded beside the calls of the runtime, how often one comes."""
    if launches.dispatcher_ns is None and launches.interval_ns is not None:
        return f"the CPU launches one every {launches.interval_ns / 1e3:.1f} us"
    return f"{launches.cpu_ns / 1e3:.1f} us of CPU to launch one"


def _shorten_launches(rank: Rank, calls: CallRows, launches: LaunchFacts, pause_ns: int) -> Edit:
    """What the fix changes: at least Python goes, as expected half of the dispatcher, too, and with graphs all.

    Where nothing can be captured the calls of the runtime remain. Without ops nobody knows the parts: all of it is the
    bound. Half of the dispatcher is a convention: part of it is the recording itself, and parts of a program (loops,
    optimizers) often stay outside of what is compiled.
    """
    graphed = (rank.context.graph_share or 0) >= _GRAPHED_SHARE
    if launches.python_ns is None or graphed or not launches.cpu_ns:
        return shorten_launches(calls, rank.window, pause_ns=pause_ns)
    without_python = 1 - launches.python_ns / launches.cpu_ns
    runtime = launches.runtime_ns / launches.cpu_ns
    can_capture = launches.steady is not False and len(launches.syncs.index) < max(rank.steps.count, 1)
    low, expected, high = (
        shorten_launches(calls, rank.window, remaining, is_upper_bound=False, pause_ns=pause_ns)
        for remaining in (without_python, (without_python + runtime) / 2, 0.0 if can_capture else runtime)
    )
    return replace(expected, at_least=low, at_most=high)


def _count_late_kernels(rank: Rank, starved: Intervals, kernels: BoolArray) -> int:
    """How many of the kernels (a mask of GPU items) end a gap before a late launch that has time in `starved`."""
    gaps = rank.gaps
    late = gaps.late_launch & (iv.overlap(gaps.start_ns, gaps.end_ns, starved) > 0)
    return int(np.count_nonzero(kernels[gaps.next_item[late]]))


def _describe_python(rank: Rank, python: PythonTime) -> tuple[str, Advice]:
    """What runs while no op does, for a title, and what to do about it."""
    if python.list_share >= _MIN_LIST_SHARE:
        of_tensors = python.tensor_share >= python.list_share / 2
        return f"lists become {'tensors' if of_tensors else 'arrays'} number by number", Advice(
            "Keep the numbers in arrays or tensors from where they are made on, and index those: Python makes lists of "
            f"numbers one by one, and {'torch.tensor' if of_tensors else 'numpy.array'} goes over them one by one.",
            None
            if python.tensor_share < _MOST
            else "torch.from_numpy(np.stack(rows)).float()   # .long() for whole numbers",
            "https://docs.pytorch.org/docs/stable/generated/torch.from_numpy.html",
        )
    kind, deepest = python.path.kind, python.path.deepest
    if kind == kinds.ENVIRONMENT:
        return "environments are stepped one by one", advise(f"pause: {kind}", rank.context)
    if kind is not None and kind in _WAITS:
        return _WAITS[kind], advise(f"pause: {kind}", rank.context)
    if kind in (kinds.FILE_OR_SOCKET, kinds.LOGGING):
        return "files are written or read", read_advice("files in the loop")
    if python.array_function in _GROWS_ARRAYS:
        return "whole arrays are copied to change their length", read_advice("arrays that grow")
    if python.array_function is not None:
        return f"numpy works on arrays, above all in {python.array_function}", read_advice("numpy in the loop")
    function = None if deepest is None else kinds.short_name(deepest.name).partition(" (")[0]
    is_named = function is not None and function != python.helper and not function.startswith("<")
    return f"Python{f' in {function}' if is_named else ''}", read_advice("Python in the loop")
