"""The choice between the two readers: the compiled one pays where loading it costs less than it saves."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from perfdoctor.errors import UsageError
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.scanner import scanner_code

VARIABLE = "PERFDOCTOR_READER"
"""Environment variable that names a reader: "fast" or "reference"; for tests and for comparing them."""

FAST, REFERENCE = "fast", "reference"

_SMALL_BYTES = 1 << 20
_COMPILING_PAYS_BYTES = 64 << 20
_COMPRESSION = 12  # a trace's text over what gzip makes of it: 7 to 25 in real ones


class ReaderChoice(NamedTuple):
    """Whether the fast reader reads a file, and what the user should know about that."""

    fast: bool
    notes: tuple[str, ...] = ()


def choose_reader(stream: TextStream) -> ReaderChoice:
    """The reader for a file.

    The reference reads 25 MB of text a second, the fast reader 500. But the machine code of the fast one takes 30 ms to
    load where LLVM has to do it, and 5 s to compile the first time. So files larger than 1 MB are read with it where it
    is on disk already. Else it is compiled for files from 64 MB on, which would take the reference 2.5 s: who reads one
    such file reads more of them. `perfdoctor check --warm` compiles ahead. The text in a compressed file is estimated
    from its size; a pipe is not worth compiling for.

    Raises:
        UsageError: the environment names a reader that does not exist.
    """
    name = reader_from_environment()
    if name:
        return ReaderChoice(name == FAST)
    size = _SMALL_BYTES if stream.size is None else stream.size * (_COMPRESSION if stream.is_compressed else 1)
    if scanner_code.is_loaded() or size < _SMALL_BYTES:
        return ReaderChoice(scanner_code.is_loaded())
    if size < _COMPILING_PAYS_BYTES and scanner_code.cached_in() is None:
        return ReaderChoice(fast=False)
    try:
        scanner_code.load()
    except Exception as error:  # of a package that is missing, too new for another, or built for another machine
        why = str(error).partition("\n")[0] or type(error).__name__
        return ReaderChoice(
            False, (f"read with the slow reader, because numba cannot be used ({why}); pip install -U numba",)
        )
    return ReaderChoice(fast=True)


def compile_ahead(text_bytes: int) -> None:
    """Compile for processes that are about to read that much text together, if that pays: once, and not in each."""
    pays = reader_from_environment() != REFERENCE and text_bytes >= _COMPILING_PAYS_BYTES
    if pays and scanner_code.cached_in() is None:
        with suppress(Exception):  # each of the processes says why
            scanner_code.load()


def reader_from_environment() -> str:
    """The name of the reader that the environment asks for; empty when it asks for none.

    Raises:
        UsageError: there is no such reader.
    """
    name = os.environ.get(VARIABLE, "")
    if name not in ("", FAST, REFERENCE):
        raise UsageError(f"{VARIABLE}={name}: there is no such reader; it is {FAST} or {REFERENCE}")
    return name
