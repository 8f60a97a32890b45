"""Verdicts, FLOP/s and time over a folder of real traces.

Expected verdicts come from the recorded operand types of the launching op: bf16, fp16 and fp8 gemms use Tensor Cores
where the device has them; float32 may (TF32) or may not; float64 may on the devices that can. Products with a vector
and depthwise convolutions do not need to.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from perfdoctor import read
from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, MATRIX_CATEGORIES, VERDICTS
from perfdoctor.gpu.classify_kernels import clear_kernel_cache
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.tables.model import KERNEL, Trace

DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"
_TENSOR_CORE_TYPES = ("bf16", "fp16", "fp8", "int8")
_LAUNCHES = 1_000_000


def read_ranks(folder: Path) -> Iterator[tuple[str, Rank]]:
    """Yield the path and the rank of every trace of a folder that holds kernels."""
    for path in sorted(folder.rglob("*.json.gz")):
        trace = read(path)
        if (trace.gpu.kind == KERNEL).any():
            yield str(path.relative_to(folder)), Rank(trace)


def expected_verdict(rank: Rank, cost: OpCost) -> str:
    """Return which verdict the operand type of an op suggests for its main kernel."""
    if rank.hardware.tensor_cores is not True:
        return "no"
    if 1 in (cost.m, cost.n):
        return "either (vector)"
    if cost.groups is not None and cost.channels_in == 1:
        return "either (depthw.)"
    volta = rank.device is not None and rank.device.compute_capability == (7, 0)
    if cost.dtype in _TENSOR_CORE_TYPES and not (volta and cost.dtype == "bf16"):
        return "yes"
    return "no" if volta else "either"


def count_verdicts(ranks: Sequence[tuple[str, Rank]]) -> Counter[tuple[str, str, str, str, str]]:
    """Count launches by device, operand type, expected verdict, verdict and basis; `na` is expected of helpers."""
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for _, rank in ranks:
        costs, verdicts = rank.kernel_costs, rank.verdicts
        for row in np.flatnonzero((costs.op_cost >= 0) & (rank.trace.gpu.kind == KERNEL)).tolist():
            cost = costs.op_costs[costs.op_cost[row]]
            if cost.kind not in MATRIX_CATEGORIES:
                continue
            verdict, basis = VERDICTS[verdicts.tensor_core[row]], BASES[verdicts.basis[row]]
            expected = expected_verdict(rank, cost) if costs.is_main_kernel[row] else "na"
            counts[rank.hardware.label or "not named", cost.dtype, expected, verdict, basis] += 1
    return counts


def print_verdicts(counts: Counter[tuple[str, str, str, str, str]]) -> None:
    """Print a line for each combination; a star marks what contradicts the expectation."""
    print(f"{'device':28}{'type':6}{'expected':16}{'verdict':10}{'by':10}{'launches':>9}")
    for (device, dtype, expected, verdict, basis), count in sorted(counts.items()):
        wrong = (expected, verdict) == ("yes", "no") or (expected == "no" and verdict == "yes")
        print(f"{device[:27]:28}{dtype:6}{expected:16}{verdict:10}{basis:10}{count:9}{' *' if wrong else ''}")


def print_self_check(ranks: Sequence[tuple[str, Rank]]) -> int:
    """Print kernels that are faster than the peaks and the fastest launch of each device; returns how many kernels."""
    checked, violations = 0, 0
    fastest_tflops: dict[str, float] = {}
    for name, rank in ranks:
        rows = rank.kernel_costs.match_rows(*MATRIX_CATEGORIES)
        if rank.device is None:
            continue
        tflops = rank.kernel_costs.flops[rows] / np.maximum(rank.trace.gpu.dur_ns[rows], 1) / 1e3
        checked += int(np.isfinite(tflops).sum())
        device = rank.device.name
        fastest_tflops[device] = max(fastest_tflops.get(device, 0.0), float(np.nanmax(tflops, initial=0.0)))
        for violation in rank.verdicts.violations:
            violations += 1
            print(f"  {name}: {violation}")
    print(f"FLOP/s self-check: {checked} launches on known devices, {violations} violations")
    for device, rate in sorted(fastest_tflops.items()):
        print(f"  {device:56}{rate:8.1f} TFLOP/s at most")
    return violations


def repeat_to_a_million(trace: Trace) -> Trace:
    """Return a trace of a million GPU items: the ops and kernels of `trace` over and over."""
    gpu, ops = trace.gpu, trace.ops
    repeats = _LAUNCHES // len(gpu) + 1
    shift_ns = np.repeat(np.arange(repeats) * (int(gpu.end_ns.max() - gpu.start_ns.min()) + 1000), len(gpu))
    columns = {field.name: np.tile(getattr(gpu, field.name), repeats) for field in fields(gpu)}
    shift_rows = np.repeat(np.arange(repeats) * len(ops), len(gpu))
    columns["op"] = np.where(columns["op"] >= 0, columns["op"] + shift_rows, NONE).astype(np.int32)
    columns["call"] = np.full(len(shift_ns), NONE, np.int32)
    columns |= {"start_ns": columns["start_ns"] + shift_ns, "end_ns": columns["end_ns"] + shift_ns}
    op_columns = {field.name: np.tile(getattr(ops, field.name), repeats) for field in fields(ops)}
    return replace(trace, gpu=replace(gpu, **columns), ops=replace(ops, **op_columns))


def print_speed(path: Path) -> None:
    """Print the time to classify a million launches: names, costs, verdicts and bounds. Best of 5, without a cache."""
    trace = repeat_to_a_million(read(path))
    best: dict[str, float] = {}
    for _ in range(5):
        clear_kernel_cache()
        rank = Rank(trace)
        for part in ("trace", "kernel_classes", "kernel_costs", "verdicts", "bounds"):
            start = time.perf_counter()
            getattr(rank, part)
            best[part] = min(best.get(part, np.inf), time.perf_counter() - start)
    best.pop("trace")
    parts = ", ".join(f"{part} {seconds * 1e3:.0f} ms" for part, seconds in best.items())
    print(f"{len(trace.gpu)} GPU items of {path.name}: {sum(best.values()) * 1e3:.0f} ms ({parts})")
