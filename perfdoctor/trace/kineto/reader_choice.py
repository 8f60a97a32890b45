"""Which of the two readers reads a file: the compiled one pays where loading it costs less than it saves."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from perfdoctor.errors import UsageError
from perfdoctor.trace.io.stream import Stream
from perfdoctor.trace.scanner import scanner_code as native

VARIABLE = "PERFDOCTOR_READER"
"""Environment variable that names a reader: "fast" or "reference"; for tests and for comparing them."""

FAST, REFERENCE = "fast", "reference"

_SMALL = 1 << 20
_WORTH_COMPILING = 64 << 20
_RATIO = 12  # of a trace's text to what gzip makes of it: 7 to 25 in real ones


class Choice(NamedTuple):
    """Whether the fast reader reads a file, and what the user should know about that."""

    fast: bool
    notes: tuple[str, ...] = ()


def choose(stream: Stream) -> Choice:
    """The reader for a file.

    The reference reads 25 MB of text a second, the fast reader 500, but its machine code takes 30 ms to load where LLVM
    has to do it, and 5 s to compile the first time. So where it is at hand it reads what is larger than 1 MB; else it
    is compiled for files from 64 MB on, which would take the reference 2.5 s, as everybody who reads one such file
    reads more of them. `perfdoctor check --warm` compiles ahead. What a compressed file holds is guessed from its size;
    a pipe is not worth compiling for.

    Raises:
        UsageError: the environment names a reader that does not exist.
    """
    told = named()
    if told:
        return Choice(told == FAST)
    size = _SMALL if stream.size is None else stream.size * (_RATIO if stream.compressed else 1)
    if native.is_loaded() or size < _SMALL:
        return Choice(native.is_loaded())
    if size < _WORTH_COMPILING and native.kept_in() is None:
        return Choice(fast=False)
    try:
        native.load()
    except Exception as error:  # of a package that is missing, too new for another, or built for another machine
        why = str(error).partition("\n")[0] or type(error).__name__
        return Choice(
            False, (f"read with the slow reader, because numba cannot be used ({why}); pip install -U numba",)
        )
    return Choice(fast=True)


def prepare(text_bytes: int) -> None:
    """Compile for processes that are about to read that much text together, if that pays: once, and not in each."""
    if named() != REFERENCE and text_bytes >= _WORTH_COMPILING and native.kept_in() is None:
        with suppress(Exception):  # each of them says why
            native.load()


def named() -> str:
    """The reader that the environment names; empty when it names none.

    Raises:
        UsageError: there is no such reader.
    """
    told = os.environ.get(VARIABLE, "")
    if told not in ("", FAST, REFERENCE):
        raise UsageError(f"{VARIABLE}={told}: there is no such reader; it is {FAST} or {REFERENCE}")
    return told
