"""PD102: the CPU waits for the GPU, and then the GPU for the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._blocking_calls import (
    PAGEABLE,
    BlockingCalls,
    advise_on_cause,
    find_blocking_calls,
    name_cause,
)
from perfdoctor.analyzers._engine_gaps import find_engine_gaps
from perfdoctor.analyzers._host_made_tensors import advise_if_made_on_host
from perfdoctor.rules import (
    Advice,
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
    format_frequency,
    frozen_dataclass,
    remove_waits,
)
from perfdoctor.rules import intervals as iv

# Lines are looked up for so many calls, for time's sake: these show which lines there are.
_MAX_CALLS = 4096
# What happens in one of four steps or less is done "every N steps" already.
_MIN_STEPS_BETWEEN = 4
# So many kinds of waits are named in a title.
_MAX_KINDS = 3


@frozen_dataclass(eq=False)
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
    """A call in the step waits until the GPU's queue is empty; afterwards the GPU waits for new work."""

    rule = "PD102"
    name = "host-device-sync"
    needs = frozenset({"gpu_items", "launches"})
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each line whose waits cost at least `min_share` of the step, and one for the rest together."""
        others = []
        for waits in _group_by_line(rank, find_blocking_calls(rank)):
            if _is_occasional(rank, waits) or not len(waits.idle):
                continue
            if self._is_costly(rank, waits):
                yield self._report(rank, waits)
            elif waits.cause != PAGEABLE:  # PD105 and PD106 report such copies
                others.append(waits)
        if len(others) > 1:
            together = _join(others)
            if self._is_costly(rank, together):
                yield self._report_together(rank, together, others)

    def _is_costly(self, rank: Rank, waits: WaitsAtLine) -> bool:
        """Whether waits cost at least `min_share`: right behind them, or by the replay without them."""
        if self.exceeds_min_share(rank, rank.per_step(iv.total(waits.idle))):
            return True
        if not self.exceeds_min_share(rank, rank.per_step(iv.total(waits.idle) + waits.blocked_ns)):
            return False  # so little cannot drain more than that, and a replay takes its time
        cost_ns = rank.counterfactual_cost_ns(remove_waits(CallRows(rank.trace.calls, waits.calls)))
        return cost_ns is not None and self.exceeds_min_share(rank, cost_ns)

    def _report(self, rank: Rank, waits: WaitsAtLine) -> Finding:
        location = waits.location or rank.places.line_in(waits.idle)
        where = f" at {location.short}" if location else ""
        return self._finding_of(
            rank,
            waits,
            title=f"{name_cause(waits.cause)}{where} waits for the GPU {format_frequency(rank, waits.count)}, "
            "and then the GPU waits for the next launch",
            advice=_advise_on_copies(rank, waits) or advise_on_cause(rank, waits.cause),
            location=location,
        )

    def _report_together(self, rank: Rank, together: WaitsAtLine, parts: Sequence[WaitsAtLine]) -> Finding:
        """The finding on waits of which each costs little while the others remain."""
        counts: Counter[str] = Counter()
        for waits in parts:
            counts[name_cause(waits.cause)] += waits.count
        named = ", ".join(_lowercase_first(name) for name, _ in counts.most_common(_MAX_KINDS))
        advice = advise_on_cause(rank, together.cause)
        sentence = (
            "Remove these waits together: while some remain, each of the others costs little. The most frequent first: "
        )
        return self._finding_of(
            rank,
            together,
            title=f"The CPU waits for the GPU {format_frequency(rank, together.count)}, by {named}, "
            "and then the GPU waits for the next launch",
            advice=advice._replace(sentence=sentence + advice.sentence),
            location=together.location,
        )

    def _finding_of(
        self, rank: Rank, waits: WaitsAtLine, *, title: str, advice: Advice, location: SourceLocation | None
    ) -> Finding:
        cost_ns = rank.per_step(iv.total(waits.idle))
        return self.finding(
            rank,
            title=title,
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(waits.idle),
            edit=remove_waits(CallRows(rank.trace.calls, waits.calls)),
            confidence=0.8,
            location=location,
            evidence=_evidence(rank, waits, cost_ns),
            subject=waits.cause,
        )


def _advise_on_copies(rank: Rank, waits: WaitsAtLine) -> Advice | None:
    """What to do about waits in copies of tensors that need none; None for all other waits."""
    if waits.cause != PAGEABLE:
        return None
    calls = rank.trace.calls
    return advise_if_made_on_host(rank, iv.union(calls.start_ns[waits.calls], calls.end_ns[waits.calls]))


def _lowercase_first(kind: str) -> str:
    """The name of a cause as it stands inside a sentence."""
    first_word = kind.partition(" ")[0]
    return kind[0].lower() + kind[1:] if first_word.isalpha() and first_word.istitle() else kind


def _join(parts: Sequence[WaitsAtLine]) -> WaitsAtLine:
    """The waits of several lines as one; cause, line and op are those of the most frequent."""
    largest = max(parts, key=lambda waits: (waits.count, waits.cause))
    return replace(
        largest,
        calls=np.concatenate([waits.calls for waits in parts]),
        count=sum(waits.count for waits in parts),
        step_count=max(waits.step_count for waits in parts),
        blocked_ns=sum(waits.blocked_ns for waits in parts),
        idle=iv.union_of(waits.idle for waits in parts),
    )


def _group_by_line(rank: Rank, blocking: BlockingCalls) -> Iterator[WaitsAtLine]:
    """The waits of the window by cause and, where the trace has them, by line."""
    if not len(blocking):
        return
    calls = rank.trace.calls
    some = blocking.call[:_MAX_CALLS]
    lines = rank.places.lines_at(calls.thread[some], calls.start_ns[some])
    lines += [None] * (len(blocking) - len(lines))
    groups: dict[tuple[str, SourceLocation | None], list[int]] = {}
    gaps = find_engine_gaps(rank)  # PD801 reports the waits of an engine between its passes
    of_engine = set() if gaps is None else set(gaps.waits.index.tolist())
    for row, key in enumerate(zip(blocking.cause, lines, strict=True)):
        if int(blocking.call[row]) not in of_engine:
            groups.setdefault(key, []).append(row)
    for (cause, location), rows in groups.items():
        yield _sum_up_waits(rank, blocking, cause, location, np.array(rows))


def _sum_up_waits(
    rank: Rank, blocking: BlockingCalls, cause: str, location: SourceLocation | None, rows: Int64Array
) -> WaitsAtLine:
    trace, calls = rank.trace, blocking.call[rows]
    parts = rank.account.parts
    idle = rank.starvation.time_after_syncs(calls)
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
        idle=iv.intersect(idle, iv.union_of((parts["idle_sync"], parts["idle_launch"]))),
    )


def _is_occasional(rank: Rank, waits: WaitsAtLine) -> bool:
    """Whether the waits happen every N steps only, as logging should."""
    return rank.steps.count >= _MIN_STEPS_BETWEEN and _MIN_STEPS_BETWEEN * waits.step_count <= rank.steps.count


def _evidence(rank: Rank, waits: WaitsAtLine, cost_ns: int) -> tuple[Evidence, ...]:
    trace = rank.trace
    steps = max(rank.steps.count, 1)
    kinds = sorted(trace.strings[code] for code in set(trace.calls.name[waits.calls].tolist()))
    return (
        Evidence("waits per {unit}", round(waits.count / steps, 1), "count"),
        Evidence("CPU blocked per {unit}", rank.per_step(waits.blocked_ns), "ns"),
        Evidence("GPU idle after it per {unit}", cost_ns, "ns"),
        Evidence(f"calls of {waits.op} per {{unit}}", round(_count_ops(rank, waits.op) / steps, 1), "count"),
        Evidence("calls", ", ".join(kinds[:4])),
    )


def _count_ops(rank: Rank, name: str | None) -> int:
    """How many ops of a name begin in the window, without those directly inside another one of that name."""
    if name is None:
        return 0
    ops, parent = rank.ops.called(name), rank.trace.ops.parent
    return len(ops.where((parent < 0) | ~ops.mask[parent]).in_steps())
