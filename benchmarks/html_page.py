"""What a page costs beyond the analysis: python -m benchmarks.html_page [TRACE...] [--events 1000000] [--rounds 5].

Each trace is lengthened to a million events. `analyze` and `analyze -o report.html` take turns, each a whole process,
so that they see the same load; the ratio is that of their CPU times. The goals are less than 3 s and 500 MB beyond the
analysis, and a page under 5 MB. A trace without steps costs most: then all of it is the timeline.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import perfdoctor
from benchmarks.compare_speed import ProcessTime, measure_command
from benchmarks.lengthen_trace import parse_sample, write_repeated
from benchmarks.measure import measure_peak_bytes

SAMPLE = Path(__file__).resolve().parent.parent / "sample_traces" / "host-device-sync.json.gz"
MAX_SECONDS, MAX_BYTES, MAX_PAGE_BYTES = 3.0, 500_000_000, 5_000_000


class PageCost(NamedTuple):
    """What was measured of one trace.

    Attributes:
        events: Events of the long trace.
        analyze: Median time of `analyze`.
        page: Median time of `analyze` with a page.
        analyze_bytes: Peak memory of `analyze`.
        page_bytes: Peak memory with a page.
        file_bytes: Size of the page.
    """

    events: int
    analyze: ProcessTime
    page: ProcessTime
    analyze_bytes: int
    page_bytes: int
    file_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the goals are reached."""
        return (
            self.page.wall_s - self.analyze.wall_s < MAX_SECONDS
            and self.page_bytes - self.analyze_bytes < MAX_BYTES
            and self.file_bytes < MAX_PAGE_BYTES
        )


def lengthen(trace: Path, out: Path, events: int) -> int:
    """Write a trace of about so many events to `out`; returns how many it has."""
    short = perfdoctor.read(trace).events
    text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    repeats = max(round(events / short), 1)
    write_repeated(parse_sample(text), out, repeats)
    return repeats * short


def measure(trace: Path, page: Path, events: int, rounds: int) -> PageCost:
    """What the page of a trace costs."""
    plain, with_page = ("analyze", "-q", trace), ("analyze", "-q", trace, "-o", page)
    times: dict[tuple[object, ...], list[ProcessTime]] = {plain: [], with_page: []}
    for number in range(rounds + 1):
        for command, taken in times.items():
            one = measure_command(*command)
            if number:  # the first round compiles and fills caches
                taken.append(one)
    peaks = [measure_peak_bytes(*command) for command in times]
    medians = [ProcessTime(*map(median, zip(*taken, strict=True))) for taken in times.values()]
    return PageCost(events, *medians, *peaks, page.stat().st_size)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=[SAMPLE], help="short traces, .json or .json.gz")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of each trace that is measured")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each; the medians are printed")
    options = parser.parse_args(argv)
    costs = []
    print("| trace | events | analyze, s (CPU) | with page, s (CPU) | more, s (CPU) | ratio | more MB | page, MB | |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for trace in options.traces:
        with tempfile.TemporaryDirectory() as folder:
            long, page = Path(folder, "long.json"), Path(folder, "report.html")
            cost = measure(long, page, lengthen(trace, long, options.events), options.rounds)
        costs.append(cost)
        print(
            f"| {trace.name.removesuffix('.gz').removesuffix('.json')} | {cost.events:,} | "
            f"{cost.analyze.wall_s:.2f} ({cost.analyze.cpu_s:.2f}) | {cost.page.wall_s:.2f} ({cost.page.cpu_s:.2f}) | "
            f"{cost.page.wall_s - cost.analyze.wall_s:.2f} ({cost.page.cpu_s - cost.analyze.cpu_s:.2f}) | "
            f"{cost.page.cpu_s / cost.analyze.cpu_s:.2f} | "
            f"{(cost.page_bytes - cost.analyze_bytes) / 1e6:,.0f} | {cost.file_bytes / 1e6:.2f} | "
            f"{'' if cost.fits else 'too much'} |",
            flush=True,
        )
    return 0 if all(cost.fits for cost in costs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
