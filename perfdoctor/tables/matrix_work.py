"""The tables of gemms, convolutions and attention: a row for each shape, type and kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import orjson

from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, NO, VERDICTS, YES
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.gemm_alignment import layout_of_name, layout_of_strides, misaligned_dimensions
from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.roofline.kernel_bounds import PEAK_TOLERANCE
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.report.table import Cell, Column, Table
from perfdoctor.rules.matrix_kernels import find_matrix_kernels
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import format_shape, format_types
from perfdoctor.tables.kernels import bound_column, share_of_peak
from perfdoctor.tables.shared_columns import (
    Groups,
    Source,
    choose_source,
    count_column,
    empty_table,
    number_column,
    step_columns,
    text_column,
    window_columns,
)
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array

_PASSES = ("whole", "dgrad", "wgrad")  # by the codes of `CostKinds.part`
# Where the factors of an op stand among its inputs.
_FACTORS = {"aten::addmm": 1, "aten::_addmm_activation": 1, "aten::baddbmm": 1, "_C::cutlass_scaled_mm": 1}
_KNOWN_BY = {"name": "its name", "proven": "its speed", "likely": "its type", "contradicted": "contradicted"}
_FEWER_PRODUCTS = (
    "rates beyond the peak: the kernel needs fewer products than the direct count (Winograd, FFT), so that no share of "
    "the peak is given"
)


def gemms_table(rank: Rank, by: str) -> Table:
    """Matrix products: M, N, K and how often side by side (batch), by kernel and layout."""
    return _matrix_table(rank, "gemms", by, _describe_gemms)


def convolutions_table(rank: Rank, by: str) -> Table:
    """Convolutions: channels, groups and the pass, by kernel and layout."""
    return _matrix_table(rank, "convolutions", by, _describe_convolutions)


def attention_table(rank: Rank, by: str) -> Table:
    """Fused attention: sequences, heads, lengths, by kernel."""
    return _matrix_table(rank, "attention", by, _describe_attention)


@frozen_dataclass(eq=False)
class _Work:
    """Groups of kernels of one shape, type and layout each.

    Attributes:
        rank: The rank whose kernels they are.
        groups: The groups.
        kernels: The name of each group's kernel.
        costs: The cost of its op; None where not known.
        ops: The name of its op; "" where not known.
        parts: Which part of the op's cost it is, see `CostKinds.part`.
        dims: The recorded sizes of the op's inputs, as JSON text.
        types: Their types.
        strides: Their strides.
    """

    rank: Rank
    groups: Groups
    kernels: Sequence[str]
    costs: Sequence[OpCost | None]
    ops: Sequence[str]
    parts: Sequence[int]
    dims: Sequence[str | None]
    types: Sequence[str | None]
    strides: Sequence[str | None]


def _matrix_table(rank: Rank, name: str, by: str, describe: Callable[[_Work], tuple[list[str], list[Column]]]) -> Table:
    source = choose_source(rank, "shapes")
    items = _find_kernels(source.rank, name)
    if not len(items):
        return empty_table(name, by, rank, *_why_empty(source, name))
    work = _group(source.rank, items)
    groups, inner = work.groups, source.rank
    names, sizes = describe(work)
    names = [text or kernel for text, kernel in zip(names, work.kernels, strict=True)]
    flops = np.where(inner.verdicts.impossible[items], np.nan, inner.kernel_costs.flops[items])
    rate, dtypes = groups.rate(flops), _operands(work)
    peak_share = rate / _peaks(work, dtypes)
    beyond = peak_share > PEAK_TOLERANCE
    time_ns = groups.time_ns
    columns = (
        text_column("name", name.removesuffix("s"), names),
        *step_columns(source, time_ns),
        count_column(source, groups.counts),
        number_column("flops_per_s", "FLOP/s", "flops_per_s", rate, "FLOPs over the time of those kernels."),
        number_column("peak_share", "of peak", "share", peak_share, _PEAK_SHARE, known=~beyond),
        *_verdict_columns(work),
        text_column("dtype", "type", dtypes, "The type that is multiplied: tf32 where a kernel rounds float32 to it."),
        *sizes,
        bound_column(inner, groups),
        text_column("kernel", "kernel", work.kernels, "The kernel that ran."),
        text_column("op", "op", [op.removeprefix("aten::") for op in work.ops], "The op that launched it."),
        text_column("inputs", "inputs", list(map(format_shape, work.dims)), "The op's inputs.", is_main=False),
        text_column("input_types", "types", list(map(format_types, work.types)), "Their types.", is_main=False),
        number_column("roof_share", "of roof", "share", _known_share(inner, groups), _ROOF_SHARE, is_main=False),
        number_column("flops", "FLOPs", "flops", groups.total(flops), "In the analysed time.", is_main=False),
        number_column(
            "bytes", "bytes", "bytes", groups.total(inner.kernel_costs.bytes[items]), "At least.", is_main=False
        ),
        *window_columns(time_ns, groups.counts, groups.max_ns),
    )
    notes = (*source.notes, *((_FEWER_PRODUCTS,) if beyond.any() else ()))
    return Table(name, by, columns, rank=rank.rank, notes=notes).sort("step_ns")


_PEAK_SHARE = "FLOP/s over the theoretical peak of the unit that is used (Tensor Cores or CUDA cores) for its type."
_ROOF_SHARE = "Share of the peak of the unit or of the memory, whichever bounds it."


def _find_kernels(rank: Rank, name: str) -> Int64Array:
    """The kernels that do the maths, in the window; helpers such as split-K tails and layout copies do none."""
    if name == "gemms":
        return np.flatnonzero(find_matrix_kernels(rank, "gemm").mask)
    if name == "convolutions":
        return np.flatnonzero(find_matrix_kernels(rank, "convolution").mask)
    of_attention = rank.kernels.of_category("attention").in_steps()
    return np.flatnonzero(of_attention.where(~rank.verdicts.match_rows("na")).mask)


def _why_empty(source: Source, name: str) -> tuple[str, ...]:
    available = source.rank.available_data
    if "kernels" not in available:
        return (explain_missing("kernels", available),)
    what = {"gemms": "multiplies matrices", "convolutions": "convolves", "attention": "is fused attention"}[name]
    return (f"no kernel of the analysed time {what}",)


def _group(rank: Rank, items: Int64Array) -> _Work:
    trace, costs = rank.trace, rank.kernel_costs
    gpu, ops = trace.gpu, trace.ops
    op, known = gpu.op[items], rank.gpu_labels.known[items]
    names, dims, types, strides = (
        np.where(known, np.append(column, NONE)[op], NONE) for column in (ops.name, ops.dims, ops.types, ops.strides)
    )
    # The bias of a linear layer has a shape, too: products are alike by their factors. A kind is a kernel with a cost.
    kind = costs.kind[items]
    has_cost = costs.op_cost[items] >= 0
    is_gemm = np.isin(costs.op_cost[items], _costs_of(rank, "gemm")) & has_cost
    groups = Groups.of_gpu(
        trace, items, kind, np.where(is_gemm, NONE, dims), np.where(has_cost, NONE, types), strides, names
    )
    of_kind, kinds = groups.of_first(kind), costs.kinds
    op_cost = kinds.op_cost[of_kind].tolist()
    return _Work(
        rank=rank,
        groups=groups,
        kernels=[trace.strings[each] for each in gpu.name[items[groups.first]].tolist()],
        costs=[costs.op_costs[each] if each >= 0 else None for each in op_cost],
        ops=[trace.text(each) or "" for each in groups.of_first(names)],
        parts=kinds.part[of_kind].tolist(),
        dims=[trace.text(each) for each in groups.of_first(dims)],
        types=[trace.text(each) for each in groups.of_first(types)],
        strides=[trace.text(each) for each in groups.of_first(strides)],
    )


def _costs_of(rank: Rank, kind: str) -> list[int]:
    return [number for number, cost in enumerate(rank.kernel_costs.op_costs) if cost.kind == kind]


def _operands(work: _Work) -> list[str | None]:
    """The operand type of each group: by the kernel's name, else by its op's inputs."""
    verdicts, kind = work.rank.verdicts, work.rank.kernel_costs.kind[work.groups.items[work.groups.first]]
    return [verdicts.operands[each] or None for each in verdicts.operand[kind].tolist()]


def _peaks(work: _Work, dtypes: Sequence[str | None]) -> FloatArray:
    """The theoretical peak of the unit that each group uses; NaN where the device, type or unit is not known."""
    device = work.rank.device
    verdict = work.rank.verdicts.tensor_core[work.groups.items[work.groups.first]].tolist()
    peaks = np.full(len(verdict), np.nan)
    for i, (dtype, used) in enumerate(zip(dtypes, verdict, strict=True)):
        if device is not None and dtype is not None and used in (YES, NO):
            peaks[i] = (device.matrix_peak_flops(dtype) if used == YES else device.vector_peak_flops(dtype)) or np.nan
    return peaks


def _known_share(rank: Rank, groups: Groups) -> FloatArray:
    share = share_of_peak(rank, groups)
    return np.where(share > PEAK_TOLERANCE, np.nan, share)


def _verdict_columns(work: _Work) -> list[Column]:
    """Whether Tensor Cores were used, and how that is known: as the account has it, by most of the time."""
    rank, groups = work.rank, work.groups
    verdicts = [VERDICTS[each] for each in groups.dominant_code(rank.verdicts.tensor_core[groups.items]).tolist()]
    bases = [BASES[each] for each in groups.dominant_code(rank.verdicts.basis[groups.items]).tolist()]
    slow_path = groups.dominant_code(rank.verdicts.slow_path[groups.items].astype(np.int8)).tolist()
    texts = {"yes": "used", "no": "not used"}
    used = [
        "slow path" if verdict == "yes" and slow else texts.get(verdict, verdict)
        for verdict, slow in zip(verdicts, slow_path, strict=True)
    ]
    how = [None if verdict == "unknown" else _KNOWN_BY[basis] for verdict, basis in zip(verdicts, bases, strict=True)]
    return [
        text_column("tensor_core", "Tensor Cores", used, "used; slow path, with narrow memory accesses; not used."),
        text_column("known_by", "known by", how, "How that is known.", is_main=False),
    ]


# --- what is said of each kind ---------------------------------------------------------------------------------------


def _describe_gemms(work: _Work) -> tuple[list[str], list[Column]]:
    costs = [cost if cost is not None and cost.kind == "gemm" else None for cost in work.costs]
    names = [_name_gemm(cost) for cost in costs]
    rows = zip(work.kernels, work.ops, work.strides, strict=True)
    layouts = [layout_of_name(kernel) or _layout_of_op(op, strides) for kernel, op, strides in rows]
    alignment = [
        None if cost is None else _describe_alignment(cost, kernel)
        for cost, kernel in zip(costs, work.kernels, strict=True)
    ]
    return names, [
        text_column("alignment", "alignment", alignment, "The dimensions that are not a multiple of 16 bytes."),
        text_column("layout", "layout", layouts, "As BLAS has it: tn is the forward pass of a linear layer."),
        *(_sizes(size, size.upper(), costs, size) for size in ("m", "n", "k")),
        _sizes("batch", "batch", costs, "batch"),
    ]


def _name_gemm(cost: OpCost | None) -> str:
    if cost is None or cost.m is None:
        return ""
    batch = f"{cost.batch} of " if (cost.batch or 1) > 1 else ""
    return f"{batch}{cost.m}x{cost.n}x{cost.k}"


def _describe_alignment(cost: OpCost, kernel: str) -> str | None:
    """The dimensions that miss, "K=3137 (of 8)", else "aligned"; None where the type is not known."""
    elements = elements_per_access(cost.dtype)
    if elements is None:
        return None
    missed = misaligned_dimensions(cost, kernel)
    return ", ".join(f"{name}={size} (of {elements})" for name, size in missed) or "aligned"


@lru_cache(maxsize=4096)
def _layout_of_op(op: str, strides: str | None) -> str | None:
    """The layout letters by the strides of an op's factors; None where they were not recorded."""
    first = _FACTORS.get(op, 0)
    try:
        factors = orjson.loads(strides or "")[first : first + 2]
    except orjson.JSONDecodeError:
        return None
    if len(factors) < 2 or not all(isinstance(each, list) and len(each) >= 2 for each in factors):
        return None
    if op == "aten::linear":  # its weight is [N, K]
        factors[1] = [*factors[1][:-2], factors[1][-1], factors[1][-2]]
    return layout_of_strides(*map(tuple, factors))


def _describe_convolutions(work: _Work) -> tuple[list[str], list[Column]]:
    costs = [cost if cost is not None and cost.kind == "convolution" else None for cost in work.costs]
    passes = [_PASSES[part] if part else _pass_of_op(op) for part, op in zip(work.parts, work.ops, strict=True)]
    names = [format_shape(dims and _first_inputs(dims, op)) for dims, op in zip(work.dims, work.ops, strict=True)]
    layouts = [_layout_of_images(op, strides) for op, strides in zip(work.ops, work.strides, strict=True)]
    return names, [
        text_column("pass", "pass", passes, "forward, dgrad (of the input) or wgrad (of the weight)."),
        text_column("layout", "layout", layouts, "nhwc (channels_last) or nchw, by the strides of the input."),
        _sizes("groups", "groups", costs, "groups"),
        _sizes("channels_in", "channels in", costs, "channels_in"),
        _sizes("channels_out", "channels out", costs, "channels_out"),
    ]


def _pass_of_op(op: str) -> str | None:
    if not op:
        return None
    if "backward" not in op:
        return "forward"
    return "dgrad" if op.endswith("backward_input") else "wgrad" if op.endswith("backward_weight") else "backward"


@lru_cache(maxsize=4096)
def _first_inputs(dims: str, op: str) -> str | None:
    """Of a convolution's inputs the sizes of the image and of the weight; of its backward op they stand behind dy."""
    try:
        sizes = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return None
    first = 1 if op == "aten::convolution_backward" else 0
    tensors = [size for size in sizes if size] if isinstance(sizes, list) else []
    return orjson.dumps(tensors[first : first + 2]).decode()


@lru_cache(maxsize=4096)
def _layout_of_images(op: str, strides: str | None) -> str | None:
    """Where channels lie side by side "nhwc", where pixels do "nchw"; None where that was not recorded."""
    try:
        of_inputs = orjson.loads(strides or "")
        image = of_inputs[1 if op == "aten::convolution_backward" else 0]
    except (orjson.JSONDecodeError, LookupError):
        return None
    if not isinstance(image, list) or len(image) < 3:
        return None
    return "nhwc" if image[1] == 1 and image[-1] != 1 else "nchw" if image[-1] == 1 else None


def _describe_attention(work: _Work) -> tuple[list[str], list[Column]]:
    costs = [cost if cost is not None and cost.kind == "attention" else None for cost in work.costs]
    names = [
        ""
        if cost is None
        else f"{cost.batch}x{cost.heads}x{cost.queries}x{cost.head_size}"
        + ("" if cost.keys == cost.queries else f", {cost.keys} keys")
        for cost in costs
    ]
    passes = [None if not op else "backward" if "backward" in op else "forward" for op in work.ops]
    causal = tuple(None if cost is None else cost.causal for cost in costs)
    return names, [
        text_column("pass", "pass", passes, "forward or backward."),
        Column("causal", "causal", "bool", causal, "Whether scores above the diagonal are left out."),
        _sizes("batch", "batch", costs, "batch"),
        _sizes("heads", "heads", costs, "heads"),
        _sizes("queries", "queries", costs, "queries"),
        _sizes("keys", "keys", costs, "keys"),
        _sizes("head_size", "head size", costs, "head_size"),
    ]


def _sizes(name: str, title: str, costs: Sequence[OpCost | None], attribute: str) -> Column:
    values: tuple[Cell, ...] = tuple(None if cost is None else getattr(cost, attribute) for cost in costs)
    return Column(name, title, "count", values, is_main=False)
