"""Known causes of slow kernels: what shape, type, layout, tile or library tells of one, and nothing where none does."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from perfdoctor.analyzers._pd209_slow_kernels import SlowKind, name_of_op, row_bytes, tensors_of
from perfdoctor.rules import OpCost, Rank, TensorInput

UNKNOWN, UNKNOWN_ON_AMD = "unknown", "unknown on AMD"
"""The ids of the cause where nothing in the recording tells one: AMD has another kernel profiler."""

# Fewer thread blocks than this share of the multiprocessors leave the device visibly empty, as `kernel_bounds` has it.
_FULL_GRID_SHARE = 0.75
# A matrix of so few rows or columns is smaller than half of the common tiles, of 128.
_SKINNY = 64
# So few steps of a product's inner loop do not hide the loads before and the stores after it.
_SMALL_K = 64
_POOR_FILL = 0.75
_MANY_WAVES = 4
# Fused kernels are compiled for head sizes from 32 on; up to 128 the tiles stay in registers.
_SMALLEST_HEAD, _FASTEST_HEAD = 32, 128
_HEAD_MULTIPLE = 8
_FEW_POSITIONS = 64
_ACCESS_BYTES = 16
_SHORT_ROW_BYTES = 4096
_SECTOR_BYTES = 32
# Channels fill the depth of a tile of Tensor Cores from 16 on, and are loaded 16 bytes at once in multiples of 8.
_MANY_CHANNELS, _CHANNEL_MULTIPLE = 16, 8
_FALLBACK_CONVOLUTION = "naive_conv"
_ATOMIC_KERNEL = re.compile(
    r"(?i)atomic|scatter\w*add|reduceadd|indexfunc\w*index|embedding_backward|indexing_backward"
)
_SPLITS = re.compile(r"_GSU(\d+)_")
_STRIDED_KERNEL = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel(_manual_unroll)?<")
_CASTING_KERNEL = re.compile(r"gpu_kernel_impl<|unrolled_elementwise_kernel<")
_UNALIGNED_KERNEL = re.compile(r"unrolled_elementwise_kernel<.*LoadWithoutCast")
_FLASH_2 = re.compile(r"flash_(fwd|bwd)\w*kernel")
_OF_PYTORCH = "at::native::"
# The tile in names of the libraries, and the family that writes so.
_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)x"),  # xmma of cuBLAS and cuDNN
    re.compile(r"_MT(\d+)x(\d+)x"),  # Tensile of rocBLAS and hipBLASLt
    re.compile(r"_bt(\d+)x(\d+)x"),  # MIOpen
    re.compile(r"nvjet_(?:\w+?_)?(\d+)x(\d+)_\d+x\d+"),
    re.compile(r"(?:gemm|cudnn)_(?:[a-z]+\d*_)*(\d{2,3})x(\d{2,3})(?![0-9x]*x16816)"),  # CUTLASS and older cuBLAS
)


class Cause(NamedTuple):
    """Why a kernel is slow.

    Attributes:
        id: What the table of advice knows it by, such as "few blocks".
        clause: The cause in words, for the end of a title: "64 thread blocks for 304 multiprocessors".
    """

    id: str
    clause: str

    @property
    def is_known(self) -> bool:
        """Whether something in the recording tells the cause."""
        return self.id not in (UNKNOWN, UNKNOWN_ON_AMD)


def find_cause(rank: Rank, kind: SlowKind) -> Cause:
    """The known cause of a slow kernel, the one with the most weight first."""
    cost = rank.kernel_costs.op_costs[int(rank.kernel_costs.op_cost[kind.row])]
    kernel = rank.trace.strings[int(rank.trace.gpu.name[kind.row])]
    found: Cause | None
    if kind.family == "gemm":
        found = _cause_of_product(rank, cost, kernel)
    elif kind.family == "convolution":
        found = _cause_of_convolution(cost, kernel)
    elif kind.family == "attention":
        found = _cause_of_attention(rank, kind, cost, kernel)
    elif kind.family in ("elementwise", "copy", "other"):
        found = _cause_of_elementwise(kernel, tensors_of(rank, kind.row), name_of_op(rank, kind.row))
    else:
        found = _cause_of_rows(rank, kind, kernel)
    unknown = Cause(UNKNOWN_ON_AMD if rank.hardware.vendor == "amd" else UNKNOWN, "nothing recorded tells why")
    return found or _cause_of_grid(rank, kind) or unknown


def _cause_of_grid(rank: Rank, kind: SlowKind) -> Cause | None:
    blocks, processors = int(rank.trace.gpu.blocks[kind.row]), rank.hardware.sm_count
    if not processors or not 0 < blocks < _FULL_GRID_SHARE * processors:
        return None
    return Cause("few blocks", f"{blocks:,} thread blocks for {processors} multiprocessors")


def _cause_of_product(rank: Rank, cost: OpCost, kernel: str) -> Cause | None:
    m, n, k, batch = cost.m or 0, cost.n or 0, cost.k or 0, cost.batch or 1
    if not (m and n and k):
        return None
    size = f"[{m:,} x {k:,}] x [{k:,} x {n:,}]" + (f", {batch:,} times" if batch > 1 else "")
    if min(m, n) <= _SKINNY:
        return Cause("skinny product", f"{'M' if m <= n else 'N'} = {min(m, n)} leaves most of a tile empty in {size}")
    if k <= _SMALL_K:
        return Cause("small K", f"K = {k} is over before a tile's loads are hidden in {size}")
    tile, processors = tile_of_name(kernel), rank.hardware.sm_count
    if tile is not None and processors:
        match = _SPLITS.search(kernel)
        cut = cut_into_tiles(m, n, tile, processors, batch, int(match[1]) if match else 1)
        found = _cause_of_tiling(cut, tile, processors, size)
        if found is not None:
            return found
    if "splitk" in kernel.lower():
        return Cause("small product", f"K is split, as the result alone has too few tiles: {size}")
    return None


def _cause_of_tiling(cut: Tiling, tile: tuple[int, int], processors: int, size: str) -> Cause | None:
    """The cause that lies in how a product is cut into tiles; None where they fill the device well."""
    tiles = f"{cut.tiles:,} tiles of {tile[0]} x {tile[1]}"
    if cut.tiles < _FULL_GRID_SHARE * processors:
        return Cause("small product", f"{tiles} for {processors} multiprocessors in {size}")
    if cut.tile_fill < _POOR_FILL:
        return Cause("tile quantization", f"{1 - cut.tile_fill:.0%} of the {tiles} hang over the edge of {size}")
    if 1 < cut.waves < _MANY_WAVES and cut.wave_fill < _POOR_FILL:
        return Cause(
            "wave quantization",
            f"{tiles} on {processors} multiprocessors make {cut.waves} waves, {cut.wave_fill:.0%} full, in {size}",
        )
    return None


def _cause_of_convolution(cost: OpCost, kernel: str) -> Cause | None:
    channels = min(cost.channels_in or _MANY_CHANNELS, cost.channels_out or _MANY_CHANNELS)
    if _FALLBACK_CONVOLUTION in kernel:
        return Cause("fallback convolution", "MIOpen's fallback kernel runs, which no tuning has touched")
    if (cost.groups or 1) > 1:
        return Cause("few channels", f"{cost.channels_in} channels a group leave most of a tile empty")
    if channels < _MANY_CHANNELS:
        return Cause("few channels", f"{channels} channels leave most of a tile empty")
    if (cost.channels_in or 0) % _CHANNEL_MULTIPLE or (cost.channels_out or 0) % _CHANNEL_MULTIPLE:
        sizes = f"{cost.channels_in} channels in and {cost.channels_out} out"
        return Cause("odd channels", f"{sizes} are not both multiples of {_CHANNEL_MULTIPLE}")
    return None


def _cause_of_attention(rank: Rank, kind: SlowKind, cost: OpCost, kernel: str) -> Cause | None:
    head, queries, keys = cost.head_size or 0, cost.queries or 0, cost.keys or 0
    if head % _HEAD_MULTIPLE:
        return Cause("head size", f"a head size of {head} is no multiple of {_HEAD_MULTIPLE}")
    if head < _SMALLEST_HEAD:
        return Cause("head size", f"a head size of {head} is padded to {_SMALLEST_HEAD} in the kernel")
    if head > _FASTEST_HEAD:
        return Cause("head size", f"a head size of {head}, over {_FASTEST_HEAD}, leaves small tiles")
    if min(queries, keys) <= _FEW_POSITIONS:
        return Cause("few positions", f"{queries:,} queries and {keys:,} keys leave most of a tile empty")
    bias = [tensor for tensor in tensors_of(rank, kind.row) if tensor.sizes[-2:] == (queries, keys)]
    if bias and "efficient_attention" in name_of_op(rank, kind.row):
        return Cause("mask as a tensor", f"a mask of {queries:,} x {keys:,} is read for each head")
    if _cause_of_grid(rank, kind) is not None:
        return None
    capability = rank.hardware.capability or (0, 0)
    if rank.hardware.vendor == "amd" and kernel.startswith(("attn_fwd", "bwd_kernel")):
        return Cause("Triton's attention", "PyTorch's Triton kernel runs, and CK's is faster on these GPUs")
    if rank.hardware.vendor != "amd" and capability >= (9, 0) and _FLASH_2.search(kernel):
        return Cause("older attention", "FlashAttention-2 runs, whose code is for Ampere")
    return None


def _cause_of_rows(rank: Rank, kind: SlowKind, kernel: str) -> Cause | None:
    """The cause of a slow norm, softmax, reduction or lookup, by the rows that it works on."""
    length, op = row_bytes(rank, kind.row), name_of_op(rank, kind.row)
    on_empty_grid = _cause_of_grid(rank, kind)
    if "batch_norm" in op and _OF_PYTORCH in kernel:
        more = f", {on_empty_grid.clause}" if on_empty_grid else ""
        library = "MIOpen" if rank.hardware.vendor == "amd" else "cuDNN"
        return Cause("own batch norm", f"PyTorch's own kernels run, not {library}'s: one block a channel{more}")
    if on_empty_grid is not None:
        return on_empty_grid
    if kind.family == "softmax" and "Spatial" in kernel:
        return Cause("inner dimension", "it is taken along a dimension that is not the last one")
    if kind.family == "reduction":
        return _cause_of_reduction(rank, kind)
    if length is None:
        return None
    if kind.family == "indexing" and _ATOMIC_KERNEL.search(kernel):
        return Cause("atomic adds", "what goes to one place is added one after the other")
    if kind.family == "indexing":
        return Cause("short rows", f"rows of {length} bytes are looked up") if length < _SECTOR_BYTES else None
    if length % _ACCESS_BYTES:
        return Cause("odd rows", f"rows of {length:,} bytes start at no multiple of {_ACCESS_BYTES}")
    if length < _SHORT_ROW_BYTES and kind.family == "norm":
        return Cause("short rows", f"rows of {length:,} bytes keep few threads of a block busy")
    return None


def _cause_of_reduction(rank: Rank, kind: SlowKind) -> Cause | None:
    op, trace = int(rank.trace.gpu.op[kind.row]), rank.trace
    concrete = re.findall(r'"\[(-?\d+)[^"]*\]"', trace.text(int(trace.ops.concrete[op])) or "") if op >= 0 else []
    tensors = tensors_of(rank, kind.row)
    if not concrete or not tensors:
        return None
    dimensions = len(tensors[0].sizes)
    if int(concrete[0]) % dimensions != dimensions - 1:
        return Cause("inner dimension", f"it is taken along dimension {concrete[0]} of {dimensions}, not the last one")
    return None


def _cause_of_elementwise(kernel: str, tensors: tuple[TensorInput, ...], op: str) -> Cause | None:
    """The cause of a slow elementwise kernel or copy, by the variant of PyTorch's kernel and its inputs.

    PyTorch loads 16 bytes at once (`vectorized_elementwise_kernel`) where all tensors are contiguous, of one layout and
    of one type, and start at such a multiple, or at half of one. Else it computes the place of each element
    (`elementwise_kernel`), or loads each by itself and may cast it (`unrolled_elementwise_kernel`).
    """
    shapes = {tensor.sizes for tensor in tensors}
    if len({tensor.dtype for tensor in tensors if tensor.numel > 1}) > 1 and _CASTING_KERNEL.search(kernel):
        return Cause("mixed types", f"{' and '.join(sorted({t.dtype for t in tensors}))} are mixed in one op")
    if _UNALIGNED_KERNEL.search(kernel):
        return Cause("unaligned start", f"an input or the result starts at no multiple of {_ACCESS_BYTES} bytes")
    if not _STRIDED_KERNEL.search(kernel):
        return None
    if any(tensor.strides is not None and not _is_dense_in_order(tensor) for tensor in tensors):
        return Cause("strided", "an input or the result lies transposed or in slices")
    if len(shapes) > 1:
        return Cause("broadcast", "an input is broadcast, which rules out accesses of 16 bytes")
    if len(tensors) > 1 or op.endswith("copy_"):
        return Cause("strided", "an input or the result lies transposed or in slices")
    return None


def _is_dense_in_order(tensor: TensorInput) -> bool:
    """Whether a tensor's elements lie in the order of its dimensions without gaps; dimensions of one do not count."""
    expected = 1
    for size, stride in reversed(tuple(zip(tensor.sizes, tensor.strides or (), strict=True))):
        if size != 1 and stride != expected:
            return stride == 0  # broadcast, which is another cause
        expected *= size
    return True


class Tiling(NamedTuple):
    """How a product is cut into tiles.

    A library cuts the result into tiles, one thread block each. They run in waves of one block a multiprocessor: where
    the last wave is nearly empty, so are most multiprocessors meanwhile (NVIDIA, "Matrix Multiplication Background",
    section "Wave Quantization"). A tile that hangs over the edge computes values that nobody asked for.

    Attributes:
        tiles: Tiles of the result, over the whole batch.
        waves: Waves in which they run, one tile a multiprocessor.
        wave_fill: The share (0 to 1) of the multiprocessors that the waves fill on average.
        tile_fill: The share (0 to 1) of the tiles' area that belongs to the result.
    """

    tiles: int
    waves: int
    wave_fill: float
    tile_fill: float


def tile_of_name(kernel: str) -> tuple[int, int] | None:
    """Return rows and columns of a kernel's tile as the library counts them; None where the name does not say.

    The libraries count by columns: the first number lies along N of [M, K] x [K, N] in PyTorch's order.
    """
    for pattern in _TILES:
        if match := pattern.search(kernel):
            return int(match[1]), int(match[2])
    return None


def cut_into_tiles(
    m: int, n: int, tile: tuple[int, int], multiprocessors: int, batch: int = 1, splits: int = 1
) -> Tiling:
    """Return how a product [m, k] x [k, n] is cut, done `batch` times, with K in `splits` parts."""
    along_n, along_m = tile
    tiles = batch * splits * math.ceil(n / along_n) * math.ceil(m / along_m)
    waves = max(math.ceil(tiles / multiprocessors), 1)
    area = math.ceil(n / along_n) * along_n * math.ceil(m / along_m) * along_m
    return Tiling(tiles, waves, tiles / (waves * multiprocessors), m * n / max(area, 1))
