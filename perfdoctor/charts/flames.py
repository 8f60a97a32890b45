"""A step by part of the loop, place, what runs there, and the innermost op: the account by place as a flame graph."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np

from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.places.account_by_place import Stack
from perfdoctor.places.place import PlaceName
from perfdoctor.places.placed_window import apportion
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import FlameGraph

CATEGORIES = ("phase", "place", "function", "op")
_PHASES = {"loader": "loading data", "zero_grad": "clearing gradients", "other": "other parts of the loop"}
"""Parts of the loop in words, where their own name says too little."""
# Nodes with less of the step are narrower than a pixel.
_MIN_SHARE = 0.001

_Path: TypeAlias = tuple[tuple[str, str | PlaceName], ...]
"""From the root down to a node: of each its category and what it is."""


def flames_of(rank: Rank) -> FlameGraph | None:
    """The flame graph of a rank's step; None where there is no time."""
    account = rank.places
    # In an order of their own: of equal remainders the first are rounded up.
    stacks = dict(sorted(account.stacks().items(), key=lambda item: (item[0].place.short, item[0].phase, *item[0][2:])))
    words = _PHASES if len({stack.phase for stack in stacks}) > 1 else {"other": "all of the time"}
    time_ns: dict[_Path, int] = defaultdict(int)
    for stack, ns in zip(stacks, apportion(account.step_ns, list(stacks.values())), strict=True):
        path = _path_of(stack, words.get(stack.phase, stack.phase))
        for depth in range(1, len(path) + 1):
            time_ns[path[:depth]] += ns

    def name(path: _Path) -> str:
        what = path[-1][1]
        if isinstance(what, str):
            return what
        return short_kernel_name(what.short) if what.kind == "op" else what.short

    def rank_of(path: _Path) -> list[tuple[int, str]]:
        """Depth first, the widest child first, of equals by name."""
        return [(-time_ns[path[:depth]], name(path[:depth])) for depth in range(1, len(path) + 1)]

    min_ns = max(_MIN_SHARE * account.step_ns, 1)
    nodes = sorted((path for path, ns in time_ns.items() if ns >= (1 if len(path) == 1 else min_ns)), key=rank_of)
    if not nodes:
        return None
    position = {path: number for number, path in enumerate(nodes)}
    names, name_id = np.unique([name(path) for path in nodes], return_inverse=True)
    return FlameGraph(
        tuple(names.tolist()),
        name_id.astype(np.int32),
        np.array([position.get(path[:-1], -1) for path in nodes], np.int32),
        np.array([time_ns[path] for path in nodes], np.int64),
        np.array([CATEGORIES.index(path[-1][0]) for path in nodes], np.int8),
        CATEGORIES,
        {node: what for node, path in enumerate(nodes) if isinstance(what := path[-1][1], PlaceName)},
    )


def _path_of(stack: Stack, phase: str) -> _Path:
    """The nodes of a stack; a name that says the same as the one above it is none."""
    path: list[tuple[str, str | PlaceName]] = [("phase", phase), ("place", stack.place)]
    for category, name in ((stack.kind, stack.called), ("op", stack.inner)):
        if name and name not in (path[-1][1], stack.place.function if stack.place.kind == "op" else None):
            path.append((category, name))
    return tuple(path)
