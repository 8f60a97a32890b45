"""PD710: a request for memory failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._memory_of_rank import name_device
from perfdoctor.analyzers._pd710_changes import Change, bytes_left, possible_changes
from perfdoctor.rules import (
    FORWARD,
    Advice,
    AllocatorReplay,
    DeviceMemory,
    Evidence,
    Finding,
    OutOfMemoryFacts,
    Rank,
    RankAnalyzer,
    captured_location,
    format_bytes,
    slack_at,
)

_MAX_CHANGES = 3
_SNAPSHOTS = "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"
_FAQ = "https://docs.pytorch.org/docs/stable/notes/faq.html"


class OutOfMemory(RankAnalyzer):
    """The program asked for memory that it did not get."""

    rule = "PD710"
    name = "out-of-memory"
    needs = frozenset({"memory"})
    references = (_SNAPSHOTS, _FAQ)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each device on which a request failed."""
        for number, memory in enumerate(rank.memory):
            if memory.failed_request is not None:
                yield self._report(rank, number, memory, memory.failed_request)
        failed = rank.facts.memory.out_of_memory
        if failed.error and all(memory.failed_request is None for memory in rank.memory):
            yield self._report_captured(rank, failed)

    def _report(self, rank: Rank, number: int, memory: DeviceMemory, place: int) -> Finding:
        table, row, allocator = memory.trace.memory, memory.allocations.rows[place], rank.allocators[number]
        asked_bytes, allocated_bytes = int(table.requested_bytes[row]), int(table.allocated_bytes[row])
        location, op = memory.origin_of(place)
        free_bytes = None if memory.end is None else memory.end.free_bytes
        evidence = [Evidence("asked for", asked_bytes, "bytes")]
        if op is not None:
            evidence.append(Evidence("asked for by", op))
        reason = f"with {format_bytes(allocated_bytes)} allocated"
        if not memory.is_consistent:
            reason = "and what was recorded does not say why"
        else:
            evidence.append(Evidence("allocated then", allocated_bytes, "bytes"))
            slack_bytes = int(table.reserved_bytes[row]) - allocated_bytes
            evidence.append(Evidence("reserved and not allocated then", slack_bytes, "bytes"))
            if free_bytes is not None and asked_bytes <= free_bytes + slack_bytes:
                reason = f"though {format_bytes(free_bytes + slack_bytes)} were free in pieces"
            elif free_bytes is not None:
                missing_bytes = asked_bytes - free_bytes - slack_bytes
                evidence.append(Evidence("missing, had all that was free been one piece", missing_bytes, "bytes"))
        if free_bytes is not None:
            evidence.append(Evidence("free on the device", free_bytes, "bytes"))
        if memory.capacity_bytes is not None and table.reserved_bytes[row] > 0:
            others_bytes = memory.capacity_bytes - int(table.reserved_bytes[row]) - (free_bytes or 0)
            evidence.append(Evidence("outside of the allocator, or free", max(others_bytes, 0), "bytes"))
        evidence += _peaks_of_others(rank, number)
        advice, more = self._advise(rank, number, allocator, place)
        finding = self.finding(
            rank,
            title=f"Out of memory: no room for {format_bytes(asked_bytes)} on {name_device(memory)}, {reason}",
            advice=advice,
            location=location,
            evidence=(*evidence, *more),
            subject=name_device(memory),
        )
        return _put_first(rank, finding)

    def _report_captured(self, rank: Rank, failed: OutOfMemoryFacts) -> Finding:
        """What is known of a request that failed outside of what was recorded event by event."""
        asked = "what was asked for" if failed.requested_bytes is None else format_bytes(failed.requested_bytes)
        place = "the CPU" if failed.device is None else f"GPU {failed.device}"
        there = f", with {format_bytes(failed.rss_bytes)} of the process in RAM" if failed.rss_bytes else ""
        if failed.file is None:
            advice = Advice(
                "Use a smaller batch, or take away what fills the memory: what it was in the recorded steps is below.",
                None,
                _FAQ,
            )
        else:
            advice = Advice(
                "Look at the snapshot that was dumped then: it says why there was no room, and which changes make it.",
                f"perfdoctor analyze rank{rank.rank or 0}/{failed.file}",
                _SNAPSHOTS,
            )
        finding = self.finding(
            rank,
            title=f"Out of memory: no room for {asked} on {place}{there if failed.device is None else ''}",
            advice=advice,
            location=captured_location(failed.location),
            evidence=(
                Evidence("asked for", failed.requested_bytes, "bytes"),
                Evidence("free on the device", failed.free_bytes, "bytes"),
                Evidence("the process in RAM", failed.rss_bytes, "bytes"),
                Evidence("requests that failed", failed.times, "count"),
            ),
            subject=place,
        )
        return _put_first(rank, finding)

    def _advise(self, rank: Rank, number: int, allocator: AllocatorReplay, place: int) -> tuple[Advice, list[Evidence]]:
        memory = allocator.memory
        reason = allocator.distrust
        if reason is None and allocator.capacity_bytes is None:
            reason = "The recording does not say what was free on the device."
        elif reason is None and bytes_left(allocator, ()) is not None:
            reason = "The model of the allocator has room for it."
        if reason is not None:
            advice = Advice(
                "Record a snapshot and dump it when the error is raised: it says what was free in which pieces, and "
                "which changes make room.",
                "torch.cuda.memory._record_memory_history()   # at the start; and in `except torch.OutOfMemoryError`:\n"
                'torch.cuda.memory._dump_snapshot("snapshot.pickle")',
                _SNAPSHOTS,
            )
            return advice, [Evidence("why no change was tried", reason)]
        evidence = _pieces(allocator, place)
        changes = list(possible_changes(rank, number))
        passing, failing = list[Change](), list[Change]()
        for change in changes:
            left_bytes = bytes_left(allocator, [change])
            if left_bytes is None:
                failing.append(change)
                continue
            passing.append(change)
            evidence.append(Evidence("has room, replayed", f"{change.name}: {format_bytes(left_bytes)} are left"))
            if len(passing) == _MAX_CHANGES:
                break
        evidence += [Evidence("has no room, replayed", each.name) for each in failing]
        rest = (
            " The forward pass was not finished: it needs more than this."
            if memory.phases.phase[place] == FORWARD
            else " What would have come after it is not recorded."
        )
        return _advice_of(passing, changes, allocator, rest), evidence


def _put_first(rank: Rank, finding: Finding) -> Finding:
    """What ends the program comes before all that is slow, and before the fixes of which it names some."""
    return replace(finding, severity="high", order_key_ns=float(rank.mean_step_ns + 1))


def _advice_of(passing: list[Change], changes: list[Change], allocator: AllocatorReplay, rest: str) -> Advice:
    if passing:
        # That of a later way would stand alone where a report has room for a sentence or for code.
        code = passing[0].code
        return Advice(f"Make room for it: {'; or '.join(each.name for each in passing)}.{rest}", code, _FAQ)
    if bytes_left(allocator, changes) is not None:
        return Advice(
            f"Do several of the changes that are listed here: none of them alone makes room, and all do.{rest}",
            changes[0].code,
            _FAQ,
        )
    return Advice(
        f"Use a smaller batch, or share the model among more GPUs: no change that is known here makes room.{rest}",
        None,
        _FAQ,
    )


def _pieces(allocator: AllocatorReplay, place: int) -> list[Evidence]:
    """What was free in which pieces."""
    slack = slack_at(allocator, place)
    assert slack is not None
    state = allocator.state_at(place)
    free = [block.size for segment in state.segments for block in segment if block.is_mapped and not block.in_use]
    figures = (
        ("largest free block", max(free, default=0)),
        ("free for other streams", slack.other_streams_bytes),
        ("free in private pools", slack.private_pools_bytes),
    )
    return [Evidence(label, size, "bytes") for label, size in figures if size]


def _peaks_of_others(rank: Rank, number: int) -> list[Evidence]:
    others = [each for each in rank.memory if each is not rank.memory[number] and not each.is_cpu]
    return [
        Evidence(f"peak of {name_device(each)}", each.peak.allocated_bytes, "bytes")
        for each in others
        if each.peak is not None
    ]
