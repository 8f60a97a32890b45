"""What the rows of the field guide ask about a program, derived once from its report and one of its ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from perfdoctor.analysis.context.where_it_ran import DeviceKind
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.classify_ops import classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Outcome, Report
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.nesting import own_durations

_HALF_TYPES = frozenset({"c10::Half", "c10::BFloat16"})
# EfficientNetV2 and NVIDIA's guide ask for at least a tile's 32 channels before Tensor Cores gain anything.
_TILE_CHANNELS = 32
_FLOAT_TYPES = _HALF_TYPES | {"float", "double"}


@frozen_dataclass
class ProgramTraits:
    """A program as the field guide asks about it. What is not known is None.

    Attributes:
        report: The report on all ranks.
        facts: What was captured beside the trace; false without a capture.
        available: Which requirements of rules the rank meets, or its evidence window.
        device_kind: What the program ran on.
        device: Name of the GPU.
        has_tensor_cores: Whether it has Tensor Cores.
        balance: FLOPs that the GPU can do in the time of a byte, in float32; None where its peaks are not known.
        processes: How many processes the job has.
        devices: How many GPUs the process used.
        unit: "step" or "trace".
        op_names: The distinct names of the ops, in the evidence window as well.
        time_share: By category the share (0 to 1) of the kernel time, on a CPU of the time of outermost ops.
        depthwise_share: Share (0 to 1) of the time of convolutions that depthwise ones take, and grouped ones of fewer
            channels a group than a tile of Tensor Cores has.
        flops_share: Share (0 to 1) of the known FLOPs that matrix products and convolutions have.
        flops_known: Share (0 to 1) of the kernel time whose FLOPs are known.
        wait_share: Share (0 to 1) of the time that the loop waited for a loader; None where it asked none.
        copies: How many copies from host to device are in the analysed time; None without GPU items.
        input_types: Floating-point types of the inputs of ops; empty without recorded inputs.
        checkpoints: Whether activations are computed again; None where neither ops nor frames were recorded.
        account: The account's buckets and details as shares (0 to 1) of the window.
        tensor_core: Time of matrix work by how it uses Tensor Cores, as in the account; empty without a GPU.
    """

    report: Report
    facts: CapturedFacts
    available: frozenset[str]
    device_kind: DeviceKind
    device: str | None
    has_tensor_cores: bool | None
    balance: float | None
    processes: int
    devices: int
    unit: str
    op_names: frozenset[str]
    time_share: Mapping[str, float]
    depthwise_share: float
    flops_share: float | None
    flops_known: float
    wait_share: float | None
    copies: int | None
    input_types: frozenset[str]
    checkpoints: bool | None
    account: Mapping[str, float] = field(default_factory=dict)
    tensor_core: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """What the program does: "training", "inference", "evaluation" or "unknown"."""
        return self.report.context.phase

    @property
    def is_forward_only(self) -> bool:
        """Whether it is known to update no weights."""
        return self.report.context.is_forward_only

    @property
    def parallelism(self) -> tuple[str, ...]:
        """How the program spreads over devices."""
        return self.report.context.parallelism

    def findings(self, *rules: str) -> tuple[Finding, ...]:
        """The findings of some rules, in the order of the report."""
        return tuple(finding for finding in self.report.findings if finding.rule in rules)

    def outcome(self, rule: str) -> Outcome | None:
        """What became of a rule; None where it was not applied."""
        return next((outcome for outcome in self.report.outcomes if outcome.rule == rule), None)

    def ran(self, *rules: str) -> bool:
        """Whether all of these rules ran."""
        return all((outcome := self.outcome(rule)) is not None and outcome.status == "ran" for rule in rules)

    def has_op(self, pattern: str) -> str | None:
        """The first name, in their order, of an op that a regular expression is found in; None where there is none."""
        return min((name for name in self.op_names if re.search(pattern, name)), default=None)


def traits_of(report: Report, rank: Rank) -> ProgramTraits:
    """What the field guide asks about a program, from the report on all its ranks and one of them."""
    trace, facts = rank.trace, rank.facts
    traces = [trace] if rank.evidence_trace is None else [trace, rank.evidence_trace]
    flops_share, flops_known = _flops_of_matrix_work(rank)
    return ProgramTraits(
        report=report,
        facts=facts,
        available=rank.available_data | (frozenset() if rank.evidence is None else rank.evidence.available_data),
        device_kind=rank.device_kind,
        device=rank.hardware.label,
        has_tensor_cores=rank.hardware.tensor_cores if rank.device_kind == "gpu" else None,
        balance=_balance(rank),
        processes=_count_processes(report, facts),
        devices=max(len(distinct(trace.gpu.device)), len(facts.devices), 0),
        unit=rank.unit_name,
        op_names=frozenset(each.strings[code] for each in traces for code in each.name_ids(each.ops)),
        time_share=_time_by_category(rank),
        depthwise_share=_share_of_depthwise(rank),
        flops_share=flops_share,
        flops_known=flops_known,
        wait_share=_wait_share(rank),
        copies=_count_host_to_device(rank),
        input_types=_input_types(traces),
        checkpoints=_recomputes(traces),
        account=_account_shares(rank),
        tensor_core=rank.account.tensor_core if rank.device_kind == "gpu" else {},
    )


def _balance(rank: Rank) -> float | None:
    device = rank.device
    flops = device.vector_peak_flops("fp32") if device is not None else None
    rate = device.memory_bandwidth_bytes_per_s if device is not None else None
    return flops / rate if flops and rate else None


def _count_processes(report: Report, facts: CapturedFacts) -> int:
    world = [trace.world_size for trace in report.traces if trace.world_size is not None]
    return max(len(report.traces), *world, facts.world_size or 1)


def _time_by_category(rank: Rank) -> dict[str, float]:
    """By category the share of the kernel time in the window; on a CPU of the time of ops."""
    if rank.device_kind == "gpu":
        kernels = rank.kernels.in_steps()
        whole = int(rank.trace.gpu.dur_ns[kernels.mask].sum())
        names = {kernel.category for kernel in rank.kernel_classes.by_name.values()}
        by_category = {name: kernels.of_category(name) for name in names}
        times = {name: int(rank.trace.gpu.dur_ns[query.mask].sum()) for name, query in by_category.items()}
        return {name: ns / whole for name, ns in times.items() if ns} if whole else {}
    ops = rank.trace.ops
    if not len(ops):
        return {}
    of_ops_ns = np.maximum(own_durations(ops.parent, ops.dur_ns), 0)
    own_ns = np.bincount(ops.name, of_ops_ns, len(rank.trace.strings))
    found: dict[str, float] = {}
    for code in np.flatnonzero(own_ns).tolist():
        category = str(classify_op(rank.trace.strings[code]))
        found[category] = found.get(category, 0.0) + float(own_ns[code])
    return {name: ns / sum(found.values()) for name, ns in found.items()}


def _share_of_depthwise(rank: Rank) -> float:
    convolutions = rank.kernels.of_category("convolution").in_steps()
    costs = rank.kernel_costs
    few = costs.match_op_costs(lambda c: (c.groups or 1) > 1 and (c.channels_in or _TILE_CHANNELS) < _TILE_CHANNELS)
    narrow = convolutions.where(few[costs.op_cost]) | convolutions.of_class(lambda kernel: kernel.depthwise)
    dur_ns = rank.trace.gpu.dur_ns
    return float(dur_ns[narrow.mask].sum() / max(dur_ns[convolutions.mask].sum(), 1))


def _flops_of_matrix_work(rank: Rank) -> tuple[float | None, float]:
    """The share of the known FLOPs in matrix work, and of the kernel time whose FLOPs are known."""
    in_steps = rank.kernels.in_steps().mask
    flops, dur_ns = rank.kernel_costs.flops, rank.trace.gpu.dur_ns
    known = in_steps & ~np.isnan(flops)
    whole = float(flops[known].sum())
    matrix = np.zeros(len(known), bool)
    for category in MATRIX_CATEGORIES:
        matrix |= rank.kernels.of_category(category).mask
    time_known = float(dur_ns[known].sum()) / max(float(dur_ns[in_steps].sum()), 1.0)
    return (float(flops[known & matrix].sum()) / whole if whole else None), time_known


def _wait_share(rank: Rank) -> float | None:
    """Without the profiler where a capture timed that; None where the loop asked no loader."""
    steps, waits = rank.facts.base.step_ns, rank.facts.base.loader_wait_ns
    if not len(rank.loader_waits) and not rank.facts.loaders:
        return None
    if len(steps) == len(waits):
        timed = [(step, wait) for step, wait in zip(steps, waits, strict=True) if step is not None and wait is not None]
        whole = sum(step for step, _ in timed)
        if whole > 0:
            return min(sum(wait for _, wait in timed) / whole, 1.0)
    if not len(rank.loader_waits) or not rank.window_ns:
        return None
    return iv.total(iv.intersect(rank.loader_waits.intervals, rank.window)) / rank.window_ns


def _count_host_to_device(rank: Rank) -> int | None:
    if rank.device_kind != "gpu":
        return None
    return int((copy_kinds_of(rank.trace).matches(vocabulary.HTOD) & rank.in_window).sum())


def _input_types(traces: list[Trace]) -> frozenset[str]:
    codes = {(trace, code) for trace in traces for code in distinct(trace.ops.types).tolist() if code >= 0}
    texts = (trace.strings[code] for trace, code in codes)
    return frozenset(name for text in texts for name in _FLOAT_TYPES if f'"{name}"' in text)


def _recomputes(traces: list[Trace]) -> bool | None:
    """Whether the backward pass computes activations again; None where only kernels were recorded."""
    if not any(len(trace.ops) or len(trace.frames) for trace in traces):
        return None
    return any(
        bool(trace.match_strings(trace.ops, vocabulary.RECOMPUTE_OP).any())
        or bool(trace.match_strings(trace.frames, vocabulary.RECOMPUTE_FRAME).any())
        for trace in traces
    )


def _account_shares(rank: Rank) -> dict[str, float]:
    """The account as shares (0 to 1) of the window: its buckets, and the details that are not a bucket."""
    account = rank.account
    if not account.window_ns:
        return {}
    return {name: ns / account.window_ns for name, ns in {**account.detail, **account.buckets}.items()}
