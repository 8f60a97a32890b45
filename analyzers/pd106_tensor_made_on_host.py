"""PD106: a tensor is made on the host in every step, and copied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._host_made_tensors import (
    TARGET_DEVICE,
    advise_on_factories,
    copy_bytes,
    find_factories_before,
    find_host_made,
    most_frequent_name,
)
from perfdoctor.rules import (
    Advice,
    CallRows,
    Claim,
    Evidence,
    Finding,
    GpuRows,
    HostCopies,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    format_per_step,
    remove_blocking,
    remove_items,
    time_lost_by_copies,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_ADVICE_ON_VALUES = Advice(
    "Make the tensor once, before the loop, or use an op that takes numbers. A device= in torch.tensor does not help: "
    "it makes the tensor on the CPU and copies it, too.",
    source=TARGET_DEVICE,
)


class TensorMadeOnHost(RankAnalyzer):
    """The step makes a tensor on the CPU and copies it to the GPU, where it could have been made."""

    rule = "PD106"
    name = "tensor-made-on-host"
    needs = frozenset({"work_items", "work_launches"})
    # min_share: a low finding's worth. batch_bytes: labels, masks and indices of the real traces are
    # under 64 KB, their batches 2 MB and more.
    defaults = {"min_share": 0.01, "batch_bytes": 1 << 20}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each kind of maker and line whose copies cost at least `min_share` of the step."""
        if rank.device_kind == "cpu":
            yield from self._check_cpu(rank)
            return
        copies, by_factory = find_host_made(rank, self.settings["batch_bytes"])
        is_small = copy_bytes(rank.trace, copies.rows) < self.settings["batch_bytes"]
        for factory, rows in ((True, by_factory), (False, is_small & ~by_factory)):
            made = copies.select(rows)
            for location, at_line in made.group_by(rank.places.lines_of_items(made.rows)):
                yield from self._check_copies(rank, at_line, location, factory=factory)

    def _check_cpu(self, rank: Rank) -> Iterator[Finding]:
        """One finding on a program of the CPU that makes tensors there and copies them to a GPU."""
        trace = rank.trace
        copies = np.flatnonzero(trace.match_rows(trace.calls, vocabulary.COPY_CALL) & (trace.calls.op >= 0))
        makers, copying = find_factories_before(trace, copies[iv.contains(rank.window, trace.calls.start_ns[copies])])
        made = ~iv.contains(rank.loader_waits.intervals, trace.ops.start_ns[makers])
        makers, copying = makers[made], copying[made]
        making, time = (
            iv.intersect(iv.union(trace.ops.start_ns[rows], trace.ops.end_ns[rows]), rank.window)
            for rows in (makers, np.append(makers, copying))
        )
        cost_ns, making_ns = rank.per_step(iv.total(time)), rank.per_step(iv.total(making))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        location = rank.places.line_of_ops(makers)
        yield self.finding(
            rank,
            title=_title(rank, location, len(makers)),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise_on_factories(rank, makers),
            claim=Claim(time),
            confidence=0.8,
            location=location,
            evidence=(
                Evidence("made by", most_frequent_name(trace, makers)),
                Evidence("time to make them, per {unit}", making_ns, "ns"),
                Evidence("time to copy them, per {unit}", cost_ns - making_ns, "ns"),
            ),
            subject="made of nothing",
        )

    def _check_copies(
        self, rank: Rank, copies: HostCopies, location: SourceLocation | None, *, factory: bool
    ) -> Iterator[Finding]:
        trace = rank.trace
        blocked_ns = copies.resume_ns - trace.calls.start_ns[copies.calls]
        lost = time_lost_by_copies(trace, rank.account.parts, copies, blocked_ns)
        cost_ns = rank.per_step(iv.total(lost))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        maker = most_frequent_name(trace, copies.creator_op) if factory else "torch.tensor or from_numpy"
        size_bytes = trace.gpu.bytes[copies.rows]
        yield self.finding(
            rank,
            title=_title(rank, location, len(copies)),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise_on_factories(rank, copies.creator_op) if factory else _ADVICE_ON_VALUES,
            claim=Claim(lost),
            edit=remove_blocking(CallRows(trace.calls, copies.calls), copies.resume_ns)
            | remove_items(trace, GpuRows(trace.gpu, copies.rows), is_upper_bound=False),
            confidence=0.8 if factory else 0.7,
            location=location,
            evidence=(
                Evidence("made by", maker),
                Evidence("CPU blocked per {unit}", rank.per_step(int(blocked_ns.sum())), "ns"),
                Evidence(
                    "bytes per {unit}",
                    rank.count_per_step(int(size_bytes.sum())) if (size_bytes >= 0).all() else None,
                    "bytes",
                ),
            ),
            subject="made of nothing" if factory else "made of values",
        )


def _title(rank: Rank, location: SourceLocation | None, tensors: int) -> str:
    place = f" at {location.short}" if location else ""
    return f"Tensors are made on the CPU{place} and copied to the GPU: {format_per_step(rank, tensors)}"
