"""A path becomes text: opens trace files, compressed or not, and says in one sentence why one cannot be opened."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import NoReturn, TypeAlias

from perfdoctor.errors import TraceError

Text: TypeAlias = bytes | bytearray
"""JSON text as it stands in the file, UTF-8."""

_PIECE = 1 << 14  # what precedes a damaged place is kept up to one piece of compressed text
_BOM = b"\xef\xbb\xbf"
_PRINTS = re.compile(rb"[^ \t\r\n]")
_GZIP = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"SQLite format 3\x00": "an SQLite database, and Nsight Systems exports are not read yet; "
    "give the .json that torch.profiler writes",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; decompress it first, or write .json.gz",
    b"PK\x03\x04": "a zip archive; unpack it and give the .json file inside",
    b"\x80\x02": "a pickle; give the .json that torch.profiler's export_chrome_trace writes",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


def load(path: str | os.PathLike[str]) -> Text:
    """The text of a trace file, inflated when its first bytes say gzip, whatever its name.

    A compressed file that is cut or damaged is inflated as far as it goes: then its JSON ends early too.

    Raises:
        TraceError: it cannot be opened, is empty, or is of a format that is no JSON text.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        refuse(path, error)
    for magic, kind in _OTHER_FORMATS.items():
        if data.startswith(magic):
            raise TraceError(f"{path}: not a JSON trace but {kind}")
    compressed = data.startswith(_GZIP)
    text, whole = _inflate(data) if compressed else (data, True)
    if not _PRINTS.search(text):
        if whole:
            raise TraceError(f"{path}: the file is empty; record the trace again, or wait until it is written")
        raise TraceError(f"{path}: the compressed file is cut or damaged before its first event; copy it again")
    return text[len(_BOM) :] if text.startswith(_BOM) else text


def refuse(path: Path, error: OSError | ValueError) -> NoReturn:
    """Say in one sentence why a path cannot be opened.

    Raises:
        TraceError: always.
    """
    if isinstance(error, FileNotFoundError):
        reason = "no such file; check the path, or where the profiler was told to write"
    elif isinstance(error, IsADirectoryError):
        reason = "this is a folder; give a trace file in it, or the folder to `perfdoctor analyze`"
    elif isinstance(error, PermissionError):
        reason = "no permission to read it; change its mode or copy it"
    elif isinstance(error, OSError):
        reason = f"it cannot be read ({error.strerror or type(error).__name__}); check the disk, or copy the file here"
    else:
        reason = "this is no file name; check the path"
    raise TraceError(f"{path}: {reason}".replace("\x00", "\\0")) from error


def _inflate(data: bytes) -> tuple[bytearray, bool]:
    """Inflate every member of a gzip file as far as it goes; returns the text and whether that is all of it."""
    text = bytearray()
    view = memoryview(data)
    at = 0
    # Zero bytes after the last member are padding that tape and block copies leave.
    while at < len(data) and (data[at] or data[at:].strip(b"\x00")):
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not inflater.eof:
            if at >= len(data):
                return text, False
            try:
                text += inflater.decompress(view[at : at + _PIECE])
            except zlib.error:
                return text, False
            at = min(at + _PIECE, len(data))
        at -= len(inflater.unused_data)
    return text, True
