"""The public interface for authors of rules: rules import all that they need from here.

docs/writing_rules.md explains cost, saving, claim, edit and upper bound with a worked example, and
`perfdoctor.testing.check_rule` tests a rule.
"""

from __future__ import annotations

from perfdoctor.analysis.captured_facts import yes_or_no
from perfdoctor.analysis.communication.bus_bandwidth import bus_bytes
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.analysis.context.context import Context
from perfdoctor.analysis.host.hot_path import Activity, HotPath, find_hot_path, find_pause_path
from perfdoctor.analysis.host.loader_waits import LoaderWaits, find_worker_starts, find_worker_stops
from perfdoctor.analysis.host.locations import SourceLocation, captured_location, most_common_location
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.analysis.queries import CallQuery, GpuQuery, OpQuery
from perfdoctor.analysis.timeline.account import Account
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps, match_blocking_calls
from perfdoctor.analysis.timeline.pauses import PauseGroup, pausing_threads
from perfdoctor.analysis.timeline.recurrence import (
    Recurrence,
    count_recurrence,
    is_rare,
    median_step_ns,
    split_one_offs,
)
from perfdoctor.facts.captured import (
    CapturedFacts,
    CheckpointingFacts,
    CompileFacts,
    CoreUse,
    CpuFacts,
    HostCall,
    KeptGraphs,
    LoadedLibraries,
    MixedPrecisionCalls,
    TorchFlags,
)
from perfdoctor.facts.gpu_facts import NvmlDevice, NvmlFacts
from perfdoctor.facts.loaders import BatchFetch, LoaderFacts
from perfdoctor.facts.models import (
    BiasBeforeNorm,
    DdpSettings,
    FsdpSettings,
    ModelChecksums,
    ModelFacts,
    OptimizerFacts,
)
from perfdoctor.facts.part import CapturedLine
from perfdoctor.gpu import Device, classify_op, find_device
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY, SHORTEST_KERNEL_NS, KernelBounds
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs, TensorInput, UnusableInputsError
from perfdoctor.places.account_by_place import PlaceAccount
from perfdoctor.places.place import Place, PlaceName
from perfdoctor.rank import Rank
from perfdoctor.remedies.advice import Advice, Row, When, rows_of
from perfdoctor.remedies.choose_advice import advise
from perfdoctor.report.finding import CALLED_AT, HOT_PATH, USED_AT, Action, Evidence, Finding, FindingScope
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.waits_at_late_rank import LongerPlace, find_longer_place
from perfdoctor.rules.amounts import format_frequency, format_per_step
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run
from perfdoctor.rules.kernel_evidence import top_kernels, top_op
from perfdoctor.rules.matrix_kernels import find_matrix_kernels, find_tensor_core_kernels
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.savings.edits import (
    Edit,
    fuse,
    move_work,
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
from perfdoctor.savings.unprofiled_time import UnprofiledTime
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals, nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct, distinct_rows, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, MEMSET, Calls, Frames, GpuItems, Ops, Ranges, Trace
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.trace.tables.rows import CallRows, GpuRows, OpRows
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.units import format_bytes, format_ranges, format_rate, format_time

__all__ = [
    "BANDWIDTH",
    "CALLED_AT",
    "COMPUTE",
    "HOT_PATH",
    "KERNEL",
    "LATENCY",
    "MEMCPY",
    "MEMSET",
    "NONE",
    "REQUIREMENTS",
    "SHORTEST_KERNEL_NS",
    "USED_AT",
    "Account",
    "Action",
    "Activity",
    "Advice",
    "Analyzer",
    "BatchFetch",
    "BiasBeforeNorm",
    "BoolArray",
    "CallQuery",
    "CallRows",
    "Calls",
    "CapturedFacts",
    "CapturedLine",
    "CheckpointingFacts",
    "Claim",
    "CollectiveTable",
    "CompileFacts",
    "Context",
    "CoreUse",
    "CpuFacts",
    "DdpSettings",
    "Device",
    "Edit",
    "Evidence",
    "Finding",
    "FindingScope",
    "Fleet",
    "FleetAnalyzer",
    "FloatArray",
    "Frames",
    "FsdpSettings",
    "GpuItems",
    "GpuQuery",
    "GpuRows",
    "HostCall",
    "HotPath",
    "IdleGaps",
    "Int8Array",
    "Int32Array",
    "Int64Array",
    "Intervals",
    "KeptGraphs",
    "KernelBounds",
    "KernelCosts",
    "LateRank",
    "LoadedLibraries",
    "LoaderFacts",
    "LoaderWaits",
    "LongerPlace",
    "MatchedCollectives",
    "MixedPrecisionCalls",
    "ModelChecksums",
    "ModelFacts",
    "NvmlDevice",
    "NvmlFacts",
    "OpCost",
    "OpQuery",
    "OpRows",
    "Ops",
    "OptimizerFacts",
    "PauseGroup",
    "Place",
    "PlaceAccount",
    "PlaceName",
    "Ranges",
    "Rank",
    "RankAnalyzer",
    "RankSummary",
    "RecordedInputs",
    "Recurrence",
    "Replay",
    "Row",
    "Run",
    "Saving",
    "SourceLocation",
    "Steps",
    "TensorInput",
    "TorchFlags",
    "Trace",
    "UnprofiledTime",
    "UnusableInputsError",
    "When",
    "activity_kinds",
    "advise",
    "bus_bytes",
    "captured_location",
    "classify_op",
    "copy_kinds_of",
    "cost_of_op",
    "count_recurrence",
    "distinct",
    "distinct_rows",
    "find_device",
    "find_hot_path",
    "find_longer_place",
    "find_matrix_kernels",
    "find_pause_path",
    "find_tensor_core_kernels",
    "find_worker_starts",
    "find_worker_stops",
    "format_bytes",
    "format_frequency",
    "format_per_step",
    "format_ranges",
    "format_rate",
    "format_time",
    "fuse",
    "intervals",
    "is_rare",
    "match_blocking_calls",
    "median_step_ns",
    "most_common_location",
    "move_work",
    "nesting",
    "occurring",
    "optimizer_steps_of",
    "pausing_threads",
    "quantiles",
    "remove_blocking",
    "remove_calls",
    "remove_cpu_time",
    "remove_items",
    "remove_pauses",
    "remove_sections",
    "remove_waits",
    "rows_of",
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
