"""What stands first in reports on recordings of serving engines, beside what is wrong there by their raw files.

    python -m benchmarks.serving [SHARED]

tests/corpus/engine_passes.toml has the truth of each recording; SHARED is the folder that has them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import perfdoctor
from perfdoctor.report.report import Report

REPOSITORY = Path(__file__).resolve().parents[1]
TRUTH = REPOSITORY / "tests" / "corpus" / "engine_passes.toml"
_ABOVE_LOW = ("high", "medium")


def first_of(report: Report) -> str:
    """The first finding above low with its fix; else what part of the account the report cannot explain."""
    first = report.findings[0] if report.findings else None
    if first is not None and first.severity in _ABOVE_LOW:
        return f"{first.rule}, {first.title}; fix: {first.fix or 'none'}"
    largest = max(report.unexplained, key=lambda each: each.ns, default=None)
    return "nothing" if largest is None else f"nothing; unexplained: {largest.detail} {largest.share:.0%}"


def rows_of(shared: Path) -> Iterator[str]:
    """A row of the table for each recording."""
    recordings: list[Mapping[str, Any]] = tomllib.loads(TRUTH.read_text(encoding="utf-8"))["recording"]
    for truth in recordings:
        window_us = truth["window_us"] - truth.get("once_us", 0)
        passes = f"{truth['passes']} {truth['kind']}, {truth['requests']} requests, {truth['tokens']} tokens"
        times = f"{window_us / 1e3:.1f} ms, {truth['busy_us'] / window_us:.0%}"
        first = first_of(perfdoctor.analyze(shared / truth["path"])).replace("\n", " ")
        yield f"| {Path(truth['path']).name.partition('.')[0]} | {passes} | {times} | {truth['cause']} | {first} |"


def main() -> int:
    """Print the table."""
    shared = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY.parent / "shared"
    print("| recording | passes | a pass, GPU busy | first cause, by the raw file | first in the report |")
    print("|---|---|---|---|---|")
    print(*rows_of(shared), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
