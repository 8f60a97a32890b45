"""The C library, through ctypes: loaded once a process, and left out where that is not possible.

Other threads of Python go on while its functions run. Who asks for it and does not get it reads more slowly: then
`find_problem` is the sentence that says why.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from perfdoctor.trace.scanner.core_sources import hash_sources, library_name
from perfdoctor.trace.scanner.layout import Copy, Nest, Scan, Table

_FOLDER = Path(__file__).parent
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {
    "perfdoctor_run": (_NUMBER, ctypes.POINTER(Scan)),
    "perfdoctor_intern": (_NUMBER, ctypes.c_char_p, _NUMBER, ctypes.POINTER(Table)),
    "perfdoctor_rehash": (None, _ADDRESS, _NUMBER, _ADDRESS, _NUMBER),
    "perfdoctor_copy_events": (_NUMBER, ctypes.POINTER(Copy)),
    "perfdoctor_nest_events": (None, ctypes.POINTER(Nest)),
    "perfdoctor_longest_path": (_NUMBER, _NUMBER, _ADDRESS, _ADDRESS, _ADDRESS),
    "perfdoctor_instructions": (ctypes.c_char_p,),
    "perfdoctor_restrict": (_NUMBER, ctypes.c_char_p),
}
"""For each function of `core/perfdoctor.h` its result and its arguments."""


class LibraryError(Exception):
    """The library cannot be used; the text says why, and what to do."""


def load_library(folder: Path | None = None) -> ctypes.CDLL:
    """The library in a folder, which is the one of this file where none is named.

    Raises:
        LibraryError: it is not there, was built for another platform or from other sources, or the system refuses it.
    """
    library = _try_to_load(folder or _FOLDER)
    if isinstance(library, LibraryError):
        raise library
    return library


@cache
def _try_to_load(folder: Path) -> ctypes.CDLL | LibraryError:
    path = folder / library_name()
    if not path.exists():
        return LibraryError(f"{path.name} is not installed; pip install perfdoctor again, online or with a C compiler")
    try:
        library = ctypes.CDLL(str(path))
        library.perfdoctor_sources.restype = ctypes.c_char_p
        built_from = library.perfdoctor_sources().decode(errors="replace")
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # of another platform, on a disk without execution, damaged
        reason = str(error).replace(str(path), path.name).partition("\n")[0]
        return LibraryError(f"{path.name} cannot be loaded ({reason}); pip install perfdoctor again")
    sources = hash_sources()
    if sources and built_from != sources:
        return LibraryError(f"{path.name} was built from other sources than these; pip install -e . builds it again")
    return library


def find_library() -> ctypes.CDLL | None:
    """The library, or None where it cannot be used."""
    library = _try_to_load(_FOLDER)
    return None if isinstance(library, LibraryError) else library


def find_problem() -> str:
    """Why the library cannot be used, and what to do; empty where it can."""
    library = _try_to_load(_FOLDER)
    return str(library) if isinstance(library, LibraryError) else ""
