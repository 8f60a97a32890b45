"""The recordings of ../shared, each read and analysed once in a process: that is most of the time of tests on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import perfdoctor
from perfdoctor.pipeline import run_rule
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import FleetAnalyzer, Run
from perfdoctor.trace import Trace
from perfdoctor.trace.tables.split_ranks import split_ranks


@cache
def read_once(path: Path) -> Trace:
    """The trace in a file. It is a frozen value, so that all tests may share it; all 45 take 0.2 GB."""
    return perfdoctor.read(path)


@cache
def find_once(path: Path) -> tuple[tuple[Rank, tuple[Finding, ...]], ...]:
    """Each rank in a file, and what the rules on one rank find there, before pricing."""
    rules = [rule for rule in registry.load_analyzers() if not issubclass(rule, FleetAnalyzer)]
    ranks = [Rank(trace) for trace in split_ranks(read_once(path))]
    return tuple((rank, tuple(found for rule in rules for found in run_rule(rule, Run((rank,)))[0])) for rank in ranks)


@cache
def analyze_once(path: Path) -> Report:
    """The report on a file or folder, as users get it without options."""
    return perfdoctor.analyze(path)
