"""PD105: copies from or to pageable memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._host_made_tensors import select_host_made_tensors
from perfdoctor.rules import (
    Advice,
    CallRows,
    Claim,
    Edit,
    Evidence,
    Finding,
    FloatArray,
    GpuRows,
    HostCopies,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    advise,
    copy_kinds_of,
    format_bytes,
    host_copies,
    pinned_bytes_per_s,
    remove_blocking,
    set_durations,
    time_lost_by_copies,
    vocabulary,
)
from perfdoctor.rules import intervals as iv


class PageableCopy(RankAnalyzer):
    """The step copies from or to memory that the driver may page out, and waits for it."""

    rule = "PD105"
    name = "pageable-copy"
    needs = frozenset({"gpu_items", "launches"})
    # min_share: a low finding's worth. min_bytes: up to 64 KB the runtime copies into its buffer and
    # returns at once (CUDA, "API synchronization behavior"); what waits for such small values is PD102's or PD106's.
    defaults = {"min_share": 0.01, "min_bytes": 1 << 16}
    references = (
        "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        "https://developer.nvidia.com/blog/how-optimize-data-transfers-cuda-cc/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each direction and line whose copies cost at least `min_share` of the step."""
        kinds = copy_kinds_of(rank.trace)
        for direction in (vocabulary.HTOD, vocabulary.DTOH):
            pageable = host_copies(rank.trace, rank.window, kinds.matches(direction, vocabulary.PAGEABLE))
            large = pageable.select(rank.trace.gpu.bytes[pageable.rows] > self.settings["min_bytes"])
            host_made, by_factory = select_host_made_tensors(
                rank.trace, rank.steps, rank.loader_waits.intervals, large, self.settings["min_bytes"]
            )
            # What could have been made on the device needs no pinning: PD106 reports it.
            copies = large.select(~np.isin(large.rows, host_made.rows[by_factory]))
            for location, at_line in copies.group_by(rank.places.lines_of_items(copies.rows)):
                yield from self._check_copies(rank, at_line, location, to_device=direction == vocabulary.HTOD)

    def _check_copies(
        self, rank: Rank, copies: HostCopies, location: SourceLocation | None, *, to_device: bool
    ) -> Iterator[Finding]:
        gpu = rank.trace.gpu
        call_ns = rank.trace.calls.start_ns[copies.calls]
        lead_ns = copies.resume_ns - call_ns if to_device else gpu.dur_ns[copies.rows]
        lost = time_lost_by_copies(rank.trace, rank.exposed_parts, copies, lead_ns)
        cost_ns = rank.per_step(iv.total(lost))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        size_bytes, copy_ns = int(gpu.bytes[copies.rows].sum()), int(gpu.dur_ns[copies.rows].sum())
        bytes_per_ns, pinned = size_bytes / max(copy_ns, 1), pinned_bytes_per_s(rank.facts, rank.device)
        exposed = iv.intersect(rank.time_in_window(copies.rows), rank.exposed_parts["memcpy"])
        exposed_ns = rank.per_step(iv.total(exposed))
        expected_ns = None if pinned is None else round(exposed_ns * max(0.0, 1 - bytes_per_ns * 1e9 / pinned))
        size = gpu.bytes[copies.rows]
        pinned_ns = np.full(len(copies), np.nan) if pinned is None else size / pinned * 1e9
        steps = max(rank.steps.count, 1)
        yield self.finding(
            rank,
            title=f"{format_bytes(size_bytes / steps, in_kb=False)}{' a step' if rank.steps.count else ''} are copied "
            f"{'from' if to_device else 'to'} pageable memory{f' at {location.short}' if location else ''}",
            cost_ns=cost_ns,
            saving=Saving(0, expected_ns, cost_ns, "bounded"),
            advice=_advise(rank, to_device=to_device),
            claim=Claim(lost),
            edit=_pin(rank, copies, pinned_ns, to_device=to_device),
            confidence=0.8,
            location=location,
            evidence=(
                Evidence("copies per {unit}", round(len(copies) / steps, 1), "count"),
                Evidence("CPU blocked per {unit}", rank.per_step(int((copies.resume_ns - call_ns).sum())), "ns"),
                Evidence("only copying, per {unit}", exposed_ns, "ns"),
                Evidence("achieved", round(bytes_per_ns, 2), "GB/s"),
                Evidence("pinned copies on this link", None if pinned is None else round(pinned / 1e9, 1), "GB/s"),
                Evidence("pin_memory, as captured", _captured_pinning(rank)),
            ),
            subject="to device" if to_device else "to host",
        )


def _pin(rank: Rank, copies: HostCopies, pinned_ns: FloatArray, *, to_device: bool) -> Edit:
    """What pinned memory changes: the CPU goes on at once, and as expected the copies take as long as pinned ones.

    A result that is needed at once is waited for all the same: at least its copy is faster.
    """
    unblocked = remove_blocking(CallRows(rank.trace.calls, copies.calls), copies.resume_ns)
    faster = set_durations(GpuRows(rank.trace.gpu, copies.rows), pinned_ns, is_upper_bound=False)
    return replace(unblocked | faster, at_least=unblocked if to_device else faster)


def _captured_pinning(rank: Rank) -> str | None:
    """Whether the captured loaders pin their batches, "yes" or "no"; None when nobody knows or they differ."""
    settings = {loader.pin_memory for loader in rank.facts.loaders}
    return "yes" if settings == {True} else "no" if settings == {False} else None


def _advise(rank: Rank, *, to_device: bool) -> Advice:
    if not to_device:
        return Advice(
            "Copy into a pinned buffer without blocking, and read it once an event says that it is there.",
            "buffer = torch.empty_like(x, device='cpu', pin_memory=True); buffer.copy_(x, non_blocking=True)",
            "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        )
    situation = "pageable copies to the device"
    if _captured_pinning(rank) == "yes":
        situation += ", beside a DataLoader that pins"
    elif len(rank.loader_waits) or rank.facts.loaders:
        situation += ", beside a DataLoader"
    return advise(situation, rank.context)
