"""Reports written to files and streams: the only place of the reporters that does so."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from perfdoctor.errors import InputError, UsageError

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.terminal import Terminal

ANNOTATED = ".json.gz"
SUPPORTED = (".json", ".md", ".txt", ANNOTATED)
_LATER = {".html": "HTML", ".htm": "HTML", ".sarif": "SARIF"}
# Wider lines are harder to read; narrower ones leave no room for a table.
_WIDEST, _NARROWEST, _USUAL = 100, 60, 80


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Which of SUPPORTED a file name asks for.

    Raises:
        UsageError: none of them.
    """
    name = Path(path).name.lower()
    for suffix in sorted(SUPPORTED, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    for suffix, kind in _LATER.items():
        if name.endswith(suffix):
            raise UsageError(f"{path}: {kind} reports come in a later version; use .md or .json")
    raise UsageError(f"{path}: the suffix of an output file must be one of {', '.join(SUPPORTED)}")


def save(report: Report, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
    """Write a report; the suffix decides the form: .json, .md, .txt, or .json.gz for the annotated trace of `rank`.

    The file appears whole or not at all.

    Raises:
        UsageError: another suffix, or an annotated trace of several ranks with none chosen.
        InputError: the file cannot be written, or the trace cannot be read again.
    """
    suffix = suffix_of(path)
    if suffix == ANNOTATED:
        from perfdoctor.reporters.chrome import export_chrome_trace

        export_chrome_trace(report, path, rank=rank)
        return
    text = rendered(report, suffix)
    with replacing(path) as out:
        out.write(text.encode(errors="replace"))


def rendered(report: Report, suffix: str) -> str:
    """The report as the text that belongs to a suffix: .json, .md or .txt."""
    if suffix == ".json":
        from perfdoctor.reporters.json_ import Json

        return Json().render(report)
    if suffix == ".md":
        from perfdoctor.reporters.markdown import Markdown

        return Markdown().render(report)
    from perfdoctor.reporters.terminal import Terminal

    return Terminal().render(report)


def print_report(report: Report, *, color: bool | None = None, verbosity: int = 0) -> None:
    """Print a report to standard output; see `terminal_for` for the colour."""
    emit(terminal_for(sys.stdout, color=color, verbosity=verbosity).render(report))


def emit(text: str) -> None:
    """Write a text to standard output, with question marks for what its encoding cannot show.

    Raises:
        InputError: it takes no more, as on a full disk.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence()
        raise InputError(
            f"standard output cannot be written ({error.strerror or error}); choose another place with -o"
        ) from error


def silence() -> None:
    """Lead standard output nowhere: what is left in its buffer would fail once more when it is flushed at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal_for(stream: TextIO, *, color: bool | None = None, verbosity: int = 0) -> Terminal:
    """A Terminal reporter that suits a stream: as wide as its window, coloured on a terminal unless NO_COLOR is set."""
    from perfdoctor.reporters.terminal import Terminal

    interactive = stream.isatty()
    if color is None:
        color = interactive and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = _USUAL
    if interactive:
        width = min(max(shutil.get_terminal_size((_USUAL, 24)).columns, _NARROWEST), _WIDEST)
    return Terminal(width=width, color=color, verbosity=verbosity, unicode=_shows_blocks(stream))


def _shows_blocks(stream: TextIO) -> bool:
    try:
        "█▓▒░─…".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes its name only once it is complete.

    What is no regular file (a pipe, /dev/null) is written as it is.

    Raises:
        InputError: it cannot be written.
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
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); choose another place with -o"
        ) from error
    finally:
        if not direct:
            with suppress(OSError):
                unfinished.unlink()
