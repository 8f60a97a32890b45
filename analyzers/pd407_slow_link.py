"""PD407: large collectives move their data far more slowly than their link can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    Advice,
    BoolArray,
    Claim,
    CollectiveTable,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    Int64Array,
    Intervals,
    MatchedCollectives,
    RankSummary,
    Saving,
    bus_bytes,
    find_device,
    vocabulary,
)
from perfdoctor.rules import intervals as iv
from perfdoctor.rules.internal import vendor_of

# These keep NCCL from peer-to-peer access, InfiniBand and shared memory; those choose what it would choose by itself.
_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_DISABLE")
_CHOICES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_NET")
# Peaks of links count both directions; a ring sends one way.
_ONE_WAY_SHARE = 0.5
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_RCCL = "https://rocm.docs.amd.com/projects/rccl/en/latest/how-to/rccl-usage-tips.html"


class _LargeCollectives(NamedTuple):
    """The large collectives of one kind in one process group.

    Attributes:
        kind: Index into COLLECTIVE_KINDS.
        group: Name of the process group.
        members: Its ranks, as indices into `MatchedCollectives.tables`.
        rows: Which of the matched collectives they are.
        bytes_per_s: Their median bus bandwidth.
    """

    kind: int
    group: str
    members: tuple[int, ...]
    rows: Int64Array
    bytes_per_s: float


class SlowLink(FleetAnalyzer):
    """The large collectives of some ranks reach a fraction of the bandwidth that the link between them has."""

    rule = "PD407"
    name = "slow-link"
    needs = frozenset({"ranks", "sizes"})
    # min_bytes: from some tens of megabytes on nccl-tests' curves are flat. below: half is more than noise between
    # equal links.
    defaults = {"min_share": 0.01, "min_bytes": 16 << 20, "min_count": 3, "below": 0.5}
    references = (
        "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each group whose large collectives are slow and cost at least `min_share` of the step."""
        matched = fleet.matched_collectives
        if matched is None:
            return
        groups = self._find_large_collectives(matched)
        for group in groups:
            size = len(group.members)
            peer = max(g.bytes_per_s for g in groups if (g.kind, len(g.members)) == (group.kind, size))
            pcie = _pcie_bytes_per_s(fleet, matched, group)
            if group.bytes_per_s < self.settings["below"] * peer:
                yield from self._report(fleet, matched, group, peer, "the same collectives of other groups")
            elif pcie is not None and group.bytes_per_s < self.settings["below"] * pcie:
                yield from self._report(fleet, matched, group, pcie, "PCIe alone, one way")

    def _find_large_collectives(self, matched: MatchedCollectives) -> list[_LargeCollectives]:
        """By kind and process group the large collectives of which all members are known, where there are enough."""
        size, ranks = np.full(len(matched), -1, np.int64), np.full(len(matched), -1, np.int32)
        names: dict[str, int] = {}
        name = np.full(len(matched), -1, np.int64)
        seen: set[Hashable] = set()
        for table, collective in zip(matched.tables, matched.collective_of_row, strict=True):
            content = (id(collective), table.strings, table.content_of("bytes", "group", "group_size"))
            if content in seen:  # as on most ranks of one program
                continue
            seen.add(content)
            large = self._match_large(table, collective)
            rows = collective[large]
            codes = np.array([names.setdefault(text, len(names)) for text in table.strings], np.int64)
            size[rows], ranks[rows], name[rows] = table.bytes[large], table.group_size[large], codes[table.group[large]]
        crossing = bus_bytes(matched.kind, size, ranks)
        usable = ~np.isnan(crossing) & (matched.rank_count == ranks) & matched.in_window & (matched.transfer_ns > 0)
        texts = list(names)
        rows_of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for row in np.flatnonzero(usable).tolist():
            rows_of[int(matched.kind[row]), texts[name[row]]].append(row)
        enough = {key: some for key, some in sorted(rows_of.items()) if len(some) >= self.settings["min_count"]}
        members = self._find_members(matched, [some[0] for some in enough.values()])
        found = []
        for (kind, group), some in enough.items():
            rows = np.array(some, np.int64)
            bytes_per_s = float(np.median(crossing[rows] / matched.transfer_ns[rows])) * 1e9
            found.append(_LargeCollectives(kind, group, tuple(members[some[0]]), rows, bytes_per_s))
        return found

    def _match_large(self, table: CollectiveTable, collective: Int64Array) -> BoolArray:
        """For each row whether it is large, of a known group, and has partners."""
        large = (collective >= 0) & (table.bytes >= self.settings["min_bytes"]) & (table.group >= 0)
        return np.asarray(large, bool)

    def _find_members(self, matched: MatchedCollectives, collectives: Sequence[int]) -> dict[int, list[int]]:
        """For each of some collectives the ranks to which it is a large one, as indices into `matched.tables`."""
        wanted = np.zeros(len(matched) + 1, bool)  # the last one is for rows without partners
        wanted[collectives] = True
        members: dict[int, list[int]] = defaultdict(list)
        known: dict[Hashable, list[int]] = {}
        for index, (table, collective) in enumerate(zip(matched.tables, matched.collective_of_row, strict=True)):
            content = (id(collective), table.content_of("bytes", "group"))
            if content not in known:
                known[content] = collective[wanted[collective] & self._match_large(table, collective)].tolist()
            for row in known[content]:
                members[row].append(index)
        return members

    def _report(
        self, fleet: Fleet, matched: MatchedCollectives, group: _LargeCollectives, attainable: float, compared: str
    ) -> Iterator[Finding]:
        """The finding on one group, where its slow transfers cost enough.

        Args:
            fleet: All ranks.
            matched: Their collectives.
            group: The group.
            attainable: The bandwidth that it is compared with, in bytes/s.
            compared: What reaches that bandwidth.
        """
        index = max(group.members, key=lambda i: (iv.total(_transfer_time(matched, group, i)), -i))
        rank, transferring = fleet.summary_of(matched.tables[index]), _transfer_time(matched, group, index)
        cost = rank.per_step(iv.total(transferring))
        if not self.exceeds_min_share(rank, cost):
            return
        names = ", ".join(str(matched.tables[i].rank) for i in group.members)
        reached = group.bytes_per_s / attainable
        is_amd = vendor_of(rank.trace.device) == "amd"
        forced = _forced_transports(rank)
        advice = Advice(
            f"See which transport {'RCCL' if is_amd else 'NCCL'} uses there, and whether the links are up: a fallback "
            "to sockets, PCIe or host memory looks like this.",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH torchrun ...; "
            + ("rocm-smi --showtopo" if is_amd else "nvidia-smi topo -m; nvidia-smi nvlink -s"),
            _RCCL if is_amd else _NCCL,
        )
        if forced:
            advice = Advice(
                f"Let NCCL choose by itself, and measure again: the environment decides for it ({', '.join(forced)}).",
                "env -u NCCL_P2P_DISABLE -u NCCL_IB_DISABLE -u NCCL_SHM_DISABLE -u NCCL_ALGO torchrun ...",
                _NCCL,
            )
        yield self.finding(
            rank,
            title=f"The link between ranks {names} is slow: {group.bytes_per_s / 1e9:.3g} GB/s in large collectives, "
            f"{reached:.0%} of {attainable / 1e9:.3g} GB/s",
            cost_ns=cost,
            saving=Saving(0, round(cost * (1 - reached)), cost, "bounded"),
            advice=advice,
            claim=Claim(transferring, rank=rank.rank),
            confidence=0.7,
            evidence=(
                Evidence("kind of collective", vocabulary.COLLECTIVE_KINDS[group.kind]),
                Evidence("large collectives, all members known", len(group.rows), "count"),
                Evidence("bus bandwidth reached, median", round(group.bytes_per_s / 1e9, 2), "GB/s"),
                Evidence(f"compared with {compared}", round(attainable / 1e9, 2), "GB/s"),
                *(Evidence(name, value) for name, value in forced.items()),
            ),
            subject=f"{vocabulary.COLLECTIVE_KINDS[group.kind]} {group.group}",
        )


def _transfer_time(matched: MatchedCollectives, group: _LargeCollectives, index: int) -> Intervals:
    """When one member transferred data in these collectives and computed nothing, on that member's clock."""
    table, collective = matched.tables[index], matched.collective_of_row[index]
    rows = np.flatnonzero(np.isin(collective, group.rows))
    last_arrival = matched.clocks[index].to_own(matched.last_arrival_ns[collective[rows]])
    return iv.intersect(iv.union(np.minimum(last_arrival, table.end_ns[rows]), table.end_ns[rows]), table.exposed)


def _forced_transports(rank: RankSummary) -> dict[str, str]:
    """The captured environment variables that keep NCCL from a link or choose for it; empty where none was captured."""
    environment = rank.facts.environment
    switched_off = {name: environment[name] for name in _SWITCHES if environment.get(name) == "1"}
    chosen = {name: environment[name] for name in _CHOICES if environment.get(name)}
    return switched_off | chosen


def _pcie_bytes_per_s(fleet: Fleet, matched: MatchedCollectives, group: _LargeCollectives) -> float | None:
    """What PCIe carries one way, where the members share a host and their devices have faster links; else None."""
    tables = [matched.tables[index] for index in group.members]
    hosts = {table.host for table in tables}
    device = find_device(fleet.summary_of(tables[0]).trace.device)
    if None in hosts or len(hosts) > 1 or device is None or not device.link_bytes_per_s:
        return None
    return None if device.pcie_bytes_per_s is None else _ONE_WAY_SHARE * device.pcie_bytes_per_s
