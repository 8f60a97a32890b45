"""PD102: the CPU waits for the GPU, and then the GPU for the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analyzers._pd102_advice import advice_for
from perfdoctor.analyzers._pd102_syncs import Syncs, find_syncs
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import remove_waits
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.rows import CallRows

# More calls than this are not told apart by line: the first ones show which lines there are.
_MOST_CALLS = 4096
# What happens in one of four steps or less is done "every N steps" already.
_EVERY_N = 4


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """What one line, or one kind of op where lines are not known, waited in the window.

    `idle` is the time in which the GPU had nothing to do after these waits, and because of them.
    """

    cause: str
    place: SourceLocation | None
    calls: Int32Array
    op: str | None
    count: int
    steps: int
    blocked_ns: int
    idle: Intervals


class HostDeviceSync(RankAnalyzer):
    """A call in the step waits until the GPU's queue is empty; afterwards the GPU waits for new work.

    What it finds:
        Synchronize calls and blocking copies inside the step after which the GPU ran dry, by what was written and by
        source line.

    Why it costs time:
        PyTorch launches kernels ahead of the GPU. `.item()`, `print(tensor)`, `nonzero`, a boolean mask, `if
        tensor:`, `.cpu()`, `torch.unique`, `repeat_interleave` without its output_size, clip_grad_norm_ with
        error_if_nonfinite and copies from pageable memory wait until the GPU is through; the lead is gone, and until
        the next launch arrives the GPU idles.

    How it is measured:
        The gap between the last GPU item before the call returned and the next item, but at most the time that the
        call had waited: only that much lead was lost. Time blocked and idle time are counted apart. Calls of one op
        (a copy and the wait for it) are one wait, an op that contains another (aten::is_nonzero contains aten::item)
        counts once, and on a CPU tensor it makes no call and does not count at all. The outermost op that tells names
        the wait; `print`, clipping and GradScaler show by the ops before it; a copy by its direction and memory.
        Harmless, and not reported: waits that found the GPU done, and what happens in one of four steps or less
        (logging every N steps).

    How to fix:
        Keep values on the GPU, read them every N steps, copy without blocking from pinned memory.

    When it is wrong:
        One wait a step that ends it costs little when the next step's launches are quick. Where the CPU is slower
        than the GPU anyway the idle time comes back as launch-bound time: the saving is an upper bound.

    Needs:
        Kernels and their launches. Source lines with Python frames (with_stack=True) or from `perfdoctor run`.

    References:
        PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    rule: ClassVar[str] = "PD102"
    name: ClassVar[str] = "host-device-sync"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each line whose waits cost at least `min_share` of the step."""
        for waits in _by_line(rank, find_syncs(rank)):
            cost = rank.per_step(iv.total(waits.idle))
            if self.exceeds_min_share(rank, cost) and not _now_and_then(rank, waits):
                yield self._finding(rank, waits, cost)

    def _finding(self, rank: Rank, waits: Waits, cost: int) -> Finding:
        advice = advice_for(waits.cause)
        place = waits.place or (rank.locations.of_op(waits.op) if waits.op else None)
        where = f" at {place.short}" if place else ""
        return self.finding(
            rank,
            title=f"{advice.what}{where} waits for the GPU {_times(rank, waits.count)}, "
            "and then the GPU waits for the next launch",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=advice.advice,
            fix=advice.fix or None,
            claim=Claim(waits.idle),
            edit=remove_waits(CallRows(rank.trace.calls, waits.calls)),
            confidence=0.8,
            location=place,
            evidence=_evidence(rank, waits, cost),
            subject=waits.cause,
        )


def _by_line(rank: Rank, syncs: Syncs) -> Iterator[Waits]:
    """The waits of the window by cause and, where the trace has them, by line."""
    if not len(syncs):
        return
    calls = rank.trace.calls
    some = syncs.call[:_MOST_CALLS]
    lines = rank.locations.at(calls.thread[some], calls.start_ns[some])
    lines += [None] * (len(syncs) - len(lines))
    groups: dict[tuple[str, SourceLocation | None], list[int]] = {}
    for row, key in enumerate(zip(syncs.cause, lines, strict=True)):
        groups.setdefault(key, []).append(row)
    for (cause, place), rows in groups.items():
        yield _waits(rank, syncs, cause, place, np.array(rows))


def _waits(rank: Rank, syncs: Syncs, cause: str, place: SourceLocation | None, rows: Int64Array) -> Waits:
    trace, gaps, calls = rank.trace, rank.gaps, syncs.call[rows]
    mine = np.zeros(len(trace.calls) + 1, bool)
    mine[calls] = True
    of_mine = (gaps.sync_idle_end_ns > gaps.start_ns) & mine[gaps.sync]
    after = iv.union(gaps.start_ns[of_mine], gaps.sync_idle_end_ns[of_mine])
    begun = trace.calls.start_ns[calls]
    ops = Counter(trace.text(int(trace.ops.name[op])) for op in syncs.op[rows] if op >= 0)
    return Waits(
        cause=cause,
        place=place,
        calls=calls,
        op=ops.most_common(1)[0][0] if ops else None,
        count=len(set(syncs.wait[rows].tolist())),
        steps=len(set(np.searchsorted(rank.steps.intervals[:, 0], begun, side="right").tolist())),
        blocked_ns=iv.total(iv.union(begun, trace.calls.end_ns[calls])),
        idle=iv.intersect(after, rank.account.parts["idle_sync"]),
    )


def _now_and_then(rank: Rank, waits: Waits) -> bool:
    """Whether it happens every N steps only, as logging should."""
    return rank.steps.count >= _EVERY_N and _EVERY_N * waits.steps <= rank.steps.count


def _times(rank: Rank, count: int) -> str:
    a_step = count / rank.steps.count if rank.steps.count else count
    often = "once" if round(a_step, 1) == 1 else f"{a_step:.3g} times"
    return f"{often} a step" if rank.steps.count else often


def _evidence(rank: Rank, waits: Waits, cost: int) -> tuple[Evidence, ...]:
    trace = rank.trace
    steps = max(rank.steps.count, 1)
    kinds = sorted(trace.strings[code] for code in set(trace.calls.name[waits.calls].tolist()))
    made = _of_name(rank, waits.op)
    return (
        Evidence("waits per step", round(waits.count / steps, 1), "count"),
        Evidence("CPU blocked per step", rank.per_step(waits.blocked_ns), "ns"),
        Evidence("GPU idle after it per step", cost, "ns"),
        Evidence(f"calls of {waits.op} per step", round(int(made.sum()) / steps, 1), "count"),
        Evidence("calls", ", ".join(kinds[:4])),
    )


def _of_name(rank: Rank, op: str | None) -> BoolArray:
    """The ops of a name in the window, those inside another of the same name left out."""
    ops, strings = rank.trace.ops, rank.trace.strings
    if op is None:
        return np.zeros(0, bool)
    same = ops.name == strings.index(op)
    nested = (ops.parent >= 0) & same[ops.parent]
    result: BoolArray = same & ~nested & iv.contains(rank.window, ops.start_ns)
    return result
