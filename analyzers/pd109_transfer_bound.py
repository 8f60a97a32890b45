"""PD109: the GPU copies, and computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._host_made_tensors import select_host_made_tensors
from perfdoctor.analyzers._pd109_copies import (
    COMPILED,
    MANY_SMALL,
    PACKED,
    UNKNOWN,
    WITHIN,
    CopyGroup,
    advice_for,
    find_purpose,
    group_copies,
    is_sent_back,
)
from perfdoctor.rules import (
    BoolArray,
    Claim,
    Edit,
    Evidence,
    Finding,
    GpuRows,
    Rank,
    RankAnalyzer,
    Saving,
    copy_kinds_of,
    copy_limit_bytes_per_s,
    format_bytes,
    host_copies,
    move_work,
    read_texts,
    remove_items,
    set_durations,
    traffic_kinds,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# PD106's `batch_bytes`: larger tensors are batches.
_MIB = 1 << 20
_WITHIN_GPU = frozenset({COMPILED, PACKED, MANY_SMALL, WITHIN})
_WAYS = {
    vocabulary.HTOD: "from the host",
    vocabulary.DTOH: "to the host",
    vocabulary.DTOD: "from device to device",
    vocabulary.PTOP: "between GPUs",
}
_MEMORY = {vocabulary.PAGEABLE: "pageable", vocabulary.PINNED: "pinned", vocabulary.HOST: "host, of an unknown kind"}


class TransferBound(RankAnalyzer):
    """The GPU spends its time on copies that nothing overlaps."""

    rule = "PD109"
    name = "transfer-bound"
    needs = frozenset({"gpu_items"})
    # min_share: of the window, as for slices that may not stay unsaid. Of 40 real recordings one has more than 5 % of
    # its time in such copies, 14 %.
    defaults = {"min_share": 0.05}
    references = (
        "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        "https://developer.nvidia.com/blog/how-overlap-data-transfers-cuda-cc/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each direction whose copies take at least `min_share` of the step with nothing computed."""
        exposed = rank.exposed_parts["memcpy"]
        if not self.exceeds_min_share(rank, rank.per_step(iv.total(exposed))):
            return
        wanted = rank.copies.mask & rank.in_window & ~_match_other_rules(rank)
        groups = group_copies(rank.kernel_classes, rank.steps, wanted, exposed, by_memory=False)
        sent_back = is_sent_back(groups)
        for group in groups:
            if self.exceeds_min_share(rank, rank.per_step(group.exposed_ns)):
                yield self._report(rank, group, find_purpose(rank, group, sent_back=sent_back))

    def _report(self, rank: Rank, group: CopyGroup, purpose: str) -> Finding:
        cost_ns = rank.per_step(group.exposed_ns)
        hidden_ns = _hideable_ns(rank, group)
        max_ns, edit = _best_edit(rank, group, purpose, hidden_ns)
        limit = copy_limit_bytes_per_s(group.direction, rank.facts, rank.device)
        size = "" if group.bytes is None else f", {format_bytes(group.bytes / max(rank.steps.count, 1), in_kb=False)}"
        return self.finding(
            rank,
            title=f"Copies {_WAYS.get(group.direction, 'of an unknown direction')} take {rank.share(cost_ns):.0%} of "
            f"the {rank.unit_name}, and nothing computes meanwhile: {_describe_count(rank, len(group))}{size} of "
            f"{read_texts('words')['copies'][purpose]}",
            cost_ns=cost_ns,
            saving=Saving(0, None, max_ns, "bounded"),
            advice=advice_for(rank, purpose, group, hidden_ns / max(group.exposed_ns, 1)),
            claim=Claim(group.exposed),
            edit=edit,
            confidence=0.5 if purpose == UNKNOWN else 0.7,
            location=rank.places.line_of_items(group.rows),
            evidence=(
                Evidence("achieved", _in_gb(group.bytes_per_s), "GB/s"),
                Evidence("large copies on this link or memory", _in_gb(limit), "GB/s"),
                Evidence("host memory", _MEMORY.get(group.host_memory)),
                Evidence("on the stream of the kernels", round(100 * group.on_kernel_stream_share, 1), "%"),
                Evidence("the same sizes each time", {True: "yes", False: "no", None: None}[group.repeats]),
                Evidence("exposed per {unit}", cost_ns, "ns"),
                Evidence("kernels that could run meanwhile, at most per {unit}", rank.per_step(hidden_ns), "ns")
                if purpose not in _WITHIN_GPU
                else Evidence("copies per {unit}", round(len(group) / max(rank.steps.count, 1), 1), "count"),
            ),
            subject=_WAYS.get(group.direction, "unknown"),
        )


def _match_other_rules(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a copy of which another rule speaks: PD102, PD105, PD106 or PD306."""
    trace, kinds = rank.trace, copy_kinds_of(rank.trace)
    linked = trace.gpu.call >= 0
    result: BoolArray = (kinds.host_memory == vocabulary.PAGEABLE) & kinds.with_host & linked
    result |= rank.traffic.match_rows(traffic_kinds.COPY) & ~rank.traffic.is_compiled
    from_host = kinds.matches(vocabulary.HTOD, vocabulary.HOST)
    if from_host.any():
        copies, by_factory = select_host_made_tensors(
            trace, rank.steps, rank.loader_waits.intervals, host_copies(trace, rank.window, from_host), _MIB
        )
        result[copies.rows[by_factory | (trace.gpu.bytes[copies.rows] < _MIB)]] = True
    return result


def _hideable_ns(rank: Rank, group: CopyGroup) -> int:
    """How much of the exposed time of some copies kernels can hide at most: those that no such copy overlaps yet."""
    gpu = rank.trace.gpu
    kernels = rank.kernels.of_class(lambda kernel: kernel.category != "communication").time
    copying = iv.union(gpu.start_ns[group.rows], gpu.end_ns[group.rows])
    return min(group.exposed_ns, iv.total(iv.subtract(kernels, copying)))


def _best_edit(rank: Rank, group: CopyGroup, purpose: str, hidden_ns: int) -> tuple[int, Edit]:
    """The most that the fix saves, in ns a step, and its edit.

    Copies within the device can vanish. So can others of which kernels hide less than half: what stays on the device,
    or is stored in fewer bits, needs no copy. The rest still has to be copied, on a stream of its own.
    """
    gpu = rank.trace.gpu
    rows = GpuRows(gpu, group.rows)
    if purpose in _WITHIN_GPU or 2 * hidden_ns < group.exposed_ns:
        return rank.per_step(group.exposed_ns), remove_items(rank.trace, rows)
    copying = iv.union(gpu.start_ns[group.rows], gpu.end_ns[group.rows])
    busy_ns, way = rank.per_step(iv.total(iv.intersect(copying, rank.window))), _WAYS.get(group.direction, "unknown")
    return rank.per_step(hidden_ns), move_work(set_durations(rows, 0.0), f"copies {way}", busy_ns)


def _in_gb(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else round(bytes_per_s / 1e9, 2)


def _describe_count(rank: Rank, copies: int) -> str:
    """How often there is a copy: "3 a step", "one every 2 steps"."""
    steps = rank.steps.count
    if steps <= copies:
        return f"{round(copies / max(steps, 1)):,} {rank.per_unit}"
    every = round(steps / copies)
    return f"one every {every:,} steps" if every > 1 else "less than one a step"
