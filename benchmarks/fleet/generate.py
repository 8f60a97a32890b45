"""Fleets to measure on: traces of many ranks, and summaries of still more."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.read.repeat import shifted, split
from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.rules import registry
from perfdoctor.testing import SyntheticFleet

_STEPS = 40  # of each sample that is repeated
_IDS = 1_000_000
_SAMPLES = 16  # ranks that the generated summaries are copies of


def write_fleet(folder: Path, ranks: int, megabytes: int) -> None:
    """Write a trace of that size for each rank, the last but one late; those that are there already stay.

    Each is a short trace over and over at later times, by the same time on all ranks, so that their collectives match.
    """
    wanted = [folder / f"rank{rank}.json" for rank in range(ranks)]
    if all(path.exists() and path.stat().st_size >= megabytes * 1_000_000 for path in wanted):
        return
    folder.mkdir(parents=True, exist_ok=True)
    fleet = SyntheticFleet(ranks, steps=_STEPS, sequences=False).late_loader(ranks - 2, by_us=3000)
    samples = [builder.to_bytes() for builder in fleet.builders()]
    span_us = max(map(_span_us, samples))
    for path, sample in zip(wanted, samples, strict=True):
        head, events, tail = split(sample)
        with path.open("wb") as out:
            out.write(head + events)
            times = 1
            while out.tell() < megabytes * 1_000_000:
                out.write(b"," + shifted(events, times * span_us, times * _IDS, times * _STEPS))
                times += 1
            out.write(tail)


def _span_us(sample: bytes) -> int:
    events = json.loads(sample)["traceEvents"]
    timed = [event for event in events if "ts" in event]
    first = min(float(event["ts"]) for event in timed)
    return math.ceil(max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed) - first) + 1000


def summaries(ranks: int, steps: int) -> Iterator[RankSummary]:
    """Summaries as they come from workers: each of its own objects, of a rank that differs from all others.

    They are copies of a few analysed ranks, with other numbers and with arrivals at collectives that vary by chance.
    """
    fleet = SyntheticFleet(_SAMPLES, steps=steps).late_loader(3, by_us=3000).slow_backward(5, 1.2)
    rules = registry.registered()
    sent = [pickle.dumps(pipeline.summarize_rank(Rank(b.trace()), rules)) for b in fleet.builders()]
    chance = random.Random(0)
    for rank in range(ranks):
        summary: RankSummary = pickle.loads(sent[rank % _SAMPLES])
        summary = summary.renumber(rank, "generated")
        table = summary.collectives
        if table is not None:
            table = replace(table, start_ns=table.start_ns - chance.randrange(20_000))
        yield replace(summary, collectives=table, trace=replace(summary.trace, world_size=ranks))
