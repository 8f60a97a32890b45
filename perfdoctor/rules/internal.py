"""What built-in rules need beyond `perfdoctor.rules`: no promise to anybody else, it changes from release to release.

Each group says why it is not at the door. Import-linter lets rules import these two modules and nothing else.
"""

from __future__ import annotations

# Rules of our own load with each analysis: this builds a class in a quarter of the time of `dataclasses.dataclass`.
from perfdoctor.frozen_dataclass import frozen_dataclass

# What `perfdoctor run` writes about windows, steps and gradients: its form follows the capture, not the rules.
from perfdoctor.analysis.captured_facts import RunSteps, StepTimes, step_times_of
from perfdoctor.facts.models import UnusedGradients

# Steps against each other and against those of a run without the profiler: the statistics of PD001 and PD003.
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

# Drift over a whole run, and what late windows have more of: what PD010 tells, and PD003 leaves out.
from perfdoctor.analysis.match_rows import RowChange
from perfdoctor.run_watch.run_drift import RunDrift
from perfdoctor.run_watch.window_growth import OpGrowth, WindowGrowth
from perfdoctor.units import format_ms

# What a program holds over a whole run: of which PD707 alone speaks.
from perfdoctor.run_watch.memory_growth import MemoryGrowth as MemoryGrowthOfRun
from perfdoctor.run_watch.memory_growth import find_memory_growth

# Who else used the cores: which advice may add threads or processes is for rules on CPU programs alone.
from perfdoctor.analysis.core_contention import (
    NO_CONTENTION,
    CoreContention,
    cores_without_others,
    count_free_cores,
    is_shared_throughout,
    without_others,
)

# Who waited for whom across ranks: parts of a `LateRank`'s diagnosis, each asked by the rules PD401 to PD409 alone.
from perfdoctor.analysis.communication.collectives import CollectiveTotal
from perfdoctor.analysis.communication.late_starts import lateness_by_start, start_apart, starts_late
from perfdoctor.analysis.communication.rank_waits import exposed_wait_of, find_longest_waiter
from perfdoctor.analysis.communication.stragglers import DOMINANT_SHARE

# The passes of a serving engine: what PD801 and PD803 tell, as long as its form follows them alone.
from perfdoctor.analysis.timeline.engine_passes import EnginePasses
from perfdoctor.analysis.timeline.padded_rows import count_rows_of_passes

# Functions of a trace whose result a `Rank` keeps. Built-in rules ask them of the evidence window as well.
from perfdoctor.analysis.forward_ops import forward_ops_of
from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.host.loader_waits import find_epoch_starts, loader_waits_of
from perfdoctor.analysis.host.locations import find_locations, has_locations, loop_thread_of, user_frame
from perfdoctor.places.name_places import find_lines
from perfdoctor.trace.tables.steps import find_steps

# Which op launched what, row by row. At the door queries say it: `.launched_by`, `.launched_in`, `.outermost`.
from perfdoctor.analysis.launching_ops import (
    find_outermost_ops,
    launching_op_names,
    launching_ranges,
    match_launching_ops,
    match_op_names,
)

# Models of one situation, made for the rules of one family: programs on the CPU alone, copies, recomputed sections,
# optimizers, starvation. Their values have the fields that those rules show.
from perfdoctor.analysis.host.cpu_ops import (
    CpuOptimizer,
    cpu_optimizers_of,
    cpu_zeroing_of,
    framework_time,
    ops_of_program,
)
from perfdoctor.analysis.host.host_copies import HostCopies, host_copies, pinned_bytes_per_s, time_lost_by_copies
from perfdoctor.analysis.host.host_made_tensors import copy_bytes, find_factories_before, select_host_made_tensors
from perfdoctor.analysis.kernels.hardware import find_lowest_device
from perfdoctor.analysis.kernels.optimizer_passes import longest_pass
from perfdoctor.analysis.recomputed_work import RecomputedSections, recomputed_sections_of
from perfdoctor.analysis.timeline.copy_groups import CopyGroup, copy_limit_bytes_per_s, group_copies, is_sent_back
from perfdoctor.analysis.timeline.starvation import StarvationRoot
from perfdoctor.savings.apply_edits import lengthen_items

# Numbers and names of classes in columns of a `Rank`; one more class does not change the interface.
from perfdoctor.analysis.kernels import traffic_kinds
from perfdoctor.analysis.timeline import phases
from perfdoctor.analysis.timeline.own_time import PYTHON
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES

# How fast kernels of a library could be, from measured tables: new measurements change these, and their fields.
from perfdoctor.gpu.devices import vendor_of
from perfdoctor.gpu.gemm_alignment import (
    PAD_MULTIPLE,
    GemmDimension,
    access_width_fraction,
    misaligned_dimensions,
    pad_dimension,
)
from perfdoctor.gpu.gemm_tiles import Tiling, cut_into_tiles, tile_of_name
from perfdoctor.gpu.roofline.comparable_kernels import find_reach
from perfdoctor.gpu.roofline.efficiencies import ANY, efficiencies_of, name_generation
from perfdoctor.rules.kernel_ranges import (
    TRIPLE_TF32,
    DurationRange,
    apply_remedy,
    clamp_to_shortest_kernel,
    catch_up,
    efficiencies_on,
    peak_rate,
    roof_times_ns,
)
from perfdoctor.rules.kernel_evidence import topics_of_op
from perfdoctor.rules.matrix_kernels import MIN_TIME_NS, MatrixCategory, Remedy, exclude_small_products, find_helpers

# The threshold of conditions of advice, for a rule that asks the same itself.
from perfdoctor.remedies.advice import MAIN_SHARE

# What stopped a job: asked by the rule on hangs alone.
from perfdoctor.run_watch.hang import Hang, HangKind

# The allocations of a device and what fixes change in them: asked by the rules on memory alone.
from perfdoctor.facts.recorded_memory import OutOfMemoryFacts
from perfdoctor.memory import categories as memory_categories
from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.device_memory import DeviceMemory, Selection
from perfdoctor.memory.evidence import BACKWARD, FORWARD, OPTIMIZER
from perfdoctor.memory.memory_edits import MemoryEdit, allocated_after, change_settings, shrink
from perfdoctor.memory.slack import Slack, slack_at
from perfdoctor.report.memory_pricing import is_full
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.trace.tables.model import AllocatorSettings
