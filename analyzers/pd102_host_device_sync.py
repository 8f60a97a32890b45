"""PD102: the CPU waits for the GPU, and then the GPU for the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving, SourceLocation
from perfdoctor.diagnosis.idle import blocking_calls
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import place_of_calls, place_of_op
from perfdoctor.trace import intervals as iv
from perfdoctor.trace import nesting
from perfdoctor.trace.intervals import Intervals
from perfdoctor.trace.model import Int32Array

# What usually hides behind an op that waits, and what to write instead.
_COPY_ADVICE = "Copy from pinned memory without blocking; a copy back to the CPU belongs after the next step's launch."
_ADVICE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "aten::item": (
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "running_loss += loss.detach()              # instead of loss.item()",
        ),
        "aten::is_nonzero": (
            "`if tensor:` and `while tensor:` copy the value to the CPU: use torch.where, or decide every N steps.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
        ),
        "aten::nonzero": (
            "The CPU needs the size of the result: multiply by the mask, or use torch.where.",
            "loss = (loss * mask).sum() / mask.sum()    # instead of loss[mask].mean()",
        ),
        "aten::index": (
            "For a boolean index the CPU needs the number of hits: multiply by the mask, or use torch.where.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
        ),
        "aten::to": (
            _COPY_ADVICE,
            "x = x.to(device, non_blocking=True)        # with DataLoader(..., pin_memory=True)",
        ),
        "aten::copy_": (
            _COPY_ADVICE,
            "target.copy_(source, non_blocking=True)    # source in pinned memory",
        ),
        "aten::unique": (
            "The CPU needs the size of the result: do it in the data set, or every N steps.",
            "",
        ),
        "aten::repeat_interleave": (
            "Without output_size the size of the result is read from the GPU.",
            "x.repeat_interleave(n, output_size=total)",
        ),
    }
)
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "aten::_local_scalar_dense": "aten::item",
        "aten::_to_copy": "aten::to",
        "aten::cpu": "aten::to",
        "aten::masked_select": "aten::index",
        "aten::index_put_": "aten::index",
        "aten::_index_put_impl_": "aten::index",
        "aten::_unique2": "aten::unique",
        "aten::unique_consecutive": "aten::unique",
        "aten::unique_dim": "aten::unique",
    }
)
_DEFAULT_ADVICE = "Remove the wait from the step, or do it every N steps."


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """The blocking calls of one outermost op (or of none) in the window, and the idle time that followed them."""

    label: str
    calls: Int32Array
    blocked_ns: int
    idle: Intervals


class HostDeviceSync(RankAnalyzer):
    """A call in the step waits until the GPU's queue is empty; afterwards the GPU waits for new work.

    What it finds:
        Synchronize calls and blocking copies inside the step after which the GPU ran dry, by the outermost op that
        made them.

    Why it costs time:
        PyTorch launches kernels ahead of the GPU. `.item()`, `print(tensor)`, `nonzero`, a boolean mask, `if
        tensor:`, `.cpu()` and copies from pageable memory wait until the GPU is through; the lead is gone, and until
        the next launch arrives the GPU idles.

    How it is measured:
        The gap between the last GPU item before the call returned and the next item, but at most the time that the
        call had waited: only
        that much lead was lost. Time blocked and idle time are counted apart. An op that contains another (aten::item
        contains
        aten::_local_scalar_dense) counts once, and on a CPU tensor it makes no call and does not count at all.

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

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """A finding for each op whose waits cost at least `min_share` of the step."""
        for waits in _by_outermost_op(rank):
            cost = rank.per_step(iv.total(waits.idle))
            if (rank.share(cost) or 0) >= self.settings["min_share"]:
                yield self._finding(rank, waits, cost)

    def _finding(self, rank: RankRun, waits: Waits, cost: int) -> Finding:
        place = place_of_calls(rank, waits.calls) or (place_of_op(rank, waits.label) if "::" in waits.label else None)
        advice, fix = _ADVICE.get(_SYNONYMS.get(waits.label, waits.label), (_DEFAULT_ADVICE, ""))
        return self.finding(
            rank,
            title=_title(waits, place),
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=advice,
            fix=fix or None,
            claim=Claim(waits.idle),
            confidence=0.8,
            location=place,
            evidence=_evidence(rank, waits, cost),
            subject=waits.label,
        )


def _by_outermost_op(rank: RankRun) -> Iterator[Waits]:
    """The window's blocking calls after which the queue was empty, grouped by the outermost op around them."""
    trace, gaps = rank.trace, rank.gaps
    calls = np.flatnonzero(blocking_calls(trace) & iv.contains(rank.window, trace.calls.start_ns)).astype(np.int32)
    if not len(calls):
        return
    top = nesting.outermost(trace.ops.parent, trace.calls.op[calls]) if len(trace.ops) else trace.calls.op[calls]
    names = np.where(top >= 0, trace.ops.name[top] if len(trace.ops) else -1, trace.calls.name[calls])
    drained = gaps.sync_end_ns > gaps.start_ns
    for code in np.unique(names).tolist():
        mine = calls[names == code]
        of_mine = drained & np.isin(gaps.sync, mine)
        after = iv.union(gaps.start_ns[of_mine], gaps.sync_end_ns[of_mine])
        yield Waits(
            label=trace.strings[code],
            calls=mine,
            blocked_ns=int(trace.calls.dur_ns[mine].sum()),
            idle=iv.intersect(after, rank.account.parts["idle_sync"]),
        )


def _title(waits: Waits, place: SourceLocation | None) -> str:
    where = f" at {place.short}" if place else ""
    return f"{waits.label}{where} waits for the GPU, and then the GPU waits for the next launch"


def _evidence(rank: RankRun, waits: Waits, cost: int) -> tuple[Evidence, ...]:
    trace = rank.trace
    kinds = sorted(trace.strings[code] for code in np.unique(trace.calls.name[waits.calls]).tolist())
    return (
        Evidence("waits per step", round(len(waits.calls) / max(rank.steps.count, 1), 1), "count"),
        Evidence("CPU blocked per step", rank.per_step(waits.blocked_ns), "ns"),
        Evidence("GPU idle after it per step", cost, "ns"),
        Evidence("calls", ", ".join(kinds[:4])),
    )
