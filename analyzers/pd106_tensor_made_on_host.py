"""PD106: a tensor is made on the host in every step, and copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.host.host_copies import HostCopies, group_by_location, host_copies, time_lost_by_copies
from perfdoctor.analysis.host.host_made_tensors import copy_bytes, select_host_made_tensors
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import remove_blocking, remove_items
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.rows import CallRows, GpuRows
from perfdoctor.trace.vocabulary import HOST, HTOD, PAGEABLE

_FREE = "Make it where it is used, with device=: nothing has to be copied, and the CPU does not wait."
_VALUES = (
    "Make it once, before the loop, or use an op that takes numbers. torch.tensor(..., device=...) does not help: it "
    "makes the tensor on the CPU and copies it, too."
)


class TensorMadeOnHost(RankAnalyzer):
    """The step makes a tensor on the CPU and copies it to the GPU, where it could have been made.

    What it finds:
        Copies to the device right after an op that made the tensor on the CPU: zeros, arange, full, rand and their
        like, whatever their size; and small ones of values from Python or NumPy (torch.tensor, torch.as_tensor,
        torch.from_numpy, an index that is a list).

    Why it costs time:
        A copy from pageable memory ends with a wait until the GPU has done all that was launched before, however small
        the copy is: the CPU's lead is gone, and the GPU idles until the next launch.

    How it is measured:
        Idle GPU time from the beginning of the making op until the GPU has work again (after the copy returned at most
        as long as the CPU was in it), and GPU time that only the copy fills, by source line. A tensor that is copied
        first in a step, or together with a large one, is taken for the batch unless it was made out of nothing;
        whatever a DataLoader makes is.

    How to fix:
        Make it where it is used: torch.zeros(..., device=x.device). Values from Python: make the tensor once, before
        the loop, or use an op that takes numbers (torch.full, x[2:5] in place of x[[2, 3, 4]]).

    When it is wrong:
        Random numbers made on the CPU differ from those made on the GPU. Which op made a tensor is told by the order
        of ops on the thread: a tensor made on the CPU for something else, right before a copy, is taken for its maker.

    Needs:
        Kernels, launches and ops. Source lines with Python frames (with_stack=True) or from `perfdoctor run`.

    References:
        PyTorch Performance Tuning Guide, "Create tensors directly on the target device".
    """

    rule: ClassVar[str] = "PD106"
    name: ClassVar[str] = "tensor-made-on-host"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # min_share: a low finding's worth (contracts.md). batch_bytes: labels, masks and indices of the real traces are
    # under 64 KB, their batches 2 MB and more.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "batch_bytes": 1 << 20})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each maker and line whose copies cost at least `min_share` of the step."""
        # AMD's traces say "Host", whichever memory it was.
        wanted = copy_kinds_of(rank.trace).matches(HTOD, PAGEABLE, HOST)
        every = host_copies(rank.trace, rank.window, wanted)
        copies, factory = select_host_made_tensors(
            rank.trace, rank.steps, rank.loader_waits.intervals, every, self.settings["batch_bytes"]
        )
        small = copy_bytes(rank.trace, copies.rows) < self.settings["batch_bytes"]
        for free, wanted in ((True, factory), (False, small & ~factory)):
            for place, mine in group_by_location(rank.locations, copies.select(wanted)):
                yield from self._judge(rank, mine, place, free=free)

    def _judge(self, rank: Rank, copies: HostCopies, place: SourceLocation | None, *, free: bool) -> Iterator[Finding]:
        trace = rank.trace
        blocked_ns = copies.resume_ns - trace.calls.start_ns[copies.calls]
        claim = time_lost_by_copies(trace, rank.account.parts, copies, blocked_ns)
        cost = rank.per_step(iv.total(claim))
        if not self.exceeds_min_share(rank, cost):
            return
        names, counts = np.unique(trace.ops.name[copies.creator_op], return_counts=True)
        maker = trace.strings[names[np.argmax(counts)]] if free else "torch.tensor or from_numpy"
        size = trace.gpu.bytes[copies.rows]
        number = len(copies) / max(rank.steps.count, 1)
        yield self.finding(
            rank,
            title=f"Tensors are made on the CPU{f' at {place.short}' if place else ''} and copied to the GPU: "
            f"{number:.3g} a {rank.unit_name}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=_FREE if free else _VALUES,
            fix=f"torch.{maker.removeprefix('aten::')}(..., device=x.device)" if free else None,
            claim=Claim(claim),
            edit=remove_blocking(CallRows(trace.calls, copies.calls), copies.resume_ns)
            | remove_items(trace, GpuRows(trace.gpu, copies.rows)),
            confidence=0.8 if free else 0.7,
            location=place,
            evidence=(
                Evidence("made by", maker),
                Evidence("CPU blocked per step", rank.per_step(int(blocked_ns.sum())), "ns"),
                Evidence("bytes per step", rank.per_step(int(size.sum())) if (size >= 0).all() else None, "bytes"),
            ),
            subject="made of nothing" if free else "made of values",
        )
