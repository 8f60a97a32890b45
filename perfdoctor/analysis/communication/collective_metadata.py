"""What is recorded of collectives beside their times: process group, sequence number, size and element type."""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables.model import Trace

# Bytes an element, by the names that c10::ScalarType prints.
_BYTES = {
    "double": 8,
    "long": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}
# Descriptions of a group that do not say its purpose.
_NO_PURPOSE = frozenset({"", "undefined"})


@frozen_dataclass(eq=False)
class CollectiveMetadata:
    """What is recorded of collectives, one row each; -1 where nothing is recorded.

    Attributes:
        strings: The texts that `group`, `label` and `dtype` are codes of.
        group: Name and ranks of the process group, the same on all its members.
        label: The purpose of the group, else its name.
        dtype: Element type.
        group_size: Ranks in the group.
        seq: Number of the collective within the group.
        bytes: What this rank put into it.
    """

    strings: tuple[str, ...]
    group: Int32Array
    label: Int32Array
    dtype: Int32Array
    group_size: Int32Array
    seq: Int64Array
    bytes: Int64Array


def collective_metadata(trace: Trace, rows: Int32Array) -> CollectiveMetadata:
    """What is recorded of collectives, given by their rows in `trace.comms` (-1: nothing is recorded)."""
    comms = trace.comms
    known = rows >= 0
    texts: dict[str, int] = {}
    group, label, dtype = (np.full(len(rows), NONE, np.int32) for _ in range(3))
    at = rows[known]
    columns = (comms.group, comms.description, comms.ranks)
    names = [_group_names(trace, *codes) for codes in zip(*(column[at].tolist() for column in columns), strict=True)]
    group[known] = [_code_of(texts, name) for name, _ in names]
    label[known] = [_code_of(texts, purpose) for _, purpose in names]
    dtype[known] = [_code_of(texts, trace.text(code)) for code in comms.dtype[at].tolist()]
    strings = tuple(texts)
    width = np.array([*(_BYTES.get(text.lower(), NONE) for text in strings), NONE], np.int64)[dtype]
    elements = _take_rows(comms.in_elements, rows)
    return CollectiveMetadata(
        strings=strings,
        group=group,
        label=label,
        dtype=dtype,
        group_size=_take_rows(comms.group_size, rows).astype(np.int32),
        seq=_take_rows(comms.sequence, rows),
        bytes=np.where((width > 0) & (elements >= 0), width * elements, NONE),
    )


def _take_rows(column: Int64Array, rows: Int32Array) -> Int64Array:
    """Some rows of a column; the value of row -1 is -1."""
    return np.append(column, NONE)[rows]


def _group_names(trace: Trace, name: int, description: int, ranks: int) -> tuple[str | None, str | None]:
    """The name of a group with its ranks, which is the same on all members, and its label; None where not recorded."""
    if name < 0 and description < 0:
        return None, None
    group, purpose, members = (trace.text(code) or "" for code in (name, description, ranks))
    return f"{group} {members}".strip(), group if purpose in _NO_PURPOSE else purpose


def _code_of(texts: dict[str, int], text: str | None) -> int:
    """The number of a text, which is added to the texts if it is new; -1 for None."""
    return NONE if text is None else texts.setdefault(text, len(texts))
