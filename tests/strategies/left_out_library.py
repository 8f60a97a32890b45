"""Tests as where the C library cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perfdoctor.trace.scanner import core_library

PROBLEM = "the library is left out"


@contextmanager
def without_library() -> Iterator[None]:
    """Lets Python do what the C library does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core_library, "_try_to_load", lambda _: core_library.LibraryError(PROBLEM))
        yield
