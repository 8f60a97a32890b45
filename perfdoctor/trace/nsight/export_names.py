"""Names as PyTorch's profiler writes them, from the numbers and decorated texts of Nsight Systems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.nsight.export_tables import ExportTables
from perfdoctor.trace.tables.string_codes import StringCodes

COPY_COLUMNS: Mapping[str, Sequence[str]] = {"copy": ("copyKind",), "source": ("srcKind",), "target": ("dstKind",)}

# As Nsight Systems numbers them where the file has no ENUM_ table: directions (CUpti_ActivityMemcpyKind) and
# synchronizations (CUpti_ActivitySynchronizationType) as CUPTI does, memory in an order of its own.
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_DIRECTIONS |= {10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}  # the last three move managed memory
_MEMORY_KINDS = dict(enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")))
_SYNC_NAMES = {
    1: vocabulary.EVENT_SYNC_NAME,
    2: vocabulary.STREAM_WAIT_NAME,
    3: vocabulary.STREAM_SYNC_NAME,
    4: vocabulary.CONTEXT_SYNC_NAME,
}
_SIDES = {"D": "Device", "P": "Device", "A": "Array"}
_DIRECTION = re.compile(r"_([HDAP])TO([HDAP])\Z")

# cudaLaunchKernel_v7000, cudaMemcpyAsync_ptsz_v7000: the version that brought the call, and per-thread default streams.
_CALL_VERSION = re.compile(r"(?:_pt[sd][sz])?_v[0-9]{4,}\Z")

# emit_nvtx writes "aten::mm, seq = 12, op_id = 3, sizes = [[64, 64], [64, 64]]"; user ranges under it get an op_id too.
_DETAIL = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = re.compile(r", seq = [0-9]")
_SIZES = re.compile(r", sizes = (\[[\[\]0-9, -]*\])")
_OPERATOR = re.compile(r"(?:aten|prim|prims|c10d|autograd|torch|torchvision|torchaudio|quantized)::\w")
_NAMESPACED = re.compile(r"[A-Za-z_]\w*::\w")


def copy_names(tables: ExportTables, copies: Mapping[str, Int64Array], strings: StringCodes) -> Int64Array:
    """The codes of names such as "Memcpy HtoD (Pageable -> Device)", from the columns of `COPY_COLUMNS`."""
    directions = _DIRECTIONS | {
        key: f"{found[1]}to{found[2]}"
        for key, (symbol, _) in tables.read_enum("ENUM_CUDA_MEMCPY_OPER").items()
        if (found := _DIRECTION.search(symbol))
    }
    memory = _memory_kinds(tables)
    kinds = np.column_stack([copies[key] for key in COPY_COLUMNS])
    distinct, which = np.unique(kinds, axis=0, return_inverse=True)
    codes = np.empty(len(distinct), np.int64)
    for row, (kind, source, target) in enumerate(distinct.tolist()):
        direction = directions.get(kind, "Unknown")
        begin, end = (
            # Old versions say the direction only, which tells the device's side but not whether memory is pinned.
            memory.get(place, "Unknown") if place != NONE else _SIDES.get(side, "Unknown")
            for place, side in ((source, direction[0]), (target, direction[-1]))
        )
        codes[row] = strings[vocabulary.copy_name(direction, begin, end)]
    return codes[which.reshape(-1)]


def set_names(tables: ExportTables, kinds: Int64Array, strings: StringCodes) -> Int64Array:
    """The codes of names such as "Memset (Device)"; device memory where the version does not say which."""
    memory = _memory_kinds(tables)
    distinct, which = np.unique(kinds, return_inverse=True)
    codes = [
        strings[f"Memset ({'Device' if kind == NONE else memory.get(kind, 'Unknown')})"] for kind in distinct.tolist()
    ]
    return np.array(codes, np.int64)[which]


def graph_names(ids: Int64Array, strings: StringCodes) -> Int64Array:
    """The codes of the names of CUDA graphs that were recorded as a whole."""
    distinct, which = np.unique(ids, return_inverse=True)
    return np.array([strings[f"CUDA graph {graph}"] for graph in distinct.tolist()], np.int64)[which]


def sync_names(kinds: Int64Array, strings: StringCodes) -> Int64Array:
    """The codes of the names of synchronizations."""
    distinct, which = np.unique(kinds, return_inverse=True)
    return np.array([strings[_SYNC_NAMES.get(kind, "Sync")] for kind in distinct.tolist()], np.int64)[which]


def strip_versions(codes: Int64Array, strings: StringCodes) -> Int64Array:
    """The codes of calls without the version in their names."""
    distinct, which = np.unique(codes, return_inverse=True)
    stripped = [NONE if code < 0 else strings[_CALL_VERSION.sub("", strings.texts[code])] for code in distinct.tolist()]
    return np.array(stripped, np.int64)[which]


@frozen_dataclass(eq=False)
class RangeTexts:
    """The parts of the texts of NVTX ranges.

    Attributes:
        name: Code of the name.
        sizes: Code of the sizes of the op's inputs as JSON text; NONE where there are none.
        is_op: Whether the range is an operator.
    """

    name: Int64Array
    sizes: Int64Array
    is_op: BoolArray

    def __len__(self) -> int:
        return len(self.name)


def parse_range_texts(codes: Int64Array, raw: StringCodes, strings: StringCodes) -> RangeTexts:
    """Take apart the texts of ranges, each distinct one once.

    `codes` point into `raw`, the texts as they stand in the file, NONE where a range has none; `strings` gives names
    and sizes their codes.
    """
    name = np.empty(len(raw.texts) + 1, np.int64)
    sizes = np.full(len(raw.texts) + 1, NONE, np.int64)
    is_op = np.zeros(len(raw.texts) + 1, bool)
    for code, text in enumerate(raw.texts):
        detail = _DETAIL.search(text)
        name[code] = strings[text[: detail.start()] if detail else text]
        is_op[code] = _is_op(text, detailed=detail is not None)
        if detail and (found := _SIZES.search(text)) and (compact := _compact_json(found[1])) is not None:
            sizes[code] = strings[compact]
    name[-1] = strings[""]  # of a range without a text, whose code NONE reads the last entry
    return RangeTexts(name[codes], sizes[codes], is_op[codes])


def _is_op(text: str, *, detailed: bool) -> bool:
    """Operators have a namespace that PyTorch owns, or are pushed with a sequence number or an id by emit_nvtx."""
    if _OPERATOR.match(text):
        return True
    return detailed and (_SEQUENCE.search(text) is not None or _NAMESPACED.match(text) is not None)


def _compact_json(sizes: str) -> str | None:
    """JSON without white space, as the other readers keep shapes; None for a text that is cut."""
    try:
        return orjson.dumps(orjson.loads(sizes)).decode()
    except orjson.JSONDecodeError:
        return None


def _memory_kinds(tables: ExportTables) -> dict[int, str]:
    """The kinds of memory of this version."""
    return _MEMORY_KINDS | {key: label for key, (_, label) in tables.read_enum("ENUM_CUDA_MEM_KIND").items() if label}
