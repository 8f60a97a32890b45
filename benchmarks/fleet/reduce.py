"""Reduces generated summaries in a process of its own; prints seconds, peak memory and sizes as JSON."""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import sys
import time

from benchmarks.fleet.generate import summaries
from perfdoctor import pipeline
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.rules import registry

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    came = list(summaries(given.ranks, given.steps))  # as `fleet.analysis` holds them when the last has come
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    size = len(pickle.dumps(came[0]))
    start, cpu = time.perf_counter(), time.process_time()
    report = pipeline.report_on_summaries(map(from_rank, came), registry.registered())
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "held_bytes": held,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
                "summary_bytes": size,
                "findings": [finding.rule for finding in report.findings],
            }
        )
    )


if __name__ == "__main__":
    main()
