"""PD407: large collectives move their data far slower than the link can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from perfdoctor.analysis.communication.bus_bandwidth import bus_bytes
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.gpu import find_device
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.rules.analyzer import FleetAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Peaks of links count both directions; a ring sends one way.
_ONE_WAY = 0.5


class _Lane(NamedTuple):
    """The large collectives of one kind in one process group: which, on which ranks, and how fast (bytes/s, median)."""

    kind: int
    group: str
    ranks: tuple[int, ...]
    rows: Int64Array
    bytes_per_s: float


class SlowLink(FleetAnalyzer):
    """The large collectives of some ranks reach a fraction of the bandwidth that the link between them has.

    What it finds:
        Process groups whose large collectives move their data at less than half the bus bandwidth of the same
        collectives in the other groups of the job; and groups on one host whose GPUs have links of their own and which
        stay below half of what PCIe alone would carry.

    Why it costs time:
        A collective runs at the speed of its slowest link: a cable or a switch that has fallen back, a socket where
        InfiniBand or NVLink was meant, peer-to-peer access that is off.

    How it is measured:
        Over matched collectives at which all members of the group are known, from the last arrival to the end: waiting
        is not in it. Bus bandwidth follows nccl-tests, so that kinds and group sizes compare. The cost is that time as
        far as nothing computes; the expected saving is what it exceeds at the bandwidth compared with.

    How to fix:
        NCCL_DEBUG=INFO names the transport of each channel (NVL, P2P, SHM, NET/IB, NET/Socket); nvidia-smi topo -m
        and nvidia-smi nvlink --status show the links; NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose the network.

    When it is wrong:
        Groups that span hosts are slower than those within one, and that is how they are built: only groups of the same
        kind and size are compared, but where the ranks of each lie is known only if the capture says so. Other
        traffic on the same link slows both.

    Needs:
        Traces of all ranks of a group, with the sizes of collectives.

    References:
        nccl-tests, doc/PERFORMANCE.md; NCCL User Guide, environment variables.
    """

    rule: ClassVar[str] = "PD407"
    name: ClassVar[str] = "slow-link"
    needs: ClassVar[frozenset[str]] = frozenset({"ranks", "sizes"})
    # min_bytes: from some tens of megabytes on nccl-tests' curves are flat. below: half is more than noise between
    # equal links.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.01, "min_bytes": 16 << 20, "min_count": 3, "below": 0.5}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    )

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """A finding for each group whose large collectives are slow and cost at least `min_share` of the step."""
        matched = fleet.matched
        if matched is None:
            return
        lanes = self._lanes(matched)
        for lane in lanes:
            alike = [a.bytes_per_s for a in lanes if (a.kind, len(a.ranks)) == (lane.kind, len(lane.ranks))]
            peer, own_link = max(alike), _pcie_bytes_per_s(fleet, matched, lane)
            if lane.bytes_per_s < self.settings["below"] * peer:
                yield from self._judged(fleet, matched, lane, peer, "the same collectives of other groups")
            elif own_link is not None and lane.bytes_per_s < self.settings["below"] * own_link:
                yield from self._judged(fleet, matched, lane, own_link, "PCIe alone, one way")

    def _lanes(self, matched: MatchedCollectives) -> list[_Lane]:
        """Kinds and groups with enough large collectives, whose members are all there."""
        size, ranks = np.full(len(matched), -1, np.int64), np.full(len(matched), -1, np.int32)
        groups: list[str | None] = [None] * len(matched)
        members: dict[int, list[int]] = defaultdict(list)
        for index, (table, row) in enumerate(zip(matched.tables, matched.collective_of_row, strict=True)):
            mine = np.flatnonzero((row >= 0) & (table.bytes >= self.settings["min_bytes"]) & (table.group >= 0))
            size[row[mine]], ranks[row[mine]] = table.bytes[mine], table.group_size[mine]
            for collective, group in zip(row[mine].tolist(), table.group[mine].tolist(), strict=True):
                groups[collective] = table.strings[group]
                members[collective].append(index)
        crossing = bus_bytes(matched.kind, size, ranks)
        usable = ~np.isnan(crossing) & (matched.rank_count == ranks) & matched.in_window & (matched.transfer_ns > 0)
        rows_of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for collective in np.flatnonzero(usable).tolist():
            rows_of[int(matched.kind[collective]), groups[collective] or ""].append(collective)
        lanes = []
        for (kind, group), found in sorted(rows_of.items()):
            rows = np.array(found, np.int64)
            if len(rows) >= self.settings["min_count"]:
                rate = float(np.median(crossing[rows] / matched.transfer_ns[rows])) * 1e9
                lanes.append(_Lane(kind, group, tuple(members[found[0]]), rows, rate))
        return lanes

    def _judged(
        self, fleet: Fleet, matched: MatchedCollectives, lane: _Lane, attainable: float, compared: str
    ) -> Iterator[Finding]:
        index = max(lane.ranks, key=lambda i: (iv.total(_transferring(matched, lane, i)), -i))
        rank, moving = fleet.of(matched.tables[index]), _transferring(matched, lane, index)
        cost = rank.per_step(iv.total(moving))
        if not self.exceeds_min_share(rank, cost):
            return
        names = ", ".join(str(matched.tables[i].rank) for i in lane.ranks)
        slow = lane.bytes_per_s / attainable
        yield self.finding(
            rank,
            title=f"The link between ranks {names} is slow: {lane.bytes_per_s / 1e9:.3g} GB/s in large collectives, "
            f"{slow:.0%} of {attainable / 1e9:.3g} GB/s",
            cost_ns=cost,
            saving=Saving(0, round(cost * (1 - slow)), cost, "bounded"),
            advice="See which transport NCCL uses there, and whether the links are up: a fallback to sockets, PCIe or "
            "host memory looks like this.",
            fix="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH torchrun ...; nvidia-smi topo -m; nvidia-smi nvlink -s",
            claim=Claim(moving, rank=rank.rank),
            confidence=0.7,
            evidence=(
                Evidence("kind of collective", COLLECTIVE_KINDS[lane.kind]),
                Evidence("large collectives, all members known", len(lane.rows), "count"),
                Evidence("bus bandwidth reached, median", round(lane.bytes_per_s / 1e9, 2), "GB/s"),
                Evidence(f"compared with {compared}", round(attainable / 1e9, 2), "GB/s"),
            ),
            subject=f"{COLLECTIVE_KINDS[lane.kind]} {lane.group}",
        )


def _transferring(matched: MatchedCollectives, lane: _Lane, index: int) -> Intervals:
    """When one member's data was under way in these collectives and nothing computed, on its own clock."""
    table, row = matched.tables[index], matched.collective_of_row[index]
    mine = np.flatnonzero(np.isin(row, lane.rows))
    arrived = matched.last_arrival_ns[row[mine]] - matched.offset_ns[index]
    return iv.intersect(iv.union(np.minimum(arrived, table.end_ns[mine]), table.end_ns[mine]), table.exposed)


def _pcie_bytes_per_s(fleet: Fleet, matched: MatchedCollectives, lane: _Lane) -> float | None:
    """What PCIe carries one way, where the members share a host and their devices have faster links; else None."""
    tables = [matched.tables[index] for index in lane.ranks]
    hosts = {table.host for table in tables}
    device = find_device(fleet.of(tables[0]).trace.device)
    if None in hosts or len(hosts) > 1 or device is None or not device.link_bytes_per_s:
        return None
    return None if device.pcie_bytes_per_s is None else _ONE_WAY * device.pcie_bytes_per_s
