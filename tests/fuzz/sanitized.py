"""A plugin of pytest: the library with sanitizers takes the place of the one that is installed."""

from __future__ import annotations

import os
from pathlib import Path

from perfdoctor.trace.scanner import core_library

core_library._FOLDER = Path(os.environ["PERFDOCTOR_FUZZ_LIBRARY"])
if not core_library.load_library().perfdoctor_restrict(os.environ["PERFDOCTOR_FUZZ_INSTRUCTIONS"].encode()):
    raise RuntimeError("the library does not know these instructions")
