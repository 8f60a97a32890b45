"""Hang: which rank is missing, in which collective, at which line, and of what kind that is."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.frozen_dataclass import frozen_dataclass

HangKind: TypeAlias = Literal["missing", "dead", "slow", "mismatch", "blocked", "unknown"]


@frozen_dataclass
class HangCollective:
    """The collective, send or receive in which ranks wait.

    Attributes:
        group: The description of its process group.
        number: Its sequence number in the group.
        sizes: The shapes of its inputs.
        types: Their types.
        waiting: The ranks that have called it and wait in it.
    """

    name: str
    group: str
    number: int
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    waiting: tuple[int, ...]


@frozen_dataclass
class Hang:
    """Why a job makes no step any more.

    Attributes:
        kind: dead: the rank's process, main thread or GPU has ended; slow: it still works; mismatch: it has called
            another collective, or other sizes or types; blocked: in a loader, on a lock, in I/O; missing: others wait
            for it and no more is known; unknown: every rank waits, or nothing says who is at fault.
        ranks: The ranks at fault; of a mismatch without a majority, and of an unknown fault, all that take part.
        collective: None where no rank waits in one.
        location: Where the first rank at fault is; where that is not known, where the others wait.
        sentence: All of it for people.
    """

    kind: HangKind
    ranks: tuple[int, ...]
    collective: HangCollective | None
    location: SourceLocation | None
    sentence: str


@frozen_dataclass
class HangReading:
    """What was read to look for a hang.

    Attributes:
        dumps: The ranks whose dumps of the flight recorder were read.
        unread: A sentence for each file that could not be read.
        hang: What was found; None for a healthy job.
        went_on: Whether the job has made steps again after it.
        has_ended: Whether the program has ended, as the recorders of all its ranks say.
    """

    dumps: tuple[int, ...]
    unread: tuple[str, ...] = ()
    hang: Hang | None = None
    went_on: bool = False
    has_ended: bool = False
