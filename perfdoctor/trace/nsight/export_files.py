"""Recognise files of Nsight Systems, before anything that reads them is imported."""

from __future__ import annotations

import os

from perfdoctor.errors import TraceError

MAGIC = b"SQLite format 3\x00"
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def is_nsight(head: bytes) -> bool:
    """Whether a file that begins like this is an SQLite database: of all profilers only Nsight Systems writes such."""
    return head.startswith(MAGIC)


def refuse_report(path: str | os.PathLike[str]) -> None:
    """Refuse a report of Nsight Systems that is not exported: only its own tools can read it.

    Raises:
        TraceError: the name is that of such a report.
    """
    name = os.fspath(path)
    if name.lower().endswith(_REPORTS):
        raise TraceError(
            f"{name}: a report of Nsight Systems; export it with `nsys export --type sqlite {os.path.basename(name)}` "
            "and give the .sqlite file"
        )
