"""The peak of each device's memory before and after, in bytes, by what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.report.memory_summary import MIN_SHOWN_BYTES
from perfdoctor.value_limits import Signed


@frozen_dataclass
class SeenPeak:
    """The peak of one device in a recording; the device is None for the CPU, the rank where there is only one."""

    rank: int | None
    device: int | None
    allocated_bytes: int
    by_category: Mapping[str, int]


@frozen_dataclass
class CategoryChange:
    """What a part of the account of the peak holds before and after."""

    SCHEMA: ClassVar[tuple[str, ...]] = ("category", "before_bytes", "after_bytes", "difference_bytes")

    category: Annotated[str, ("enum", CATEGORIES)]
    before_bytes: int
    after_bytes: int

    @property
    def difference_bytes(self) -> Signed:
        """After less before."""
        return self.after_bytes - self.before_bytes


@frozen_dataclass
class MemoryChange:
    """The peak of one device's memory before and after.

    Attributes:
        rank: The rank; null where the job has only one.
        device: The number of the GPU; null for the CPU.
        before_bytes, after_bytes: What is allocated at the peak; of several recordings of a side at the highest one.
        by_category: What it is for; these add up to both.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("rank", "device", "before_bytes", "after_bytes", "difference_bytes", "by_category"),
    )

    rank: int | None
    device: int | None
    before_bytes: int
    after_bytes: int
    by_category: tuple[CategoryChange, ...]

    @property
    def difference_bytes(self) -> Signed:
        """After less before."""
        return self.after_bytes - self.before_bytes


def peaks_of_json(memory: Sequence[Mapping[str, Any]]) -> tuple[SeenPeak, ...]:
    """The peaks that a report.json knows and tells; a damaged one raises as `recording_of_json` does."""
    is_fleet = len({each["rank"] for each in memory}) > 1
    return tuple(
        SeenPeak(
            each["rank"] if is_fleet else None,
            each["device"],
            int(each["peak"]["allocated_bytes"]),
            {name: int(each["peak"]["by_category"][name]) for name in CATEGORIES},
        )
        for each in memory
        if each["peak"] is not None and each["peak"]["allocated_bytes"] >= MIN_SHOWN_BYTES
    )


def compare_peaks(before: Iterable[SeenPeak], after: Iterable[SeenPeak]) -> tuple[MemoryChange, ...]:
    """The devices whose peak both sides know, that with the highest one first."""
    old, new = _highest(before), _highest(after)
    changes = {key: _compare(old[key], new[key]) for key in old.keys() & new.keys()}
    places = {key: tuple(-1 if number is None else number for number in key) for key in changes}
    order = sorted(changes, key=lambda key: (-max(changes[key].before_bytes, changes[key].after_bytes), places[key]))
    return tuple(changes[key] for key in order)


def _highest(peaks: Iterable[SeenPeak]) -> dict[tuple[int | None, int | None], SeenPeak]:
    return {(each.rank, each.device): each for each in sorted(peaks, key=lambda each: each.allocated_bytes)}


def _compare(before: SeenPeak, after: SeenPeak) -> MemoryChange:
    parts = (CategoryChange(name, before.by_category[name], after.by_category[name]) for name in CATEGORIES)
    return MemoryChange(
        before.rank,
        before.device,
        before.allocated_bytes,
        after.allocated_bytes,
        tuple(each for each in parts if each.before_bytes or each.after_bytes),
    )
