"""The way to the cases of the rules, and to the traces that hypothesis makes."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "diagnosis"):
    if str(folder) not in sys.path:  # importlib mode puts no test folder on the path
        sys.path.append(str(folder))
