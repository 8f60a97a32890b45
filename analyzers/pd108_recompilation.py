"""PD108: torch.compile compiles in the middle of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    Claim,
    Edit,
    Evidence,
    Finding,
    Int64Array,
    Intervals,
    Ops,
    Ranges,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    count_recurrence,
    format_time,
    remove_cpu_time,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# From this share of a run on it is what the run does, whatever its steps take beside it.
_MOST = 0.5


class CompileTime(NamedTuple):
    """What is known of compiling in steady steps.

    Attributes:
        cost_ns: What it takes of a step.
        compiling_steps: In how many steps the program compiles.
        steps: How many steady steps there are.
        share: What it takes of their time without the profiler (0 to 1); 0 where that is not known.
        total_ns: How long it takes in all of them.
        time: When it costs time in the trace; empty for compiling outside of it.
        compile_ids: Ids such as "3/1": frame 3 was compiled a second time.
        edit: What vanishes without it, for the replay; None in a program without a GPU, and outside of the trace.
    """

    cost_ns: int
    compiling_steps: int
    steps: int
    time: Intervals
    compile_ids: tuple[str, ...] = ()
    edit: Edit | None = None
    share: float = 0.0
    total_ns: int = 0

    @property
    def frame_count(self) -> int:
        """How many different frames are compiled."""
        return len({compile_id.partition("/")[0] for compile_id in self.compile_ids})


class Recompilation(RankAnalyzer):
    """The program compiles in steps in which everything should have been compiled long ago."""

    rule = "PD108"
    name = "recompilation"
    needs = frozenset({"cpu", "steps"})
    # min_share: where a low finding begins. warm_steps: the first compiles, the second again where a size
    # has changed (dynamo then makes it dynamic). A capture has left its first steps out already.
    defaults = {"min_share": 0.01, "warm_steps": 2}
    references = (
        "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        "https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when compiling takes at least `min_share` of the steady steps."""
        captured = rank.facts.compile
        warm_steps = 0 if captured else int(self.settings["warm_steps"])
        traced, unprofiled = _compiling_in_trace(rank, warm_steps), _compiling_in_facts(rank)
        found = traced if traced.cost_ns else unprofiled
        if not found.cost_ns or not self.exceeds_min_share(rank, found.cost_ns):
            return
        location = rank.places.line_in(found.time) or rank.places.line_of_named(vocabulary.COMPILE_PHASE)
        # In one of several steps it may be the last size that there is; facts of the run may know better.
        once = found is traced and not unprofiled.cost_ns and found.compiling_steps == 1 < found.steps - 1
        is_most = unprofiled.share >= _MOST
        # What most of the run goes to is no matter of a few recorded steps.
        has_steps = len(found.time) > 0 and not is_most
        title = f"torch.compile compiles in {found.compiling_steps} of {found.steps} steady steps"
        if once:
            compiling_ms = iv.total(found.time) / 1e6
            title = f"torch.compile compiles for {compiling_ms:,.3g} ms in a steady step"
        elif is_most:
            taken = f"{format_time(unprofiled.total_ns)} in {unprofiled.compiling_steps} of {unprofiled.steps} steps"
            title = f"{unprofiled.share:.0%} of the run compiles: torch.compile takes {taken}"
        yield self.finding(
            rank,
            title=title + (f", called at {location.short}" if location else ""),
            occurs_once=once,
            cost_ns=0 if once else found.cost_ns,
            saving=Saving() if once else _saving(found, unprofiled),
            advice=advise("recompiles", rank.context),
            claim=Claim(found.time, unshared_ns=0 if len(found.time) else rank.in_window_ns(found.cost_ns)),
            edit=None if once else found.edit,
            recurrence=count_recurrence(found.time, rank.steps, rank.profiler_factor) if has_steps else None,
            confidence=0.9,
            location=location,
            evidence=(
                Evidence("compiling per {unit} without the profiler", unprofiled.cost_ns or None, "ns"),
                Evidence("compile ids", ", ".join(found.compile_ids[:8]) or None),
                Evidence("frames compiled", found.frame_count or None, "count"),
                Evidence("compiled regions per {unit}", _compiled_regions_per_step(rank), "count"),
                Evidence("recompilations of the whole run", captured.recompiles, "count"),
                Evidence("graph breaks of the whole run", captured.graph_breaks, "count"),
            ),
        )


def _saving(found: CompileTime, unprofiled: CompileTime) -> Saving:
    """As much as the steps beside the trace spent on it: recording slows tracing and compiling up to fourfold.

    What lies outside of the trace alone is no more than bounded.
    """
    is_traced = len(found.time) and unprofiled.cost_ns
    expected_ns = min(unprofiled.cost_ns, found.cost_ns) if is_traced else None
    return Saving(0, expected_ns, found.cost_ns, "bounded")


def _compiling_in_trace(rank: Rank, warm_steps: int) -> CompileTime:
    """Compiling in the steps of the trace from step `warm_steps` on; on a GPU as far as the GPU idles meanwhile."""
    trace, steady = rank.trace, rank.steps.intervals[warm_steps:]
    window = iv.union(steady[:, 0], steady[:, 1])
    in_ops, in_ranges = (_compile_phases(rank, table, window) for table in (trace.ops, trace.ranges))
    starts_ns = np.concatenate((trace.ops.start_ns[in_ops], trace.ranges.start_ns[in_ranges]))
    ends_ns = np.concatenate((trace.ops.end_ns[in_ops], trace.ranges.end_ns[in_ranges]))
    threads = np.concatenate((trace.ops.thread[in_ops], trace.ranges.thread[in_ranges]))
    compiling = iv.intersect(iv.union(starts_ns, ends_ns), window)
    edit = None
    if rank.device_kind == "gpu":
        edit = remove_cpu_time(threads, (starts_ns, ends_ns), window)
        idle = iv.union_of(part for name, part in rank.account.parts.items() if name.startswith("idle_"))
        compiling = iv.intersect(compiling, idle)
    return CompileTime(
        cost_ns=rank.per_step(iv.total(compiling)),
        compiling_steps=int((iv.overlap(steady[:, 0], steady[:, 1], compiling) > 0).sum()),
        steps=len(steady),
        time=compiling,
        compile_ids=_compile_ids(rank, window),
        edit=edit,
    )


def _compile_phases(rank: Rank, table: Ops | Ranges, window: Intervals) -> Int64Array:
    """The rows of a table that are phases of dynamo and inductor and lie at least partly in the window."""
    rows = np.flatnonzero(rank.trace.match_rows(table, vocabulary.COMPILE_PHASE))
    return rows[iv.overlap(table.start_ns[rows], table.end_ns[rows], window) > 0]


def _compile_ids(rank: Rank, window: Intervals) -> tuple[str, ...]:
    """The different compile ids in the window, in order of time."""
    ranges, strings = rank.trace.ranges, rank.trace.strings
    in_window = iv.contains(window, ranges.start_ns)
    rows = np.flatnonzero(rank.trace.match_rows(ranges, vocabulary.COMPILE_DATA) & in_window)
    compile_ids = (vocabulary.compile_id(strings[code]) for code in ranges.name[rows].tolist())
    return tuple(dict.fromkeys(compile_id for compile_id in compile_ids if compile_id))


def _compiling_in_facts(rank: Rank) -> CompileTime:
    """Compiling in the steps without a profiler, after the warm-up: as much of a step as of all of their time."""
    windows, run, timed_ns = rank.facts.compile.windows, rank.facts.run, rank.facts.base.timed_ns
    steps, run_ns, names = run.unprofiled_steps, run.unprofiled_ns, {"base", "after"}
    if not steps or not run_ns:  # a capture that did not end, or an early one, knows the base window alone
        steps, run_ns, names = len(timed_ns), sum(timed_ns), {"base"}
    known = [window for name, window in windows.items() if name in names]
    total_ns, frames = sum(each.ns or 0 for each in known), sum(each.frames or 0 for each in known)
    share = min(total_ns / run_ns, 1.0) if run_ns else 0.0
    cost_ns = round(share * rank.mean_step_ns)
    return CompileTime(cost_ns, min(frames, steps), steps, iv.EMPTY, share=share, total_ns=total_ns)


def _compiled_regions_per_step(rank: Rank) -> float | None:
    """Calls of compiled code a step: more than one for one model means that its graph is broken."""
    calls = len(rank.ops.named(vocabulary.COMPILED_REGION).in_steps())
    return round(calls / rank.steps.count, 1) if calls and rank.steps.count else None
