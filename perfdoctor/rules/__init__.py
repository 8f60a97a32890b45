"""The public interface for authors of rules: rules import all that they need from here.

docs/writing_rules.md explains cost, saving, claim, edit and upper bound with a worked example, and
`perfdoctor.testing.check_rule` tests a rule.
"""

from __future__ import annotations

from perfdoctor.analysis.captured_facts import captured_list, captured_part, yes_or_no
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.analysis.context.context import Context
from perfdoctor.analysis.host.hot_path import Activity, HotPath, find_hot_path, find_pause_path
from perfdoctor.analysis.host.loader_waits import find_worker_starts, find_worker_startups, find_worker_stops
from perfdoctor.analysis.host.locations import SourceLocation, most_common_location
from perfdoctor.analysis.queries import CallQuery, GpuQuery, OpQuery
from perfdoctor.analysis.timeline.pauses import PauseGroup, pausing_threads
from perfdoctor.analysis.timeline.recurrence import (
    Recurrence,
    count_recurrence,
    is_rare,
    median_step_ns,
    split_one_offs,
)
from perfdoctor.rank import Rank
from perfdoctor.report.finding import HOT_PATH, Evidence, Finding, FindingScope
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.rules.advice import Advice, advise
from perfdoctor.rules.amounts import format_frequency, format_per_step, format_time
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.edits import (
    Edit,
    fuse,
    remove_blocking,
    remove_calls,
    remove_cpu_time,
    remove_items,
    remove_pauses,
    remove_sections,
    remove_waits,
    scale_durations,
    set_duration_range,
    set_durations,
    shorten_launches,
)
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals, nesting
from perfdoctor.trace.tables.distinct import distinct, distinct_rows, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import CallRows, GpuRows, OpRows

__all__ = [
    "HOT_PATH",
    "NONE",
    "REQUIREMENTS",
    "Activity",
    "Advice",
    "Analyzer",
    "BoolArray",
    "CallQuery",
    "CallRows",
    "Claim",
    "CollectiveTable",
    "Context",
    "Edit",
    "Evidence",
    "Finding",
    "FindingScope",
    "Fleet",
    "FleetAnalyzer",
    "FloatArray",
    "GpuQuery",
    "GpuRows",
    "HotPath",
    "Int8Array",
    "Int32Array",
    "Int64Array",
    "Intervals",
    "LateRank",
    "MatchedCollectives",
    "OpQuery",
    "OpRows",
    "PauseGroup",
    "Rank",
    "RankAnalyzer",
    "RankSummary",
    "Recurrence",
    "Run",
    "Saving",
    "SourceLocation",
    "Trace",
    "activity_kinds",
    "advise",
    "captured_list",
    "captured_part",
    "count_recurrence",
    "distinct",
    "distinct_rows",
    "find_hot_path",
    "find_pause_path",
    "find_worker_starts",
    "find_worker_startups",
    "find_worker_stops",
    "format_frequency",
    "format_per_step",
    "format_time",
    "fuse",
    "intervals",
    "is_rare",
    "median_step_ns",
    "most_common_location",
    "nesting",
    "occurring",
    "pausing_threads",
    "remove_blocking",
    "remove_calls",
    "remove_cpu_time",
    "remove_items",
    "remove_pauses",
    "remove_sections",
    "remove_waits",
    "scale_durations",
    "set_duration_range",
    "set_durations",
    "shorten_launches",
    "split_one_offs",
    "top_kernels",
    "top_op",
    "vocabulary",
    "yes_or_no",
]
