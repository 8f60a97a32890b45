"""The way to the traces that hypothesis makes."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # importlib mode puts no test folder on the path
    sys.path.append(str(HERE))
