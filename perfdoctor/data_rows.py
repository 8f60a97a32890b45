"""The rows of the CSV files that come with the package."""

from __future__ import annotations

import csv
from pathlib import Path


def read_rows(file: str) -> list[dict[str, str]]:
    """The rows of a file of the package, such as "gpu/data/devices.csv"; lines that begin with # are comments."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
