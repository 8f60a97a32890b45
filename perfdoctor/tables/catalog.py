"""The catalogue of tables: what `perfdoctor show` and `Report.table` can show, and how each is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from perfdoctor.errors import UsageError

if TYPE_CHECKING:
    from perfdoctor.analysis.communication.collectives import CollectiveTable
    from perfdoctor.rank import Rank
    from perfdoctor.report.table import Table


class TableSpec(NamedTuple):
    """One kind of table.

    Attributes:
        title: What its rows are, in a line.
        by: What they can be grouped by; the first one unless another is asked for.
        builder: The function that makes it of a rank and a `by`, as "module:function": it is imported when it is used.
    """

    title: str
    by: tuple[str, ...]
    builder: str


TABLES: Mapping[str, TableSpec] = {
    "kernels": TableSpec(
        "kernels of the GPU: time, work, and what bounds them",
        ("name", "shape", "category", "op", "module", "line"),
        "perfdoctor.tables.kernels:kernels_table",
    ),
    "ops": TableSpec(
        "PyTorch ops: time on the GPU of what they launch, or own time on the CPU",
        ("name", "shape", "category", "module", "line"),
        "perfdoctor.tables.ops:ops_table",
    ),
    "gemms": TableSpec(
        "matrix products by M, N, K, type, layout and kernel: TFLOP/s, share of the peak, Tensor Cores, alignment",
        ("shape",),
        "perfdoctor.tables.matrix_work:gemms_table",
    ),
    "convolutions": TableSpec(
        "convolutions by shape, pass, type and kernel: the same",
        ("shape",),
        "perfdoctor.tables.matrix_work:convolutions_table",
    ),
    "attention": TableSpec(
        "fused attention by shape, pass, type and kernel: the same",
        ("shape",),
        "perfdoctor.tables.matrix_work:attention_table",
    ),
    "modules": TableSpec(
        "nn.Modules: time of what they launch, forward and backward, and the idle time that they cause",
        ("module", "class"),
        "perfdoctor.tables.modules:modules_table",
    ),
    "annotations": TableSpec(
        "ranges that the program, its libraries and the profiler put around code",
        ("name",),
        "perfdoctor.tables.annotations:annotations_table",
    ),
    "collectives": TableSpec(
        "collectives: time, what of it nothing hides, and bandwidth",
        ("kind", "group", "size"),
        "perfdoctor.tables.collectives_table:collectives_table",
    ),
    "copies": TableSpec(
        "copies and memory sets: direction, memory, size, and rate against the link",
        ("kind", "size", "line"),
        "perfdoctor.tables.copies_table:copies_table",
    ),
    "gaps": TableSpec(
        "idle time of the GPU: cause, what made it wait, and from which line",
        ("cause", "root", "line", "gap"),
        "perfdoctor.tables.gaps:gaps_table",
    ),
    "lines": TableSpec(
        "lines of the user's code: time of what they launch, and the idle time that they cause",
        ("line", "function", "file"),
        "perfdoctor.tables.lines:lines_table",
    ),
    "memory": TableSpec(
        "memory at the peak: what it is for, and which lines, modules and ops allocated it; or by step",
        ("category", "line", "module", "op", "size", "step"),
        "perfdoctor.tables.memory_table:memory_table",
    ),
    "optimizer": TableSpec(
        "the update of parameters: optimizers' steps, zeroing, unscaling, clipping",
        ("part", "kernel"),
        "perfdoctor.tables.optimizer:optimizer_table",
    ),
    "recompute": TableSpec(
        "what activation checkpointing computes again in the backward pass",
        ("op", "category", "module"),
        "perfdoctor.tables.recompute:recompute_table",
    ),
    "triton": TableSpec(
        "kernels that Triton compiled, with the ops that they came from",
        ("name", "kind"),
        "perfdoctor.tables.triton_table:triton_table",
    ),
}
"""Every table by its name, in the order in which they are listed."""
COMPARING_RANKS = frozenset({"collectives"})
"""The tables that say more where the other ranks are known, too."""


def check_table(name: str, by: str | None = None) -> str:
    """What the rows of a table are grouped by: `by`, or its default.

    Raises:
        UsageError: There is no such table, or it cannot be grouped so.
    """
    if name not in TABLES:
        from difflib import get_close_matches

        near = get_close_matches(name, TABLES, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(f"there is no table '{name}'; {hint}the tables are {', '.join(TABLES)}")
    choices = TABLES[name].by
    if by is None:
        return choices[0]
    if by not in choices:
        ways = f"it can be grouped by {', '.join(choices)}" if len(choices) > 1 else f"its rows are by {choices[0]}"
        raise UsageError(f"the table of {name} cannot be grouped by '{by}'; {ways}")
    return by


def build_table(rank: Rank, name: str, by: str | None = None, peers: Sequence[CollectiveTable] = ()) -> Table:
    """A table of a rank, sorted as suits it.

    Args:
        rank: The rank.
        name: One of `TABLES`.
        by: What to group by; None for what is usual.
        peers: The collectives of all ranks, its own among them, where several are known: for what compares ranks.

    Raises:
        UsageError: There is no such table, or it cannot be grouped so.
    """
    by = check_table(name, by)
    module, _, function = TABLES[name].builder.partition(":")
    build = getattr(import_module(module), function)
    table: Table = build(rank, by, peers) if name in COMPARING_RANKS else build(rank, by)
    return table
