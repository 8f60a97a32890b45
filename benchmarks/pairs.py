"""What reports promise against what changes gave: recordings of a program before and after a change.

    python -m benchmarks.pairs [FOLDER] [--markdown]

FOLDER has PAIRS.csv and the recordings. Of each pair the slow recording is analysed; the savings of the findings that
the change addresses are compared with what it gave. Savings are what each fix gives in its turn, so they add up.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import perfdoctor
from perfdoctor.savings.saving import Saving, SavingAlone

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "pairs"
NOISE = 0.04
"""How much recordings of one program differ, as a share of the step (four recordings of h100-null)."""
MIN_RATIO, MAX_RATIO = 0.6, 1.6
"""Limits of what is expected over what was measured."""

# What in the text of a change is addressed by which rules. Whatever names no rule must find no promise.
_RULES_OF_CHANGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        r"num_workers": ("PD101",),
        r"fp32 -> (?:bf16|fp16|AMP)": ("PD201", "PD203", "PD205"),
        r"SDPA": ("PD205",),
        r"\bcompile\b": ("PD301", "PD302", "PD306"),
    }
)
_BATCH_PROMISE = re.compile(r"batch .{0,20}times as large would", re.IGNORECASE)


class Range(NamedTuple):
    """A promise, in ms of a step; `expected_ms` is None where only a bound is known."""

    low_ms: float
    expected_ms: float | None
    high_ms: float


@dataclass(frozen=True)
class Pair:
    """One change of a program.

    Attributes:
        name: The pair, as in PAIRS.csv.
        changed: What was changed.
        step_ms: The step before the change.
        measured_ms: What the change gave; None where that cannot be compared, as of another batch.
        rules: The rules whose findings the change addresses.
        promised: What these findings promise; None where there are none.
        promises_batch: Whether any advice says how many times as large a batch would keep the GPU busy.
    """

    name: str
    changed: str
    step_ms: float
    measured_ms: float | None
    rules: tuple[str, ...]
    promised: Range | None
    promises_batch: bool

    @property
    def ratio(self) -> float | None:
        """What was expected over what was measured; None where either is unknown or nothing."""
        if not self.measured_ms or self.promised is None or self.promised.expected_ms is None:
            return None
        return self.promised.expected_ms / self.measured_ms

    @property
    def contains_measured(self) -> bool:
        """Whether the promise contains what was measured, within the noise between recordings."""
        if self.measured_ms is None:
            return not self.promises_batch
        promised, noise_ms = self.promised or Range(0, 0, 0), NOISE * self.step_ms
        return promised.low_ms - noise_ms <= self.measured_ms <= promised.high_ms + noise_ms

    @property
    def holds(self) -> bool:
        """Whether the promise was good: it contains what came, its middle is near, and nothing came of no promise."""
        if not self.contains_measured:
            return False
        if self.measured_ms == 0:
            expected_ms = 0.0 if self.promised is None else self.promised.expected_ms or 0.0
            return expected_ms <= NOISE * self.step_ms
        return self.ratio is None or MIN_RATIO <= self.ratio <= MAX_RATIO


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns 1 if a promise was not good, 2 if there is no such folder."""
    folders = [Path(argument) for argument in arguments if not argument.startswith("--")]
    folder = folders[0] if folders else DEFAULT_FOLDER
    if not (folder / "PAIRS.csv").is_file():
        print(f"{folder}/PAIRS.csv is not there: name the folder with the pairs", file=sys.stderr)
        return 2
    pairs = list(read_pairs(folder))
    print("\n".join(format_table(pairs)))
    return 0 if all(pair.holds for pair in pairs) else 1


def read_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the pairs of PAIRS.csv, each with what its slow recording promises."""
    with (folder / "PAIRS.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        report = perfdoctor.analyze(str(_slow_recording(folder, row["pair"])))
        rules = {rule for text, some in _RULES_OF_CHANGES.items() if re.search(text, row["changed"]) for rule in some}
        measured = row["measured_saving_ms"]
        yield Pair(
            name=row["pair"],
            changed=row["changed"],
            step_ms=float(row["step_before_ms"]),
            measured_ms=float(measured) if measured else None,
            rules=tuple(sorted(rules)),
            promised=_promise_of(report, rules),
            promises_batch=any(_BATCH_PROMISE.search(finding.advice) for finding in report.findings),
        )


def _slow_recording(folder: Path, name: str) -> Path:
    """The recording before the change: the first of "../traces/x-workers0 and 4", else `before` of the folder."""
    first = name.partition(" and ")[0]
    return folder / f"{first}.json.gz" if first != name else folder / name / "before.json.gz"


def _promise_of(report: perfdoctor.Report, rules: set[str]) -> Range | None:
    savings: list[Saving | SavingAlone]
    savings = [finding.saving for finding in report.findings if finding.rule in rules and finding.saving.high_ns]
    if not savings:
        return None
    if len(savings) == 1 and isinstance(savings[0], Saving) and savings[0].alone.high_ns is not None:
        savings = [savings[0].alone]  # the change was made alone
    expected = [saving.expected_ns for saving in savings if saving.expected_ns is not None]
    return Range(
        sum(saving.low_ns or 0 for saving in savings) / 1e6,
        sum(expected) / 1e6 if expected else None,
        sum(saving.high_ns or 0 for saving in savings) / 1e6,
    )


def format_table(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield "| pair: change | step | rules | promised: low, expected, high | measured | expected / measured | holds |"
    yield "|---|---|---|---|---|---|---|"
    for pair in pairs:
        promised = "nothing" if pair.promised is None else ", ".join(_format_ms(ms) for ms in pair.promised)
        measured = "cannot be compared" if pair.measured_ms is None else _format_ms(pair.measured_ms)
        ratio = "" if pair.ratio is None else f"{pair.ratio:.2f}"
        verdict = "yes" if pair.holds else "**no**"
        yield (
            f"| {Path(pair.name.partition(' and ')[0]).name}: {pair.changed} | {_format_ms(pair.step_ms)} "
            f"| {', '.join(pair.rules) or 'none'} | {promised} | {measured} | {ratio} | {verdict} |"
        )


def _format_ms(ms: float | None) -> str:
    return "n/a" if ms is None else f"{ms:.3g} ms" if ms < 1000 else f"{ms:,.0f} ms"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
