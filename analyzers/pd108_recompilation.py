"""PD108: torch.compile compiles in the middle of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import captured_part, captured_steps
from perfdoctor.analysis.host.locations import SourceLocation, find_locations, most_common_location
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import Edit, remove_cpu_time
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals
from perfdoctor.trace.tables.model import Table

# A frame that is compiled: its number, and how often it was compiled before.


class Compiling(NamedTuple):
    """What is known of compiling in steady steps: its time, in how many steps, which frames, where from."""

    cost_ns: int
    steps: int
    of_steps: int
    claim: Intervals
    ids: tuple[str, ...] = ()
    place: SourceLocation | None = None
    edit: Edit | None = None

    @property
    def frames(self) -> int:
        """How many different frames."""
        return len({name.partition("/")[0] for name in self.ids})


class Recompilation(RankAnalyzer):
    """The program compiles in steps in which everything should have been compiled long ago.

    What it finds:
        Phases of dynamo and inductor within the analysed steps, or, in captured facts, within the unprofiled ones
        before.

    Why it costs time:
        A graph is compiled for the sizes, types and values that it was traced with. When a guard on one of them fails,
        all of it is traced and compiled again, which takes seconds; after eight times the frame is left to Python.

    How it is measured:
        The union of ranges that PyTorch records around compiling; on a GPU only as far as the GPU idles meanwhile.
        Without captured facts the first two steps are taken for warm-up. A compile id such as 0/3 says that frame 0
        was compiled for the fourth time.

    How to fix:
        TORCH_LOGS=recompiles says which guard failed. A size that changes: pad to few sizes, or mark_dynamic, or
        dynamic=True. A number that changes: pass it as a tensor. drop_last=True for a shorter last batch.

    When it is wrong:
        A trace of a program's beginning shows what does not recur. New graphs for a few sizes stop once all were seen.

    Needs:
        CPU events and steps. Captured facts (`perfdoctor run`) for compiling outside of the trace, and graph breaks.

    References:
        PyTorch, "Dealing with Recompilations"; PyTorch, "torch.compile Troubleshooting".
    """

    rule: ClassVar[str] = "PD108"
    name: ClassVar[str] = "recompilation"
    needs: ClassVar[frozenset[str]] = frozenset({"cpu", "steps"})
    # min_share: a low finding's worth (contracts.md). warm_steps: the first compiles, the second again where a size
    # has changed (dynamo then makes it dynamic). A capture has left its first steps out already.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "warm_steps": 2})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        "https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when compiling takes at least `min_share` of the steady steps."""
        captured = captured_part(rank.facts, "compile")
        found = _in_trace(rank, 0 if captured.get("windows") is not None else int(self.settings["warm_steps"]))
        unprofiled = _in_facts(rank, captured)
        if not found.cost_ns:
            found = unprofiled
        if not found.cost_ns or not self.exceeds_min_share(rank, found.cost_ns):
            return
        yield self.finding(
            rank,
            title=f"torch.compile compiles in {found.steps} of {found.of_steps} steady steps"
            + (f", called at {found.place.short}" if found.place else ""),
            cost_ns=found.cost_ns,
            saving=_saving(found, unprofiled),
            advice="TORCH_LOGS=recompiles names the guard that failed: pad to few sizes, mark sizes that change as "
            "dynamic, pass numbers that change as tensors.",
            fix="torch._dynamo.mark_dynamic(x, 0)           # or torch.compile(model, dynamic=True)",
            claim=Claim(found.claim),
            edit=found.edit,
            confidence=0.9,
            location=found.place,
            evidence=(
                Evidence("compiling per step without the profiler", unprofiled.cost_ns or None, "ns"),
                Evidence("compile ids", ", ".join(found.ids[:8]) or None),
                Evidence("frames compiled", found.frames or None, "count"),
                Evidence("compiled regions per step", _regions(rank), "count"),
                Evidence("recompilations of the whole run", captured.get("recompiles"), "count"),
                Evidence("graph breaks of the whole run", captured.get("graph_breaks"), "count"),
            ),
        )


def _saving(found: Compiling, unprofiled: Compiling) -> Saving:
    """As much as the steps before the trace spent on it: recording slows tracing and compiling up to fourfold.

    Nothing is promised for what lies outside of the trace.
    """
    if not len(found.claim):
        return Saving()
    expected = min(unprofiled.cost_ns, found.cost_ns) if unprofiled.cost_ns else None
    return Saving(0, expected, found.cost_ns, "bounded")


def _in_trace(rank: Rank, warm_steps: int) -> Compiling:
    trace, steady = rank.trace, rank.steps.intervals[warm_steps:]
    window = iv.union(steady[:, 0], steady[:, 1])
    starts: list[Int64Array] = []
    ends: list[Int64Array] = []
    threads: list[Int32Array] = []
    asked: list[SourceLocation | None] = []
    tables: tuple[Table, ...] = (trace.ops, trace.ranges)
    for table, thread in zip(tables, (trace.ops.thread, trace.ranges.thread), strict=True):
        rows = np.flatnonzero(trace.match_rows(table, vocabulary.COMPILE_PHASE))
        rows = rows[iv.overlap(table.start_ns[rows], table.end_ns[rows], window) > 0]
        starts.append(table.start_ns[rows])
        ends.append(table.end_ns[rows])
        threads.append(thread[rows])
        whole = rows[np.argsort(-table.dur_ns[rows], kind="stable")][:1]
        asked += find_locations(trace, thread[whole], table.start_ns[whole]) if len(whole) else []
    compiling = iv.intersect(iv.union(np.concatenate(starts), np.concatenate(ends)), window)
    edit = None
    if rank.device_kind == "gpu":
        edit = remove_cpu_time(np.concatenate(threads), (np.concatenate(starts), np.concatenate(ends)), window)
        idle = iv.union_of(part for name, part in rank.account.parts.items() if name.startswith("idle_"))
        compiling = iv.intersect(compiling, idle)
    hit = iv.overlap(steady[:, 0], steady[:, 1], compiling) > 0
    return Compiling(
        cost_ns=rank.per_step(iv.total(compiling)),
        steps=int(hit.sum()),
        of_steps=len(steady),
        claim=compiling,
        ids=_compile_ids(rank, window),
        place=most_common_location(asked),
        edit=edit,
    )


def _compile_ids(rank: Rank, window: Intervals) -> tuple[str, ...]:
    ranges, strings = rank.trace.ranges, rank.trace.strings
    in_window = iv.contains(window, ranges.start_ns)
    rows = np.flatnonzero(rank.trace.match_rows(ranges, vocabulary.COMPILE_DATA) & in_window)
    found = (vocabulary.compile_id(strings[code]) for code in ranges.name[rows].tolist())
    return tuple(dict.fromkeys(name for name in found if name))


def _in_facts(rank: Rank, captured: Mapping[str, Any]) -> Compiling:
    """Compiling in the base window, whose steps ran without a profiler right before the trace."""
    base = captured_part(captured_part(captured, "windows"), "base")
    steps = len(captured_steps(rank.facts, "base"))
    spent, frames = base.get("ns"), base.get("frames")
    if not isinstance(spent, int) or not isinstance(frames, int) or not steps:
        return Compiling(0, 0, steps, EMPTY)
    return Compiling(min(spent // steps, rank.per_step(rank.window_ns)), min(frames, steps), steps, EMPTY)


def _regions(rank: Rank) -> float | None:
    """Calls of compiled code a step: more than one for one model means that its graph is broken."""
    ops = rank.trace.ops
    calls = int((rank.trace.match_rows(ops, vocabulary.COMPILED_REGION) & iv.contains(rank.window, ops.start_ns)).sum())
    return round(calls / rank.steps.count, 1) if calls and rank.steps.count else None
