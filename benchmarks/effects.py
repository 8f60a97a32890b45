"""Published effects of fixes against the ranges that reports promise for them, by rule and by what binds the step.

    python -m benchmarks.effects [FOLDER]

FOLDER is that of the shared material: effects.csv, and the recordings whose reports promise. The programs differ, so
that no single promise is judged here: of each rule the whole of what it promises is compared with the whole of what
others have published.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import perfdoctor
from perfdoctor.errors import PerfdoctorError

SHARED = Path(__file__).resolve().parents[2] / "shared"
NO_EFFECT = 1.02
"""A published ratio up to this is called no effect, as in the description of the file."""


class Promised(NamedTuple):
    """The range of one finding, as ratios of the step before to the step after; `bound` is the largest part of it."""

    rule: str
    bound: str
    low: float
    high: float


class Effect(NamedTuple):
    """What somebody has published: which rules' fix, and the step before over that after."""

    rules: tuple[str, ...]
    ratio: float


def read_effects(path: Path) -> list[Effect]:
    """The published effects of training and inference; kernels by themselves have no step."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] != "kernel"]
    return [Effect(tuple(row["rule"].replace("+", "/").split("/")), float(row["ratio"])) for row in rows]


def find_promises(report: Mapping[str, Any]) -> Iterator[Promised]:
    """What the findings of a report promise, each alone; those of unknown worth promise nothing."""
    step_ns = report["steps"]["median_ns"] or max((each["window_ns"] for each in report["account"]), default=0)
    parts: Counter[str] = Counter()
    for account in report["account"]:
        parts.update(account["buckets"])
    bound = parts.most_common(1)[0][0] if any(parts.values()) else "unknown"
    for finding in report["findings"]:
        alone = finding["saving"]["alone"]
        if alone["high_ns"] and 0 <= alone["high_ns"] < step_ns:
            low, high = (step_ns / (step_ns - (alone[name] or 0)) for name in ("low_ns", "high_ns"))
            yield Promised(finding["rule"], bound, low, high)


def analyze_all(folder: Path) -> Iterator[Promised]:
    """The promises of all recordings of the shared material; what cannot be analysed promises nothing."""
    for room in ("traces", "recordings", "pairs"):
        for path in sorted((folder / room).glob("*/before*" if room == "pairs" else "*")):
            if path.suffix in (".csv", ".md"):
                continue
            try:
                yield from find_promises(perfdoctor.analyze(path, jobs=1).to_dict())
            except PerfdoctorError as error:
                sys.stderr.write(f"{path.name}: {error}\n")


def compare(promises: Sequence[Promised], effects: Sequence[Effect]) -> Iterator[str]:
    """The rows of the table."""
    of_rule: dict[str, list[Promised]] = defaultdict(list)
    for promise in promises:
        of_rule[promise.rule].append(promise)
    yield "| rule | bound by | promises | range of them | allow for none | published | of it none | inside |"
    yield "|---|---|---:|---|---:|---|---:|---:|"
    for rule in sorted({rule for effect in effects for rule in effect.rules}):
        ratios = sorted(effect.ratio for effect in effects if rule in effect.rules)
        none = sum(ratio <= NO_EFFECT for ratio in ratios)
        mine = of_rule[rule]
        if not mine:
            yield f"| {rule} | | 0 | | | {ratios[0]:.2f} to {ratios[-1]:.2f} ({len(ratios)}) | {none} | |"
            continue
        low, high = min(each.low for each in mine), max(each.high for each in mine)
        inside = sum(low - (NO_EFFECT - 1) <= ratio <= high for ratio in ratios)
        for bound, count in Counter(each.bound for each in mine).most_common():
            those = [each for each in mine if each.bound == bound]
            typical = f"{median(each.low for each in those):.2f} to {median(each.high for each in those):.2f}"
            allows = sum(each.low <= NO_EFFECT for each in those)
            whole = f"{ratios[0]:.2f} to {ratios[-1]:.2f} ({len(ratios)})"
            yield f"| {rule} | {bound} | {count} | {typical} | {allows} | {whole} | {none} | {inside}/{len(ratios)} |"


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    folder = Path(arguments[0]) if arguments else SHARED
    print("\n".join(compare(list(analyze_all(folder)), read_effects(folder / "effects.csv"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
