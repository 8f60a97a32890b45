"""The public interface for authors of rules: rules import all that they need from here.

docs/writing_rules.md explains cost, saving, claim, edit and upper bound with a worked example, and
`perfdoctor.testing.check_rule` tests a rule.
"""

from __future__ import annotations

from perfdoctor.analysis.captured_facts import RunSteps, StepTimes, step_times_of, yes_or_no
from perfdoctor.analysis.communication.bus_bandwidth import bus_bytes
from perfdoctor.analysis.communication.collectives import CollectiveTable, CollectiveTotal
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.analysis.communication.rank_waits import exposed_wait_of, find_longest_waiter
from perfdoctor.analysis.communication.stragglers import DOMINANT_SHARE, LateRank
from perfdoctor.analysis.context.context import Context
from perfdoctor.analysis.core_contention import (
    NO_CONTENTION,
    CoreContention,
    cores_without_others,
    count_free_cores,
    is_shared_throughout,
    without_others,
)
from perfdoctor.analysis.forward_ops import forward_ops_of
from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.host.host_copies import (
    HostCopies,
    copy_limit_bytes_per_s,
    host_copies,
    pinned_bytes_per_s,
    time_lost_by_copies,
)
from perfdoctor.analysis.host.hot_path import Activity, HotPath, find_hot_path, find_pause_path
from perfdoctor.analysis.host.loader_waits import (
    LoaderWaits,
    find_epoch_starts,
    find_worker_starts,
    find_worker_stops,
    loader_waits_of,
)
from perfdoctor.analysis.host.locations import (
    SourceLocation,
    captured_location,
    find_locations,
    has_locations,
    innermost_frame,
    loop_thread_of,
    most_common_location,
    user_frame,
)
from perfdoctor.analysis.kernels import traffic_kinds
from perfdoctor.analysis.kernels.hardware import find_lowest_device
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import VERDICTS
from perfdoctor.analysis.launching_ops import (
    find_outermost_ops,
    launching_op_names,
    launching_ranges,
    match_launching_ops,
    match_op_names,
)
from perfdoctor.analysis.match_rows import RowChange
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.analysis.queries import CallQuery, GpuQuery, OpQuery
from perfdoctor.analysis.recomputed_work import RecomputedSections, recomputed_sections_of
from perfdoctor.analysis.step_times import (
    Preemption,
    compare_windows,
    count_work,
    cpu_time_ratio,
    even_out_work,
    find_preemption,
    find_preemption_beside_run,
    uses_threads,
)
from perfdoctor.analysis.timeline import phases
from perfdoctor.analysis.timeline.account import Account
from perfdoctor.analysis.timeline.engine_passes import EnginePasses
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps, match_blocking_calls
from perfdoctor.analysis.timeline.own_time import PYTHON
from perfdoctor.analysis.timeline.padded_rows import count_rows_of_passes
from perfdoctor.analysis.timeline.pauses import PauseGroup, pausing_threads
from perfdoctor.analysis.timeline.recurrence import (
    Recurrence,
    count_recurrence,
    is_rare,
    median_step_ns,
    split_one_offs,
)
from perfdoctor.analysis.timeline.starvation import StarvationRoot
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
from perfdoctor.facts.forms import MeasuredForm
from perfdoctor.facts.gpu_facts import NvmlDevice, NvmlFacts
from perfdoctor.facts.loaders import BatchFetch, LoaderFacts
from perfdoctor.facts.models import (
    BiasBeforeNorm,
    DdpSettings,
    FsdpSettings,
    ModelChecksums,
    ModelFacts,
    OptimizerFacts,
    UnusedGradients,
)
from perfdoctor.facts.part import CapturedLine
from perfdoctor.facts.recorded_memory import OutOfMemoryFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device, classify_op, find_device
from perfdoctor.gpu.gemm_alignment import (
    PAD_MULTIPLE,
    GemmDimension,
    access_width_fraction,
    misaligned_dimensions,
    pad_dimension,
)
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.comparable_kernels import find_reach
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op
from perfdoctor.gpu.roofline.efficiencies import ANY as ANY_KERNEL
from perfdoctor.gpu.roofline.efficiencies import KernelFamily, efficiencies_of, name_generation
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY, SHORTEST_KERNEL_NS, KernelBounds
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs, TensorInput, UnusableInputsError
from perfdoctor.memory import categories as memory_categories
from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.device_memory import DeviceMemory, Selection
from perfdoctor.memory.evidence import BACKWARD, FORWARD, OPTIMIZER
from perfdoctor.memory.memory_edits import MemoryEdit, allocated_after, change_settings, shrink
from perfdoctor.memory.slack import Slack, slack_at
from perfdoctor.places.account_by_place import PlaceAccount
from perfdoctor.places.place import Place, PlaceName
from perfdoctor.rank import Rank
from perfdoctor.remedies.advice import Advice, Row, When, rows_of
from perfdoctor.remedies.choose_advice import advise, read_advice
from perfdoctor.remedies.read_causes import read_texts
from perfdoctor.report.finding import CALLED_AT, HOT_PATH, USED_AT, Action, Evidence, Finding, FindingScope
from perfdoctor.report.memory_pricing import is_full
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.waits_at_late_rank import LongerPlace, find_longer_place
from perfdoctor.rules.amounts import format_frequency, format_per_step
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer, Run
from perfdoctor.rules.kernel_evidence import top_kernels, top_op
from perfdoctor.rules.matrix_kernels import MatrixCategory, find_matrix_kernels, find_tensor_core_kernels
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.run_watch.hang import Hang, HangKind
from perfdoctor.run_watch.run_drift import RunDrift
from perfdoctor.run_watch.window_growth import OpGrowth, WindowGrowth
from perfdoctor.savings.apply_edits import lengthen_items
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
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.savings.unprofiled_time import UnprofiledTime
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals, nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct, distinct_rows, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import (
    KERNEL,
    MEMCPY,
    MEMSET,
    AllocatorSettings,
    Calls,
    Frames,
    GpuItems,
    Ops,
    Ranges,
    Trace,
)
from perfdoctor.trace.tables.quantiles import quantiles
from perfdoctor.trace.tables.rows import CallRows, GpuRows, OpRows
from perfdoctor.trace.tables.steps import Steps, find_steps
from perfdoctor.units import format_bytes, format_ms, format_ranges, format_rate, format_time

__all__ = [
    "ANY_KERNEL", "BACKWARD", "BANDWIDTH", "CALLED_AT", "COMPUTE", "DOMINANT_SHARE", "FORWARD", "HOT_PATH", "KERNEL",
    "LATENCY", "MATRIX_CATEGORIES", "MEMCPY", "MEMSET", "NONE", "NO_CONTENTION", "OPTIMIZER", "PAD_MULTIPLE", "PYTHON",
    "REQUIREMENTS", "SHORTEST_KERNEL_NS", "USED_AT", "VERDICTS", "Account", "Action", "Activity", "Advice",
    "AllocatorReplay", "AllocatorSettings", "Analyzer", "BatchFetch", "BiasBeforeNorm", "BoolArray", "CallQuery",
    "CallRows", "Calls", "CapturedFacts", "CapturedLine", "CheckpointingFacts", "Claim", "CollectiveTable",
    "CollectiveTotal", "CompileFacts", "Context", "CoreContention", "CoreUse", "CpuFacts", "DdpSettings", "Device",
    "DeviceMemory", "Edit", "EnginePasses", "Evidence", "Finding", "FindingScope", "Fleet", "FleetAnalyzer",
    "FloatArray", "Frames", "FsdpSettings", "GemmDimension", "GpuItems", "GpuQuery", "GpuRows", "Hang", "HangKind",
    "HostCall", "HostCopies", "HotPath", "IdleGaps", "Int8Array", "Int32Array", "Int64Array", "Intervals", "KeptGraphs",
    "KernelBounds", "KernelClasses", "KernelCosts", "KernelFamily", "LateRank", "LoadedLibraries", "LoaderFacts",
    "LoaderWaits", "LongerPlace", "MatchedCollectives", "MatrixCategory", "MeasuredForm", "MemoryEdit",
    "MixedPrecisionCalls", "ModelChecksums", "ModelFacts", "NvmlDevice", "NvmlFacts", "OpCost", "OpGrowth", "OpQuery",
    "OpRows", "Ops", "OptimizerFacts", "OutOfMemoryFacts", "PauseGroup", "Place", "PlaceAccount", "PlaceName",
    "Preemption", "Ranges", "Rank", "RankAnalyzer", "RankSummary", "RecomputedSections", "RecordedInputs", "Recurrence",
    "Replay", "Row", "RowChange", "Run", "RunDrift", "RunSteps", "SavedBytes", "Saving", "Selection", "Slack",
    "SourceLocation", "StarvationRoot", "StepTimes", "Steps", "TensorInput", "TorchFlags", "Trace", "UnprofiledTime",
    "UnusableInputsError", "UnusedGradients", "When", "WindowGrowth", "access_width_fraction", "activity_kinds",
    "advise", "allocated_after", "bus_bytes", "captured_location", "change_settings", "classify_op", "compare_windows",
    "compile_time", "copy_kinds_of", "copy_limit_bytes_per_s", "cores_without_others", "cost_of_op", "count_free_cores",
    "count_recurrence", "count_rows_of_passes", "count_work", "cpu_time_ratio", "distinct", "distinct_rows",
    "efficiencies_of", "even_out_work", "exposed_wait_of", "find_device", "find_epoch_starts", "find_hot_path",
    "find_locations", "find_longer_place", "find_longest_waiter", "find_lowest_device", "find_matrix_kernels",
    "find_outermost_ops", "find_pause_path", "find_preemption", "find_preemption_beside_run", "find_reach",
    "find_steps", "find_tensor_core_kernels", "find_worker_starts", "find_worker_stops", "format_bytes",
    "format_frequency", "format_ms", "format_per_step", "format_ranges", "format_rate", "format_time", "forward_ops_of",
    "frozen_dataclass", "fuse", "has_locations", "host_copies", "innermost_frame", "intervals", "is_full", "is_rare",
    "is_shared_throughout", "launching_op_names", "launching_ranges", "lengthen_items", "loader_waits_of",
    "loop_thread_of", "match_blocking_calls", "match_launching_ops", "match_op_names", "median_step_ns",
    "memory_categories", "misaligned_dimensions", "most_common_location", "move_work", "name_generation", "nesting",
    "occurring", "optimizer_steps_of", "pad_dimension", "pausing_threads", "phases", "pinned_bytes_per_s", "quantiles",
    "read_advice", "read_texts", "recomputed_sections_of", "remove_blocking", "remove_calls", "remove_cpu_time",
    "remove_items", "remove_pauses", "remove_sections", "remove_waits", "rows_of", "scale_durations",
    "set_duration_range", "set_durations", "shorten_launches", "shrink", "slack_at", "split_one_offs", "step_times_of",
    "time_lost_by_copies", "top_kernels", "top_op", "traffic_kinds", "user_frame", "uses_threads", "vocabulary",
    "without_others", "yes_or_no",
]  # fmt: skip
