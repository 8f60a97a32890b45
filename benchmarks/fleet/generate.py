"""Fleets to measure on: traces of many ranks, and summaries of still more."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.lengthen_trace import parse_sample, write_repeated
from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import Outcome
from perfdoctor.rules import registry
from perfdoctor.testing import SyntheticFleet

_STEPS = 40  # of each trace that is repeated
_ANALYSED_RANKS = 16  # the generated summaries are copies of theirs
_VARIANTS = 32
_MAX_EARLY_NS = 20_000  # by which ranks come earlier to a collective than the one that they are copies of


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


class Template(NamedTuple):
    """A rank as it is sent.

    Attributes:
        summary: Its pickled summary, without outcomes.
        outcomes: Their objects would take most of the time to generate a rank, and are merged first of all.
    """

    summary: bytes
    outcomes: tuple[Outcome, ...]


def make_templates(steps: int) -> list[Template]:
    """Ranks of which generated summaries are copies: of a few analysed ranks, two of them slow, some variants each.

    A variant arrives at each collective a little earlier, each time by another amount.

    Args:
        steps: Steps in each trace.
    """
    fleet = SyntheticFleet(_ANALYSED_RANKS, steps=steps).late_loader(3, by_us=3000).slow_backward(5, 1.2)
    rules = registry.load_analyzers()
    analysed = [pipeline.summarize_rank(Rank(each.trace()), rules) for each in fleet.builders()]
    generator = np.random.default_rng(0)
    templates = []
    for _ in range(_VARIANTS):
        for summary in analysed:
            table = summary.collectives
            if table is not None:
                early_ns = generator.integers(0, _MAX_EARLY_NS, len(table))
                table = replace(table, start_ns=table.start_ns - early_ns)
            variant = replace(summary, collectives=table, outcomes=())
            templates.append(Template(pickle.dumps(variant), summary.outcomes))
    return templates


def generate_summaries(templates: Sequence[Template], ranks: Iterable[int], job_ranks: int) -> Iterator[RankSummary]:
    """Summaries as they arrive from workers: each of another rank, and with columns and values of its own.

    Args:
        templates: See `make_templates`.
        ranks: The ranks to generate.
        job_ranks: The ranks of the job.
    """
    for rank in ranks:
        template = templates[rank % len(templates)]
        summary: RankSummary = pickle.loads(template.summary)
        summary = summary.renumber(rank, "generated")
        trace = replace(summary.trace, world_size=job_ranks)
        yield replace(summary, trace=trace, outcomes=template.outcomes)
