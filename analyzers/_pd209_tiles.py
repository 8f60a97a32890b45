"""Tiles of matrix products: what a kernel's name says of them, and how well they fill the multiprocessors.

A library cuts the result into tiles, one thread block each. They run in waves of one block a multiprocessor: where the
last wave is nearly empty, so are most multiprocessors meanwhile (NVIDIA, "Matrix Multiplication Background", section
"Wave Quantization"). A tile that hangs over the edge computes values that nobody asked for ("Tile Quantization").
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

# The tile in names of the libraries, and the family that writes so.
_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)x"),  # xmma of cuBLAS and cuDNN
    re.compile(r"_MT(\d+)x(\d+)x"),  # Tensile of rocBLAS and hipBLASLt
    re.compile(r"_bt(\d+)x(\d+)x"),  # MIOpen
    re.compile(r"nvjet_(?:\w+?_)?(\d+)x(\d+)_\d+x\d+"),
    re.compile(r"(?:gemm|cudnn)_(?:[a-z]+\d*_)*(\d{2,3})x(\d{2,3})(?![0-9x]*x16816)"),  # CUTLASS and older cuBLAS
)


class Tiling(NamedTuple):
    """How a product is cut into tiles.

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
