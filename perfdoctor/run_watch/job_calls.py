"""The calls of all ranks of a job, joined: which ranks a group has, who has entered a call, who waits for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import cached_property
from typing import NamedTuple

from perfdoctor.run_watch.rank_state import RankAnswer
from perfdoctor.trace.flight_recorder import Call, Dump, Group

_PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_DEFAULT_GROUP = "default_pg"
# Of these the sizes or the roles of ranks may differ.
_OF_ANY_SIZE = re.compile(r"all_?to_?all|scatter$|^_?gather|coalesced|^barrier")
_OF_ANY_TYPE = re.compile(r"^scatter|^gather|coalesced|^barrier")


class GroupKey(NamedTuple):
    """A group of the job: `place` tells apart those that share their description and ranks."""

    description: str
    ranks: tuple[int, ...]
    place: int


class Mismatch(NamedTuple):
    """One call of a group that ranks made differently: the calls of those in the minority, and those of the others."""

    odd: dict[int, Call]
    others: dict[int, Call]


class JobCalls:
    """The dumps of a job, joined by group.

    Attributes:
        ranks: All ranks that are known of.
        waiting: The oldest call of each rank that has not ended, of ranks that wait.
    """

    def __init__(
        self,
        dumps: Mapping[int, Dump],
        answers: Mapping[int, RankAnswer],
        ranks: Set[int],
        moving: Set[int] = frozenset(),
    ) -> None:
        """Join the dumps; ranks that are `moving` do not wait, whatever is on its way in their dumps."""
        self.dumps = dumps
        self.ranks = sorted(ranks | set(dumps))
        self._answers = answers
        self._keys = {rank: self._join_groups(rank, dump) for rank, dump in dumps.items()}
        self.waiting = {
            rank: call
            for rank, dump in dumps.items()
            if rank not in moving and (call := dump.oldest_unfinished) is not None
        }

    def _join_groups(self, rank: int, dump: Dump) -> dict[str, GroupKey]:
        keys: dict[str, GroupKey] = {}
        seen: dict[tuple[str, tuple[int, ...]], int] = {}
        for group in sorted(dump.groups.values(), key=lambda each: (len(each.name), each.name)):
            ranks = self._ranks_of(rank, group)
            place = seen.get((group.description, ranks), 0)
            seen[group.description, ranks] = place + 1
            keys[group.name] = GroupKey(group.description, ranks, place)
        return keys

    def _ranks_of(self, rank: int, group: Group) -> tuple[int, ...]:
        """By the dump; else by the capture; else all ranks of the default group, or those whose dumps have its name."""
        if group.ranks:
            return group.ranks
        for number in (rank, *self._answers):
            captured = self._answers.get(number, RankAnswer()).groups.get(group.name)
            if captured is not None and rank in captured.ranks:
                return tuple(sorted(captured.ranks))
        if group.description == _DEFAULT_GROUP:
            return tuple(self.ranks)
        return tuple(sorted(each for each, dump in self.dumps.items() if group.name in dump.groups))

    def key_of(self, rank: int, call: Call) -> GroupKey:
        """The group of a rank's call."""
        return self._keys[rank][call.group]

    @cached_property
    def _calls(self) -> dict[GroupKey, dict[int, dict[int, Call]]]:
        """By group and number the collective of each rank."""
        found: dict[GroupKey, dict[int, dict[int, Call]]] = {}
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if not call.is_p2p:
                    found.setdefault(self.key_of(rank, call), {}).setdefault(call.number, {})[rank] = call
        return found

    def calls_like(self, rank: int, call: Call) -> dict[int, Call]:
        """The calls of all ranks of the group that have the number of this collective."""
        return self._calls.get(self.key_of(rank, call), {}).get(call.number, {rank: call})

    def has_entered(self, rank: int, key: GroupKey, number: int) -> bool:
        """Whether a rank has called this collective, as far as its dump says."""
        dump = self.dumps.get(rank)
        if dump is None:
            return False
        return any(dump.entered.get(name, -1) >= number for name, each in self._keys[rank].items() if each == key)

    def peers_awaited(self, rank: int) -> list[int]:
        """The ranks that the call of a waiting rank waits for: they have not entered it, or wait in another call.

        Empty where every rank of the group waits in this call, or has ended it.
        """
        call = self.waiting[rank]
        key = self.key_of(rank, call)
        if call.is_p2p:
            return self._peer_awaited(rank, call, key)
        alike, awaited = self.calls_like(rank, call), []
        for other in key.ranks:
            if other == rank:
                continue
            theirs, waits_in = alike.get(other), self.waiting.get(other)
            is_behind = theirs is not None and not theirs.has_ended and waits_in not in (None, theirs)
            if is_behind or not self.has_entered(other, key, call.number):
                awaited.append(other)
        return awaited

    def _peer_awaited(self, rank: int, call: Call, key: GroupKey) -> list[int]:
        match = _PEER.fullmatch(call.name)
        if match is None or max(int(match[2]), int(match[3])) >= len(key.ranks):
            return []
        ends = [key.ranks[int(match[2])], key.ranks[int(match[3])]]
        peer = next((each for each in ends if each != rank), rank)
        of_peer = self.waiting.get(peer)
        meets = of_peer is not None and of_peer.is_p2p and (back := _PEER.fullmatch(of_peer.name)) is not None
        if meets and back is not None and {back[2], back[3]} == {match[2], match[3]} and back[1] != match[1]:
            return []
        return [] if peer == rank else [peer]

    def is_alone(self, rank: int) -> bool:
        """Whether all others of the group have ended the call in which a rank waits."""
        call = self.waiting[rank]
        key = self.key_of(rank, call)
        if call.is_p2p or len(key.ranks) < 2:
            return False
        alike = self.calls_like(rank, call)
        return all(
            self.has_entered(other, key, call.number) and (other not in alike or alike[other].has_ended)
            for other in key.ranks
            if other != rank
        )

    def find_mismatch(self) -> Mismatch | None:
        """The first call of a group in which ranks wait that they made differently; None where all made the same."""
        groups = {self.key_of(rank, call): call for rank, call in self.waiting.items() if not call.is_p2p}
        for key in groups:
            for number in sorted(self._calls.get(key, {})):
                calls = self._calls[key][number]
                # What has ended everywhere stops nobody by its sizes and types.
                is_open = any(not call.has_ended for call in calls.values())
                by_form: dict[object, dict[int, Call]] = {}
                for rank, call in sorted(calls.items()):
                    by_form.setdefault(_form_of(call, is_open=is_open), {})[rank] = call
                if len(by_form) > 1:
                    most = max(by_form.values(), key=len)
                    odd = {rank: call for rank, call in calls.items() if rank not in most}
                    return Mismatch(odd, most)
        return None


def _form_of(call: Call, *, is_open: bool) -> object:
    """What must be equal in the calls of all ranks."""
    types = () if not is_open or _OF_ANY_TYPE.search(call.name) else (call.input_types, call.output_types)
    sizes = () if not is_open or _OF_ANY_SIZE.search(call.name) else (call.input_sizes, call.output_sizes)
    return call.name, types, sizes
