"""An object file becomes code that can be called: without LLVM, whose import takes 20 ms and 25 MB.

Understood is what LLVM makes on x86-64 under Linux of a function that calls none outside: sections that are only read,
and know one another by their distance. What is more than that has to be left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MAGIC: Final = b"\x7fELF\x02\x01"  # of 64 bits, the lowest byte first
_RELOCATABLE_X86_64: Final = (1, 62)
_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # types of sections
_WRITABLE, _LOADED = 1, 2  # flags of sections
_DISTANCES: Final = (2, 4)  # relocations: four bytes that tell how far something, or a function, is from them

_SECTION = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
        ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
    ]
)  # fmt: skip
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_Array = npt.NDArray[Any]


def function_in(code: bytes, name: bytes) -> tuple[Any, int] | None:
    """Load an object file; what keeps its code in memory, and the address of one of its functions.

    None where it is of another kind than is understood here, or the system does not let it run.
    """
    linked = _linked(code, name)
    return None if linked is None else _executable(*linked)


def _linked(code: bytes, name: bytes) -> tuple[_Array, int] | None:
    """The sections of an object file as they lie in memory, and where among them a function begins."""
    if not code.startswith(_MAGIC) or struct.unpack_from("<HH", code, 16) != _RELOCATABLE_X86_64:
        return None
    (table,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = np.frombuffer(code, _SECTION, count, table)
    loaded = sections[sections["flags"] & _LOADED != 0]
    if (loaded["flags"] & _WRITABLE).any() or (loaded["type"] == _ZEROS).any():
        return None
    image, places = _laid_out(code, sections)
    (listed,) = sections[sections["type"] == _SYMBOLS]
    symbols = _content(code, listed, _SYMBOL)
    homes = places[np.where(symbols["section"] < count, symbols["section"], 0)]
    addresses = np.where(homes < 0, -1, homes + symbols["value"].astype(np.int64))
    for section in sections[sections["type"] == _RELOCATIONS]:
        if places[section["info"]] >= 0:
            relocations = _content(code, section, _RELOCATION)
            targets = addresses[relocations["symbol"]]
            if not np.isin(relocations["type"], _DISTANCES).all() or (targets < 0).any():
                return None
            at = places[section["info"]] + relocations["offset"].astype(np.int64)
            distances = (targets + relocations["addend"] - at).astype("<i4")
            image[at[:, None] + np.arange(4)] = distances.view(np.uint8).reshape(-1, 4)
    names = sections["offset"][listed["link"]]
    found = [code.startswith(name + b"\0", int(names + offset)) for offset in symbols["name"]]
    return image, int(addresses[found.index(True)])


def _laid_out(code: bytes, sections: _Array) -> tuple[_Array, npt.NDArray[np.int64]]:
    """The sections that are loaded, one behind the other, and the place of each; -1 of the others."""
    image = bytearray()
    places = np.full(len(sections), -1, np.int64)
    for number in np.flatnonzero(sections["flags"] & _LOADED):
        section = sections[number]
        image += bytes(-len(image) % max(int(section["align"]), 1))
        places[number] = len(image)
        image += _content(code, section, np.dtype(np.uint8)).tobytes()
    return np.frombuffer(image, np.uint8), places


def _content(code: bytes, section: Any, kind: np.dtype[Any]) -> _Array:
    return np.frombuffer(code, kind, int(section["size"]) // kind.itemsize, int(section["offset"]))


def _executable(image: _Array, start: int) -> tuple[Any, int] | None:
    """Put code into memory that can be run, and no longer be written."""
    if sys.platform != "linux":
        return None
    pages = mmap.mmap(-1, len(image), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, np.uint8)
    memory[:] = image
    address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory))
    if ctypes.CDLL(None).mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    return memory, memory.ctypes.data + start
