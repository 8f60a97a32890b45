"""The rows of the tables that stand in every report: columns of `perfdoctor show`, the time of each a step."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from perfdoctor.value_limits import Amount, Positive, Share

MAX_ROWS = 10
"""Rows of each in the JSON report: the largest; `perfdoctor show` has them all."""


class KernelRow(TypedDict):
    """The kernels of one name.

    Attributes:
        count: Per step.
        mean_ns: Of one launch, as recorded.
        op: The op that launched most of it.
        peak_share: Share of the peak of the unit that it uses, or of the memory: whichever bounds it.
    """

    name: str
    count: Amount | None
    step_ns: int
    share: Share | None
    mean_ns: int
    category: str
    op: str | None
    peak_share: Amount | None
    bound: Literal["compute", "bandwidth", "latency"] | None
    tensor_core: Literal["yes", "no", "unknown", "na"]
    flops_per_s: Amount | None
    bytes_per_s: Amount | None


class OpRow(TypedDict):
    """The calls of one op: its own time on the GPU, else on the CPU; also what is not an op.

    Attributes:
        count: Calls per step.
    """

    name: str
    count: Amount | None
    step_ns: int
    share: Share | None
    category: str


class LineRow(TypedDict):
    """A line of the user's code, with what runs below it.

    Attributes:
        part: DataLoader, forward, backward, an optimizer's step.
        source: The text of the line, where it can be read.
    """

    file: str
    line: int | None
    function: str | None
    part: str | None
    source: str | None
    step_ns: int
    share: Share | None


class ModuleRow(TypedDict):
    """A nn.Module, or what belongs to none.

    Attributes:
        path: From the outermost module on.
        count: Calls per step.
        step_ns: With the modules inside.
        own_ns: Without the modules inside.
        idle_ns: In which the GPU waited for it.
        flops: In the analysed time.
    """

    name: str
    path: str | None
    count: Amount | None
    step_ns: int
    share: Share | None
    own_ns: int
    forward_ns: int
    backward_ns: int
    idle_ns: int | None
    flops: Amount | None


class CollectiveRow(TypedDict):
    """The collectives of one kind.

    Attributes:
        count: Per step.
        mean_ns: Of one, as recorded.
        exposed_ns: In which nothing computes beside it.
    """

    name: str
    count: Amount | None
    step_ns: int
    share: Share | None
    mean_ns: int | None
    exposed_ns: int | None
    group: str | None
    ranks: Positive | None
    dtype: str | None
    bytes: Amount | None
    algorithm_bytes_per_s: Amount | None
    bus_bytes_per_s: Amount | None


class ReportTables(TypedDict):
    """The first ten rows of each table; the columns are those of `perfdoctor show`.

    Attributes:
        kernels: The kernels with the most time, by name.
        ops: The ops with the most own time: of the GPU, else of the CPU, with what is not an op.
        lines: The lines of the user's code that take most of a step, with what runs below them.
        modules: The nn.Modules with the most own time, and what belongs to none.
        collectives: The collectives by kind.
    """

    kernels: Annotated[tuple[KernelRow, ...], ("maxItems", MAX_ROWS)]
    ops: Annotated[tuple[OpRow, ...], ("maxItems", MAX_ROWS)]
    lines: Annotated[tuple[LineRow, ...], ("maxItems", MAX_ROWS)]
    modules: Annotated[tuple[ModuleRow, ...], ("maxItems", MAX_ROWS)]
    collectives: Annotated[tuple[CollectiveRow, ...], ("maxItems", MAX_ROWS)]
