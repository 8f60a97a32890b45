"""The tables of gemms, convolutions and attention: a row for each shape, type and kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import orjson

from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, NO, VERDICTS, YES
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.gemm_alignment import layout_of_name, layout_of_strides, misaligned_dimensions
from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.roofline.kernel_bounds import PEAK_TOLERANCE
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.matrix_kernels import find_matrix_kernels
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import format_shape, format_types
from perfdoctor.tables.kernels import bound_column, share_of_peak
from perfdoctor.tables.shared_columns import Groups, Source, choose_source
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array

_PASSES = ("whole", "dgrad", "wgrad")  # by the codes of `CostKinds.part`
# Where the factors of an op stand among its inputs.
_FACTORS = {"aten::addmm": 1, "aten::_addmm_activation": 1, "aten::baddbmm": 1, "_C::cutlass_scaled_mm": 1}
_KNOWN_BY = {"name": "its name", "proven": "its speed", "likely": "its type", "contradicted": "contradicted"}
_FEWER_PRODUCTS = (
    "rates beyond the peak: the kernel needs fewer products than the direct count (Winograd, FFT), so that no share of "
    "the peak is given"
)


@frozen_dataclass(eq=False)
class _Work:
    """Groups of kernels of one shape, type and layout each.

    Attributes:
        source: The recording whose kernels they are.
        groups: The groups.
        kernels: The name of each group's kernel.
        costs: The cost of its op; None where not known.
        ops: The name of its op; "" where not known.
        parts: Which part of the op's cost it is, see `CostKinds.part`.
        dims: The recorded sizes of the op's inputs, as JSON text.
        types: Their types.
        strides: Their strides.
    """

    source: Source
    groups: Groups
    kernels: Sequence[str]
    costs: Sequence[OpCost | None]
    ops: Sequence[str]
    parts: Sequence[int]
    dims: Sequence[str | None]
    types: Sequence[str | None]
    strides: Sequence[str | None]

    @property
    def rank(self) -> Rank:
        """The rank whose kernels they are."""
        return self.source.rank

    def costs_of(self, kind: str) -> list[OpCost | None]:
        """The costs of its ops, as far as they are of one kind."""
        return [cost if cost is not None and cost.kind == kind else None for cost in self.costs]

    def sizes(self, costs: Sequence[OpCost | None], *names: str) -> list[Column]:
        """Columns of what the costs have by these names."""
        return [self.source.column(each, [cost and getattr(cost, each) for cost in costs]) for each in names]


def _matrix_table(rank: Rank, by: str, name: str, describe: Callable[[_Work], tuple[list[str], list[Column]]]) -> Table:
    source = choose_source(name, rank, "shapes", kind="matrix")
    items = _find_kernels(source.rank, name)
    if not len(items):
        return source.empty(by, *_why_empty(source, name))
    work = _group(source, items)
    groups, inner = work.groups, source.rank
    names, sizes = describe(work)
    names = [text or kernel for text, kernel in zip(names, work.kernels, strict=True)]
    flops = np.where(inner.verdicts.impossible[items], np.nan, inner.kernel_costs.flops[items])
    rate, dtypes = groups.rate(flops), _operands(work)
    peak_share = rate / _peaks(work, dtypes)
    beyond = peak_share > PEAK_TOLERANCE
    used, how = _verdicts(work)
    columns = (
        source.count(groups.counts),
        source.column("flops_per_s", rate),
        source.column("peak_share", peak_share, known=~beyond),
        source.column("tensor_core", used),
        source.column("known_by", how),
        source.column("dtype", dtypes),
        *sizes,
        bound_column(inner, groups),
        source.column("kernel", work.kernels),
        source.column("op", [op.removeprefix("aten::") for op in work.ops]),
        source.column("inputs", list(map(format_shape, work.dims))),
        source.column("input_types", list(map(format_types, work.types))),
        source.column("roof_share", _known_share(inner, groups)),
        source.column("flops", groups.total(flops)),
        source.column("bytes", groups.total(inner.kernel_costs.bytes[items])),
    )
    notes = (_FEWER_PRODUCTS,) if beyond.any() else ()
    return source.build_groups(by, name.removesuffix("s"), names, groups, *columns, notes=notes)


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


def _group(source: Source, items: Int64Array) -> _Work:
    rank, trace, costs = source.rank, source.rank.trace, source.rank.kernel_costs
    gpu, ops = trace.gpu, trace.ops
    op, known = gpu.op[items], rank.gpu_labels.known[items]
    names, dims, types, strides = (
        np.where(known, np.append(column, NONE)[op], NONE) for column in (ops.name, ops.dims, ops.types, ops.strides)
    )
    # The bias of a linear layer has a shape, too: products are alike by their factors. A kind is a kernel with a cost.
    kind = costs.kind[items]
    has_cost = costs.op_cost[items] >= 0
    gemms = [number for number, cost in enumerate(costs.op_costs) if cost.kind == "gemm"]
    is_gemm = np.isin(costs.op_cost[items], gemms) & has_cost
    groups = Groups.of_gpu(
        trace, items, kind, np.where(is_gemm, NONE, dims), np.where(has_cost, NONE, types), strides, names
    )
    of_kind, kinds = groups.of_first(kind), costs.kinds
    op_cost = kinds.op_cost[of_kind].tolist()
    return _Work(
        source=source,
        groups=groups,
        kernels=[trace.strings[each] for each in gpu.name[items[groups.first]].tolist()],
        costs=[costs.op_costs[each] if each >= 0 else None for each in op_cost],
        ops=[trace.text(each) or "" for each in groups.of_first(names)],
        parts=kinds.part[of_kind].tolist(),
        dims=[trace.text(each) for each in groups.of_first(dims)],
        types=[trace.text(each) for each in groups.of_first(types)],
        strides=[trace.text(each) for each in groups.of_first(strides)],
    )


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


def _verdicts(work: _Work) -> tuple[list[str], list[str | None]]:
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
    known_by = [
        None if verdict == "unknown" else _KNOWN_BY[basis] for verdict, basis in zip(verdicts, bases, strict=True)
    ]
    return used, known_by


# --- what is said of each kind ---------------------------------------------------------------------------------------


def _describe_gemms(work: _Work) -> tuple[list[str], list[Column]]:
    costs = work.costs_of("gemm")
    names = [_name_gemm(cost) for cost in costs]
    rows = zip(work.kernels, work.ops, work.strides, strict=True)
    layouts = [layout_of_name(kernel) or _layout_of_op(op, strides) for kernel, op, strides in rows]
    alignment = [
        None if cost is None else _describe_alignment(cost, kernel)
        for cost, kernel in zip(costs, work.kernels, strict=True)
    ]
    columns = work.source.column("alignment", alignment), work.source.column("layout", layouts)
    return names, [*columns, *work.sizes(costs, "m", "n", "k", "batch")]


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
    costs = work.costs_of("convolution")
    passes = [_PASSES[part] if part else _pass_of_op(op) for part, op in zip(work.parts, work.ops, strict=True)]
    names = [format_shape(dims and _first_inputs(dims, op)) for dims, op in zip(work.dims, work.ops, strict=True)]
    layouts = [_layout_of_images(op, strides) for op, strides in zip(work.ops, work.strides, strict=True)]
    columns = work.source.column("pass", passes), work.source.column("layout", layouts)
    return names, [*columns, *work.sizes(costs, "groups", "channels_in", "channels_out")]


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


def _name_attention(cost: OpCost | None) -> str:
    if cost is None:
        return ""
    keys = "" if cost.keys == cost.queries else f", {cost.keys} keys"
    return f"{cost.batch}x{cost.heads}x{cost.queries}x{cost.head_size}{keys}"


def _describe_attention(work: _Work) -> tuple[list[str], list[Column]]:
    costs = work.costs_of("attention")
    names = [_name_attention(cost) for cost in costs]
    passes = [None if not op else "backward" if "backward" in op else "forward" for op in work.ops]
    sizes = work.sizes(costs, "causal", "batch", "heads", "queries", "keys", "head_size")
    return names, [work.source.column("pass", passes), *sizes]


gemms_table = partial(_matrix_table, name="gemms", describe=_describe_gemms)
"""Matrix products: M, N, K and how often side by side (batch), by kernel and layout."""
convolutions_table = partial(_matrix_table, name="convolutions", describe=_describe_convolutions)
"""Convolutions: channels, groups and the pass, by kernel and layout."""
attention_table = partial(_matrix_table, name="attention", describe=_describe_attention)
"""Fused attention: sequences, heads, lengths, by kernel."""
