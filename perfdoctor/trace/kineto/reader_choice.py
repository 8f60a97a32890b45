"""The choice between the two readers: the fast one, in C, or the one in Python where the C library cannot be used."""

from __future__ import annotations

import os
from typing import NamedTuple

from perfdoctor.errors import UsageError
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.scanner.core_library import find_problem

VARIABLE = "PERFDOCTOR_READER"
"""Environment variable that names a reader: "fast" or "reference"; for tests and for comparing them."""

FAST, REFERENCE = "fast", "reference"

_SMALL_BYTES = 10 << 20  # of text: the reference reads 25 MB a second


class ReaderChoice(NamedTuple):
    """Whether the fast reader reads a file, and what the user should know about that."""

    fast: bool
    notes: tuple[str, ...] = ()


def choose_reader(stream: TextStream) -> ReaderChoice:
    """The reader for a file: the fast one where it can be used; a note says why not, where that costs time.

    Raises:
        UsageError: the environment names a reader that does not exist.
    """
    if reader_from_environment() == REFERENCE:
        return ReaderChoice(fast=False)
    problem = find_problem()
    if not problem:
        return ReaderChoice(fast=True)
    is_small = stream.size is not None and not stream.is_compressed and stream.size < _SMALL_BYTES
    return ReaderChoice(False, () if is_small else (f"read with the slow reader, because {problem}",))


def reader_from_environment() -> str:
    """The name of the reader that the environment asks for; empty when it asks for none.

    Raises:
        UsageError: there is no such reader.
    """
    name = os.environ.get(VARIABLE, "")
    if name not in ("", FAST, REFERENCE):
        raise UsageError(f"{VARIABLE}={name}: there is no such reader; it is {FAST} or {REFERENCE}")
    return name
