"""The account of memory against a script of its own: `python -m benchmarks.memory_peaks FOLDER`.

For each device of each snapshot with a history: the peak by perfdoctor, and by a walk back from the blocks at the end
of the raw pickle; the largest part of the account, and what findings promise. With a MANIFEST.csv in the folder, its
word on the file stands below, to be read beside them.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from pathlib import Path
from typing import Any

import perfdoctor
from perfdoctor.report.report import Report
from perfdoctor.trace.io.load_pickle import load_plain_pickle

_ROW = "{:42} {:>3} {:>16} {:>16} {:>6}  {}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    truths = _read_truths(folder / "MANIFEST.csv")
    print(_ROW.format("file", "GPU", "peak, bytes", "walked back", "alike", "largest part at the peak"))
    for path in sorted(folder.glob("*.pickle")):
        report, snapshot = perfdoctor.analyze(path), load_plain_pickle(path.read_bytes(), "")
        for summary in report.memory:
            peak = summary.peak
            if peak is None or summary.device is None:
                continue
            walked = walk_back(snapshot, summary.device)
            owner = max(peak.by_category, key=lambda name: peak.by_category[name])
            largest = f"{owner} {peak.by_category[owner] / max(peak.allocated_bytes, 1):.0%}"
            is_alike = "yes" if walked == peak.allocated_bytes else "no"
            print(_ROW.format(path.name, summary.device, peak.allocated_bytes, walked, is_alike, largest))
        print(textwrap.indent(_describe_fixes(report), "    "))
        if truth := truths.get(path.name):
            print(textwrap.fill(truth, 150, initial_indent="    manifest: ", subsequent_indent="      "))


def walk_back(snapshot: Any, device: int) -> int:
    """The most bytes that were requested and not freed: the blocks at the end, and the events before, last first."""
    blocks = [block for each in snapshot["segments"] if each["device"] == device for block in each["blocks"]]
    now = sum(block.get("requested_size", block["size"]) for block in blocks if block["state"] == "active_allocated")
    most: int = now
    for event in reversed(snapshot["device_traces"][device]):
        if event["action"] == "alloc":
            now -= event["size"]
        elif event["action"] == "free_requested":
            now += event["size"]
        most = max(most, now)
    return most


def _read_truths(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}

    def join(row: dict[str, str]) -> str:
        return f"{row['truth'].rpartition('||')[2].strip()}. {row['advice']}"

    with path.open(encoding="utf-8", newline="") as file:
        return {row["file"]: join(row) for row in csv.DictReader(file)}


def _describe_fixes(report: Report) -> str:
    lines = []
    for each in report.findings:
        saved = each.saved_bytes
        if saved is not None:
            lines.append(f"{each.rule} {saved.low / 1e9:.2f} to {saved.high / 1e9:.2f} GB: {each.title}")
    return "\n".join(lines) or "no finding"


if __name__ == "__main__":
    main()
