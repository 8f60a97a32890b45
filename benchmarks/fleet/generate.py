"""Fleets to measure on: traces of many ranks, and summaries of still more."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.lengthen_trace import parse_sample, write_repeated
from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.rules import registry
from perfdoctor.testing import SyntheticFleet

_STEPS = 40  # of each trace that is repeated
_ANALYSED_RANKS = 16  # the generated summaries are copies of theirs


def write_fleet(folder: Path, ranks: int, megabytes: float) -> None:
    """Write a trace of that size for each rank, with the last but one late; complete files of an earlier run stay.

    Each is a short trace repeated at later times, by the same time on all ranks, so that their collectives match.
    """
    paths = [folder / f"rank{rank}.json" for rank in range(ranks)]
    size_bytes = int(megabytes * 1_000_000)
    if all(path.exists() and path.stat().st_size >= size_bytes for path in paths):
        return
    folder.mkdir(parents=True, exist_ok=True)
    fleet = SyntheticFleet(ranks, steps=_STEPS, sequences=False).late_loader(ranks - 2, by_us=3000)
    samples = [parse_sample(builder.to_bytes()) for builder in fleet.builders()]
    repeats = math.ceil(size_bytes / min(len(sample.events) for sample in samples))
    span_us = max(sample.span_us for sample in samples)
    for path, sample in zip(paths, samples, strict=True):
        write_repeated(sample, path, repeats, span_us)


def generate_summaries(ranks: int, steps: int) -> Iterator[RankSummary]:
    """Summaries as they arrive from workers: each a separate object, of a rank that differs from all others.

    They are copies of a few analysed ranks, with other rank numbers and with arrivals at collectives that vary.
    """
    fleet = SyntheticFleet(_ANALYSED_RANKS, steps=steps).late_loader(3, by_us=3000).slow_backward(5, 1.2)
    rules = registry.load_analyzers()
    pickles = [pickle.dumps(pipeline.summarize_rank(Rank(b.trace()), rules)) for b in fleet.builders()]
    generator = random.Random(0)
    for rank in range(ranks):
        summary: RankSummary = pickle.loads(pickles[rank % _ANALYSED_RANKS])
        summary = summary.renumber(rank, "generated")
        table = summary.collectives
        if table is not None:
            table = replace(table, start_ns=table.start_ns - generator.randrange(20_000))
        yield replace(summary, collectives=table, trace=replace(summary.trace, world_size=ranks))
