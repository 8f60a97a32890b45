"""Reduces generated summaries; prints seconds, peak memory and sizes as JSON: python -m benchmarks.fleet.reduce 10000.

A process of its own, because peak memory is that of a whole process.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import sys
import time

from benchmarks.fleet.generate import generate_summaries
from perfdoctor import pipeline
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.rules import registry

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    # All in memory, as in `fleet.analyze_files` when the last summary has arrived.
    summaries = list(generate_summaries(options.ranks, options.steps))
    peak_bytes_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
    summary_bytes = len(pickle.dumps(summaries[0]))
    start, cpu_start = time.perf_counter(), time.process_time()
    report = pipeline.report_on_summaries(map(from_rank, summaries), registry.load_analyzers())
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "peak_bytes_before": peak_bytes_before,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES,
                "summary_bytes": summary_bytes,
                "findings": [finding.rule for finding in report.findings],
            }
        )
    )


if __name__ == "__main__":
    main()
