"""Verdicts, FLOP/s and time over a folder of real traces.

Expected verdicts come from the recorded operand types of the launching op: bf16, fp16 and fp8 products use Tensor
Cores where the device has them; float32 may (TF32) or may not; float64 may on the devices that can. Products with a
vector, and depthwise convolutions, have no need to.
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
_LOW = ("bf16", "fp16", "fp8", "int8")
_LAUNCHES = 1_000_000


def runs(folder: Path) -> Iterator[tuple[str, Rank]]:
    """Every trace of a folder that holds kernels."""
    for path in sorted(folder.rglob("*.json.gz")):
        trace = read(path)
        if (trace.gpu.kind == KERNEL).any():
            yield str(path.relative_to(folder)), Rank(trace)


def expected(run: Rank, cost: OpCost) -> str:
    """What the operand type of an op lets expect of its main kernel."""
    if run.tensor_cores is not True:
        return "no"
    if 1 in (cost.m, cost.n):
        return "either (vector)"
    if cost.groups is not None and cost.channels_in == 1:
        return "either (depthw.)"
    volta = run.device is not None and run.device.compute_capability == (7, 0)
    if cost.dtype in _LOW and not (volta and cost.dtype == "bf16"):
        return "yes"
    return "no" if volta else "either"


def confusion(named: Sequence[tuple[str, Rank]]) -> Counter[tuple[str, str, str, str, str]]:
    """Launches by (device, operand type, expected verdict, verdict, basis); an op's helpers count as `na`."""
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for _, run in named:
        work, verdicts = run.work, run.verdicts
        for row in np.flatnonzero((work.cost >= 0) & (run.trace.gpu.kind == KERNEL)).tolist():
            cost = work.costs[work.cost[row]]
            if cost.kind not in MATRIX_CATEGORIES:
                continue
            verdict, basis = VERDICTS[verdicts.tensor_core[row]], BASES[verdicts.basis[row]]
            wanted = expected(run, cost) if work.main[row] else "na"
            counts[run.device_label or "not named", cost.dtype, wanted, verdict, basis] += 1
    return counts


def print_confusion(counts: Counter[tuple[str, str, str, str, str]]) -> None:
    """One line a combination; a star marks what contradicts the expectation."""
    print(f"{'device':28}{'type':6}{'expected':16}{'verdict':10}{'by':10}{'launches':>9}")
    for (device, dtype, wanted, verdict, basis), count in sorted(counts.items()):
        wrong = (wanted, verdict) == ("yes", "no") or (wanted == "no" and verdict == "yes")
        print(f"{device[:27]:28}{dtype:6}{wanted:16}{verdict:10}{basis:10}{count:9}{' *' if wrong else ''}")


def print_self_check(named: Sequence[tuple[str, Rank]]) -> int:
    """FLOP/s of every launch of matrix maths against the peaks; returns how many names violate them."""
    checked, found = 0, 0
    fastest: dict[str, float] = {}
    for name, run in named:
        rows = run.work.rows_of(*MATRIX_CATEGORIES)
        if run.device is None:
            continue
        rate = run.work.flops[rows] / np.maximum(run.trace.gpu.dur_ns[rows], 1) / 1e3
        checked += int(np.isfinite(rate).sum())
        label = run.device.name
        fastest[label] = max(fastest.get(label, 0.0), float(np.nanmax(rate, initial=0.0)))
        for violation in run.verdicts.violations:
            found += 1
            print(f"  {name}: {violation}")
    print(f"FLOP/s self-check: {checked} launches on known devices, {found} violations")
    for label, rate in sorted(fastest.items()):
        print(f"  {label:56}{rate:8.1f} TFLOP/s at most")
    return found


def million(trace: Trace) -> Trace:
    """A trace of a million GPU items: the same ops and kernels over and over."""
    gpu, ops = trace.gpu, trace.ops
    times = _LAUNCHES // len(gpu) + 1
    later = np.repeat(np.arange(times) * (int(gpu.end_ns.max() - gpu.start_ns.min()) + 1000), len(gpu))
    columns = {field.name: np.tile(getattr(gpu, field.name), times) for field in fields(gpu)}
    moved = np.repeat(np.arange(times) * len(ops), len(gpu))
    columns["op"] = np.where(columns["op"] >= 0, columns["op"] + moved, NONE).astype(np.int32)
    columns["call"] = np.full(len(later), NONE, np.int32)
    columns |= {"start_ns": columns["start_ns"] + later, "end_ns": columns["end_ns"] + later}
    many = {field.name: np.tile(getattr(ops, field.name), times) for field in fields(ops)}
    return replace(trace, gpu=replace(gpu, **columns), ops=replace(ops, **many))


def print_speed(path: Path) -> None:
    """Seconds to classify a million launches: names, then work, verdicts and bounds. Best of 5, names forgotten."""
    trace = million(read(path))
    best: dict[str, float] = {}
    for _ in range(5):
        clear_kernel_cache()
        run = Rank(trace)
        for part in ("trace", "kernel_classes", "work", "verdicts", "bounds"):
            began = time.perf_counter()
            getattr(run, part)
            best[part] = min(best.get(part, np.inf), time.perf_counter() - began)
    best.pop("trace")
    parts = ", ".join(f"{part} {seconds * 1e3:.0f} ms" for part, seconds in best.items())
    print(f"{len(trace.gpu)} GPU items of {path.name}: {sum(best.values()) * 1e3:.0f} ms ({parts})")
