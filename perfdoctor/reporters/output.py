"""Texts to standard output, and bytes to files that appear whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfdoctor.errors import InputError, UsageError


def write_stdout(text: str) -> None:
    """Write a text to standard output, with question marks for what its encoding cannot show.

    Raises:
        InputError: It cannot be written, as on a full disk.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise InputError(
            f"standard output cannot be written ({error.strerror or error}); choose another place with -o"
        ) from error


def discard_stdout() -> None:
    """Redirect standard output to nowhere: what is left in its buffer would fail again when it is flushed at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def find_suffix(path: str | os.PathLike[str], suffixes: Sequence[str], what: str = "an output file") -> str:
    """The longest of some suffixes, in lower case, that a file name ends in; `what` is the file, for the message.

    Raises:
        UsageError: It ends in none of them.
    """
    name = Path(path).name.lower()
    for suffix in sorted(suffixes, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    raise UsageError(f"{path}: the suffix of {what} must be one of {', '.join(suffixes)}")


def save_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text to a file, which appears whole or not at all.

    Raises:
        InputError: It cannot be written.
    """
    with open_atomically(path) as out:
        out.write(text.encode(errors="replace"))


@contextmanager
def open_atomically(path: str | os.PathLike[str], advice: str = "choose another place with -o") -> Iterator[BinaryIO]:
    """A file to write bytes to; it takes its name only once it is complete.

    A path that is not a regular file (a pipe, /dev/null) is written directly. `advice` is what to do where it cannot be
    written.

    Raises:
        InputError: It cannot be written.
    """
    target = Path(os.path.realpath(path))
    direct = target.exists() and not target.is_file()
    unfinished = target if direct else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with unfinished.open("wb") as out:
            yield out
        if not direct:
            unfinished.replace(target)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}); {advice}") from error
    finally:
        if not direct:
            with suppress(OSError):
                unfinished.unlink()
