"""Measurement of this machine's device: gemms by type, copies, launches, and the arithmetic-intensity sweep.

Torch is imported when measuring starts; nothing else in this room needs it. Inputs are random: zeros draw less power,
and the clock would rise above what real data allow.

Everything is measured in rounds, one after the other, so that a clock that falls or a neighbour that computes shows as
a spread between them. A round's figure is the median of the repetitions that fit into its share of the time, and what
is measured is the median of the last rounds. What has not come to rest is measured again.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from perfdoctor.errors import InputError
from perfdoctor.gpu.calibration import ADDITION, BANDWIDTH, LAUNCH, MAX_SPREAD, Calibration, SweepPoint
from perfdoctor.gpu.fused_on_cpu import Multiply, compile_multiply

_GPU_GEMM_SIZE, _CPU_GEMM_SIZE = 8192, 1024
_GPU_COPY_BYTES, _CPU_COPY_BYTES = 1 << 30, 1 << 27
# Larger than the caches.
_GPU_SWEEP_BYTES, _CPU_SWEEP_BYTES = 1 << 30, 1 << 27
_TINY_OPS = 2000
_ADDITIONS = 200_000
_SWEEP_MULTIPLICATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# 128 KiB of float32: a block stays in the cache between multiplications and is long enough to hide the cost of an op.
# Torch runs longer ones on several threads: waiting for them would take longer than the multiplications.
_CPU_BLOCK_ELEMENTS = 1 << 15
_MIN_REPEATS = 3
_LONG_S = 0.2  # a point of the sweep that takes less is never the last one
_ROUNDS = 3  # that must agree
_MAX_ROUNDS = 9
_GEMM_SHARE, _COPY_SHARE, _LAUNCH_SHARE, _SWEEP_SHARE = 0.45, 0.1, 0.05, 0.35  # of the time
_GPU_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_CPU_TYPES = ("fp64", "fp32", "bf16")
_TORCH_NAMES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Raised where the device lacks a type, torch lacks an op, or the memory is full.
_UNSUPPORTED = (RuntimeError, AttributeError, TypeError, NotImplementedError)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """The device to measure, and for how many seconds in all."""

    torch: Any
    gpu: bool
    seconds: float

    @property
    def device(self) -> str:
        """Name of the device in torch."""
        return "cuda" if self.gpu else "cpu"

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def median_seconds(self, call: Callable[[], object], budget_s: float) -> float:
        """Return the median time of a call that is repeated for `budget_s` seconds, after a first one that warms up."""
        call()
        self.synchronize()
        times: list[float] = []
        deadline = time.perf_counter() + budget_s
        while len(times) < _MIN_REPEATS or time.perf_counter() < deadline:
            start = time.perf_counter()
            call()
            self.synchronize()
            times.append(time.perf_counter() - start)
        return max(statistics.median(times), 1e-9)


def measure_device(
    *, gpu: bool | None = None, seconds: float | None = None, progress: Progress = lambda _: None
) -> Calibration:
    """Return the rates of this machine's GPU or CPU, as measured now.

    Args:
        gpu: True for the GPU, False for the CPU, None for the GPU if there is one.
        seconds: About how long measuring may take, without loading torch and compiling; 40 on a GPU, 10 on a CPU. What
            varies takes up to three times its share.
        progress: Called with the name of what is measured next.

    Raises:
        InputError: torch is not installed, or there is no GPU and one was asked for.
    """
    torch = _import_torch()
    gpu_available = bool(torch.cuda.is_available())
    if gpu and not gpu_available:
        raise InputError("torch sees no GPU here; leave out --gpu to measure the CPU")
    use_gpu = gpu_available if gpu is None else gpu
    bench = Benchmark(torch, use_gpu, seconds or (40.0 if use_gpu else 10.0))
    fused = None if use_gpu else compile_multiply(torch.get_num_threads())
    with torch.no_grad():
        seconds_of, spread = measure_in_rounds(_list_measurements(bench), progress)
        copy_s = seconds_of.get(BANDWIDTH)
        return Calibration(
            device=_device_name(bench),
            measured_on=date.today().isoformat(),
            flops={
                dtype: 2 * _gemm_size(bench, dtype) ** 3 / seconds_of[dtype]
                for dtype in (_GPU_TYPES if bench.gpu else _CPU_TYPES)
                if dtype in seconds_of
            },
            bandwidth_bytes_per_s=None if copy_s is None else 2 * _copy_bytes(bench) / copy_s,
            launch_s=seconds_of.get(LAUNCH),
            sweep=tuple(_measure_sweep(bench, fused, progress)),
            spread=spread,
            addition_s=seconds_of.get(ADDITION),
            is_fused=use_gpu or fused is not None,
        )


def measure_in_rounds(
    measurements: Mapping[str, Callable[[], float]], progress: Progress
) -> tuple[dict[str, float], dict[str, float]]:
    """The median seconds of each measurement, and the spread of its last rounds.

    Each measurement returns the seconds of one round; one that raises an error of `_UNSUPPORTED` is left out.
    """
    rounds: dict[str, list[float]] = {name: [] for name in measurements}
    for number in range(1, _MAX_ROUNDS + 1):
        unfinished = [name for name, seconds in rounds.items() if not _is_stable(seconds)]
        if not unfinished:
            break
        again = "" if number <= _ROUNDS else " again, because it varies"
        progress(f"{', '.join(unfinished)}{again}; round {number} of {_ROUNDS if number <= _ROUNDS else _MAX_ROUNDS}")
        for name in unfinished:
            try:
                rounds[name].append(measurements[name]())
            except _UNSUPPORTED:
                del rounds[name]
    medians = {name: statistics.median(seconds[-_ROUNDS:]) for name, seconds in rounds.items()}
    return medians, {name: _spread_of(seconds) for name, seconds in rounds.items()}


def _spread_of(seconds: Sequence[float]) -> float:
    """How far the last rounds lie apart, as a share of their median."""
    last = seconds[-_ROUNDS:]
    return (max(last) - min(last)) / statistics.median(last)


def _is_stable(seconds: Sequence[float]) -> bool:
    return len(seconds) >= _ROUNDS and _spread_of(seconds) <= MAX_SPREAD


def _list_measurements(bench: Benchmark) -> dict[str, Callable[[], float]]:
    """All rates by name, each with what measures it once."""
    types = _GPU_TYPES if bench.gpu else _CPU_TYPES
    gemm_s = _GEMM_SHARE * bench.seconds / len(types) / _ROUNDS
    measurements: dict[str, Callable[[], float]] = {dtype: partial(_time_gemm, bench, dtype, gemm_s) for dtype in types}
    measurements[BANDWIDTH] = partial(_time_copy, bench, _COPY_SHARE * bench.seconds / _ROUNDS)
    measurements[LAUNCH] = partial(_time_launch, bench, _LAUNCH_SHARE * bench.seconds / _ROUNDS)
    measurements[ADDITION] = partial(_time_addition, bench, _LAUNCH_SHARE * bench.seconds / _ROUNDS)
    return measurements


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError(
            f"this Python has no torch: {sys.executable} -m pip install torch, or calibrate where the training runs"
        ) from None


def _device_name(bench: Benchmark) -> str:
    """Return the name of the GPU as the driver gives it, or of the CPU as the operating system gives it."""
    if bench.gpu:
        return str(bench.torch.cuda.get_device_name())
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine() or "cpu"


def _gemm_size(bench: Benchmark, dtype: str) -> int:
    """Rows of the square matrices."""
    size = _GPU_GEMM_SIZE if bench.gpu else _CPU_GEMM_SIZE
    return size // 2 if bench.gpu and dtype in ("fp64", "fp32") else size


def _time_gemm(bench: Benchmark, dtype: str, budget_s: float) -> float:
    """Return the seconds of a large gemm."""
    with _allow_tf32(bench, dtype == "tf32"):
        return bench.median_seconds(_make_gemm(bench, dtype, _gemm_size(bench, dtype)), budget_s)


def _make_gemm(bench: Benchmark, dtype: str, size: int) -> Callable[[], object]:
    """Return a call that multiplies two square random matrices of a type."""
    torch = bench.torch
    if dtype == "int8":
        a = torch.randint(-100, 100, (size, size), dtype=torch.int8, device=bench.device)
        b = torch.randint(-100, 100, (size, size), dtype=torch.int8, device=bench.device).t()
        return lambda: torch._int_mm(a, b)
    if dtype == "fp8":
        a = torch.randn(size, size, device=bench.device).to(torch.float8_e4m3fn)
        b = torch.randn(size, size, device=bench.device).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=bench.device)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    torch_dtype = getattr(torch, _TORCH_NAMES[dtype])
    a, b = (torch.randn(size, size, device=bench.device).to(torch_dtype) for _ in range(2))
    return lambda: torch.mm(a, b)


@contextmanager
def _allow_tf32(bench: Benchmark, allowed: bool) -> Iterator[None]:
    """Allow TF32 inside the `with` block, or forbid it there; the user's setting comes back."""
    before = bench.torch.get_float32_matmul_precision()
    bench.torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        bench.torch.set_float32_matmul_precision(before)


def _copy_bytes(bench: Benchmark) -> int:
    return _GPU_COPY_BYTES if bench.gpu else _CPU_COPY_BYTES


def _time_copy(bench: Benchmark, budget_s: float) -> float:
    """Return the seconds of a large copy."""
    source = bench.torch.randn(_copy_bytes(bench) // 4, device=bench.device)
    target = bench.torch.empty_like(source)
    return bench.median_seconds(lambda: target.copy_(source), budget_s)


def _time_launch(bench: Benchmark, budget_s: float) -> float:
    """Return the seconds of CPU time for each of many tiny ops, launched without waiting."""
    tiny = bench.torch.zeros(1, device=bench.device)

    def launch_many() -> None:
        for _ in range(_TINY_OPS):
            tiny.add_(1.0)

    return bench.median_seconds(launch_many, budget_s) / _TINY_OPS


def _time_addition(bench: Benchmark, budget_s: float) -> float:
    """Return the seconds of an addition of two integers in Python, with its part of the loop around it."""

    def add_many() -> int:
        total = 0
        for number in range(_ADDITIONS):
            total += number
        return total

    return bench.median_seconds(add_many, budget_s) / _ADDITIONS


def _measure_sweep(bench: Benchmark, fused: Multiply | None, progress: Progress) -> Iterator[SweepPoint]:
    """Yield the rates of `k` multiplications for each element that is read and written, for growing `k`.

    `fused` multiplies in one pass on a CPU; None where nothing was compiled.
    """
    multiply_on_cpu = fused or _make_cpu_multiply
    budget_s = _SWEEP_SHARE * bench.seconds / len(_SWEEP_MULTIPLICATIONS)
    x = bench.torch.rand((_GPU_SWEEP_BYTES if bench.gpu else _CPU_SWEEP_BYTES) // 4, device=bench.device)
    for k in _SWEEP_MULTIPLICATIONS:
        progress(f"{k} multiplications an element")
        try:
            multiply = _make_gpu_multiply(x, k) if bench.gpu else multiply_on_cpu(x, k)
            seconds = bench.median_seconds(multiply, budget_s)
        except _UNSUPPORTED:
            return
        yield SweepPoint(k, seconds, x.numel() * k / seconds, 8 * x.numel() / seconds)
        if not bench.gpu and seconds > max(2 * budget_s, _LONG_S):  # larger k would take even longer
            return


def _make_gpu_multiply(x: Any, k: int) -> Callable[[], object]:
    """Return a call of one kernel that multiplies k times in registers, compiled at run time.

    Eager ops would go through memory for each multiplication.
    """
    code = f"template <typename T> T multiply(T x) {{ for (int i = 0; i < {k}; ++i) x = x * T(0.999); return x; }}"
    multiply = importlib.import_module("torch.cuda.jiterator")._create_jit_fn(code)
    return lambda: multiply(x)


def _make_cpu_multiply(x: Any, k: int) -> Callable[[], object]:
    """Return a call that multiplies each block k times in the cache before it fetches the next one from memory.

    That is as near to a fused kernel as ops come, and each of them still reads and writes the cache.
    """
    blocks = x.split(_CPU_BLOCK_ELEMENTS)

    def multiply() -> None:
        for block in blocks:
            for _ in range(k):
                block.mul_(-1.0)  # a factor under 1 would end in denormal numbers, which are slow

    return multiply
