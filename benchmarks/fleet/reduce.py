"""Reduces generated summaries; prints seconds, peak memory and sizes as JSON: python -m benchmarks.fleet.reduce 10000.

``--group 1000`` reduces in two levels, as many machines would: each group of so many ranks becomes a part in a file, by
a process of its own, and a last process reads the parts and makes the report. Counted is the work of both levels:
merging each group and writing it, reading all parts, merging them, and the report with its rules. The summaries are
generated before, in the process that merges them, and not counted. Processes of their own, because peak memory is that
of a whole process.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fleet.generate import Template, generate_summaries, make_templates
from perfdoctor import pipeline
from perfdoctor.fleet.reconcile_ranks import reconcile_ranks
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.reduce_ranks import FleetPart, drop_charts_of_shorter_steps, from_rank, reduce_parts
from perfdoctor.report.report import Report
from perfdoctor.rules import registry

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--group", type=int, help="reduce groups of so many ranks first, into files")
    parser.add_argument("--folder", type=Path, help="of these files, 50 kB a rank; by default a temporary one")
    options = parser.parse_args()
    if options.group:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            figures = _reduce_in_two_levels(options, Path(folder))
    else:
        figures = _reduce_at_once(options)
    print(json.dumps(figures))


def _reduce_at_once(options: argparse.Namespace) -> dict[str, Any]:
    """All in memory, as in `fleet.analyze_files` when the last summary has arrived."""
    summaries = _collect(generate_summaries(_make_templates(options), range(options.ranks), options.ranks))
    figures: dict[str, Any] = {"peak_bytes_before": _peak_bytes(), "summary_bytes": len(pickle.dumps(summaries[0]))}
    with _Stopwatch(figures):
        report = _report_on(map(from_rank, reconcile_ranks(summaries)))
    return figures | _describe(report)


def _make_templates(options: argparse.Namespace) -> list[Template]:
    """The templates; what it takes to analyse them is no memory of this process."""
    with multiprocessing.Pool(1) as pool:
        return pool.apply(make_templates, (options.steps,))


def _collect(arriving: Iterable[RankSummary]) -> list[RankSummary]:
    """The summaries in a list; as in `fleet.analyze_files` only the longest step so far keeps its tables."""
    summaries: list[RankSummary] = []
    longest = 0
    for summary in arriving:
        summaries.append(summary)
        summaries[longest], summaries[-1] = drop_charts_of_shorter_steps([summaries[longest], summary])
        longest = len(summaries) - 1 if summaries[-1].tables else longest
    return summaries


def _reduce_group(options: argparse.Namespace, templates: Sequence[Template], path: Path, first: int) -> dict[str, Any]:
    """The first level: one group of ranks becomes a part in a file."""
    ranks = range(first, min(first + options.group, options.ranks))
    summaries = _collect(generate_summaries(templates, ranks, options.ranks))
    figures: dict[str, Any] = {"summary_bytes": len(pickle.dumps(summaries[0]))}
    with _Stopwatch(figures), path.open("wb") as file:
        pickle.dump(reduce_parts(map(from_rank, summaries)), file, protocol=pickle.HIGHEST_PROTOCOL)
    return figures


def _reduce_in_two_levels(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    templates = _make_templates(options)
    paths = {first: folder / f"{first}.part" for first in range(0, options.ranks, options.group)}
    with multiprocessing.Pool(1, maxtasksperchild=1) as pool:
        tasks = [(options, templates, path, first) for first, path in paths.items()]
        groups = pool.starmap(_reduce_group, tasks, chunksize=1)
    figures: dict[str, Any] = {"summary_bytes": groups[0]["summary_bytes"]}
    for name in ("seconds", "cpu_seconds"):
        figures[f"first_level_{name}"] = sum(group[name] for group in groups)
    figures["first_level_peak_bytes"] = max(group["peak_bytes"] for group in groups)
    figures["parts_bytes"] = sum(path.stat().st_size for path in paths.values())
    with _Stopwatch(figures):
        report = _report_on(_read_parts(paths.values()))
    for name in ("seconds", "cpu_seconds"):
        figures[f"both_levels_{name}"] = figures[f"first_level_{name}"] + figures[name]
    return figures | _describe(report)


def _read_parts(paths: Iterable[Path]) -> Iterator[FleetPart]:
    """The parts in some files. Of millions of objects that all stay there is no garbage to look for meanwhile."""
    for path in paths:
        gc.disable()
        with path.open("rb") as file:
            part = pickle.load(file)
        gc.enable()
        yield part


def _report_on(parts: Iterable[FleetPart]) -> Report:
    return pipeline.report_on_summaries(parts, registry.load_analyzers())


def _describe(report: Report) -> dict[str, Any]:
    return {"ranks": len(report.traces), "findings": [finding.rule for finding in report.findings]}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES


class _Stopwatch:
    """Adds the seconds, CPU time and peak memory of its block to some figures."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures = figures

    def __enter__(self) -> None:
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._figures["seconds"] = time.perf_counter() - self._start
        self._figures["cpu_seconds"] = time.process_time() - self._cpu_start
        self._figures["peak_bytes"] = _peak_bytes()


if __name__ == "__main__":
    main()
