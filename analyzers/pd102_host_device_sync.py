"""PD102: the CPU waits for the GPU, and then the GPU for the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._pd102_advice import advice_for
from perfdoctor.analyzers._pd102_blocking_calls import BlockingCalls, find_blocking_calls
from perfdoctor.rules import (
    CallRows,
    Claim,
    Evidence,
    Finding,
    Int32Array,
    Int64Array,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    remove_waits,
)
from perfdoctor.rules import intervals as iv

# Lines are looked up for so many calls, for time's sake: these show which lines there are.
_MOST_CALLS = 4096
# What happens in one of four steps or less is done "every N steps" already.
_MIN_STEPS_BETWEEN = 4


@dataclass(frozen=True, slots=True, eq=False)
class WaitsAtLine:
    """The waits of one line for one cause in the window; of one cause where lines are not known.

    Attributes:
        cause: What was written, see `BlockingCalls`.
        location: The line.
        calls: Rows of the blocking calls.
        op: The op that most of them are made in; None outside all ops.
        count: How many waits they are.
        step_count: In how many steps.
        blocked_ns: How long the CPU was in them.
        idle: When the GPU had nothing to do after these waits, and because of them.
    """

    cause: str
    location: SourceLocation | None
    calls: Int32Array
    op: str | None
    count: int
    step_count: int
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
        counts once, and on a CPU tensor it makes no call and does not count at all. The outermost op that shows the
        cause names the wait; `print`, clipping and GradScaler show by the ops before it; a copy by its direction and
        memory. Harmless, and not reported: waits that found the GPU done, and what happens in one of four steps or
        less (logging every N steps).

    How to fix:
        Keep values on the GPU, read them every N steps, copy without blocking from pinned memory.

    When it is wrong:
        One wait a step that ends it costs little when the next step's launches are quick. Where the CPU is slower
        than the GPU anyway the idle time comes back as launch-bound time: the saving is an upper bound.

    Needs:
        Kernels or copies, with launches. Source lines with Python frames (with_stack=True) or from `perfdoctor run`.

    References:
        PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    rule: ClassVar[str] = "PD102"
    name: ClassVar[str] = "host-device-sync"
    needs: ClassVar[frozenset[str]] = frozenset({"gpu_items", "launches"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each line whose waits cost at least `min_share` of the step."""
        for waits in _group_by_line(rank, find_blocking_calls(rank)):
            cost_ns = rank.per_step(iv.total(waits.idle))
            if self.exceeds_min_share(rank, cost_ns) and not _is_occasional(rank, waits):
                yield self._report(rank, waits, cost_ns)

    def _report(self, rank: Rank, waits: WaitsAtLine, cost_ns: int) -> Finding:
        advice = advice_for(waits.cause)
        location = waits.location or (rank.locations.of_op(waits.op) if waits.op else None)
        where = f" at {location.short}" if location else ""
        return self.finding(
            rank,
            title=f"{advice.code}{where} waits for the GPU {_format_frequency(rank, waits.count)}, "
            "and then the GPU waits for the next launch",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice.advice,
            fix=advice.fix or None,
            claim=Claim(waits.idle),
            edit=remove_waits(CallRows(rank.trace.calls, waits.calls)),
            confidence=0.8,
            location=location,
            evidence=_evidence(rank, waits, cost_ns),
            subject=waits.cause,
        )


def _group_by_line(rank: Rank, blocking: BlockingCalls) -> Iterator[WaitsAtLine]:
    """The waits of the window by cause and, where the trace has them, by line."""
    if not len(blocking):
        return
    calls = rank.trace.calls
    some = blocking.call[:_MOST_CALLS]
    lines = rank.locations.at(calls.thread[some], calls.start_ns[some])
    lines += [None] * (len(blocking) - len(lines))
    groups: dict[tuple[str, SourceLocation | None], list[int]] = {}
    for row, key in enumerate(zip(blocking.cause, lines, strict=True)):
        groups.setdefault(key, []).append(row)
    for (cause, location), rows in groups.items():
        yield _sum_up_waits(rank, blocking, cause, location, np.array(rows))


def _sum_up_waits(
    rank: Rank, blocking: BlockingCalls, cause: str, location: SourceLocation | None, rows: Int64Array
) -> WaitsAtLine:
    trace, gaps, calls = rank.trace, rank.gaps, blocking.call[rows]
    is_blocking = np.zeros(len(trace.calls) + 1, bool)  # the last entry is for gaps without a sync
    is_blocking[calls] = True
    after = (gaps.sync_idle_end_ns > gaps.start_ns) & is_blocking[gaps.sync]
    idle = iv.union(gaps.start_ns[after], gaps.sync_idle_end_ns[after])
    start_ns = trace.calls.start_ns[calls]
    ops = Counter(trace.text(int(trace.ops.name[op])) for op in blocking.op[rows] if op >= 0)
    return WaitsAtLine(
        cause=cause,
        location=location,
        calls=calls,
        op=ops.most_common(1)[0][0] if ops else None,
        count=len(set(blocking.wait[rows].tolist())),
        step_count=len(set(np.searchsorted(rank.steps.intervals[:, 0], start_ns, side="right").tolist())),
        blocked_ns=iv.total(iv.union(start_ns, trace.calls.end_ns[calls])),
        idle=iv.intersect(idle, rank.account.parts["idle_sync"]),
    )


def _is_occasional(rank: Rank, waits: WaitsAtLine) -> bool:
    """Whether the waits happen every N steps only, as logging should."""
    return rank.steps.count >= _MIN_STEPS_BETWEEN and _MIN_STEPS_BETWEEN * waits.step_count <= rank.steps.count


def _format_frequency(rank: Rank, count: int) -> str:
    per_step = count / rank.steps.count if rank.steps.count else count
    times = "once" if round(per_step, 1) == 1 else f"{per_step:.3g} times"
    return f"{times} a step" if rank.steps.count else times


def _evidence(rank: Rank, waits: WaitsAtLine, cost_ns: int) -> tuple[Evidence, ...]:
    trace = rank.trace
    steps = max(rank.steps.count, 1)
    kinds = sorted(trace.strings[code] for code in set(trace.calls.name[waits.calls].tolist()))
    return (
        Evidence("waits per step", round(waits.count / steps, 1), "count"),
        Evidence("CPU blocked per step", rank.per_step(waits.blocked_ns), "ns"),
        Evidence("GPU idle after it per step", cost_ns, "ns"),
        Evidence(f"calls of {waits.op} per step", round(_count_ops(rank, waits.op) / steps, 1), "count"),
        Evidence("calls", ", ".join(kinds[:4])),
    )


def _count_ops(rank: Rank, name: str | None) -> int:
    """How many ops of a name begin in the window, without those directly inside another one of that name."""
    if name is None:
        return 0
    ops, parent = rank.ops.called(name), rank.trace.ops.parent
    return len(ops.where((parent < 0) | ~ops.mask[parent]).in_steps())
