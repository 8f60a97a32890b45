"""What is recorded of collectives: group, sequence number and size, in columns beside those of their times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
# Descriptions that say nothing about what the group is for.
_NO_PURPOSE = frozenset({"", "undefined"})


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveMetadata:
    """What is recorded of collectives, one row each; -1 where nothing is recorded.

    Attributes:
        strings: The texts that `group`, `label` and `dtype` are codes of.
        group: Name and ranks of the process group, the same on all its members.
        label: What to call it: its purpose, or its name.
        dtype: Element type.
        group_size: Ranks in the group.
        seq: Number of the collective within the group.
        bytes: What this rank put in.
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
    names = zip(*(column[at].tolist() for column in (comms.group, comms.description, comms.ranks)), strict=True)
    groups = [_group_names(trace, *codes) for codes in names]
    group[known] = [_code_of(texts, key) for key, _ in groups]
    label[known] = [_code_of(texts, title) for _, title in groups]
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
    """What names a group on all its members, and what to call it."""
    if name < 0 and description < 0:
        return None, None
    title, purpose, members = (trace.text(code) or "" for code in (name, description, ranks))
    return f"{title} {members}".strip(), title if purpose in _NO_PURPOSE else purpose


def _code_of(texts: dict[str, int], text: str | None) -> int:
    return NONE if text is None else texts.setdefault(text, len(texts))
