"""Measure the device at hand: products by type, copies, launches, and the arithmetic-intensity sweep.

Needs torch, which nothing else here does; it is imported when measuring starts. Inputs are random: zeros draw less
power, and the clock would rise above what real data allow. Every figure is the median of repetitions within its share
of the time.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from perfdoctor.errors import InputError
from perfdoctor.gpu.calibration import Calibration, SweepPoint

_GPU_SIDE, _CPU_SIDE = 8192, 1024
_GPU_COPY_BYTES, _CPU_COPY_BYTES = 1 << 30, 1 << 27
_GPU_SWEEP_BYTES, _CPU_SWEEP_BYTES = 1 << 30, 1 << 24
_TINY_OPS = 2000
_SWEEP_MULTIPLICATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# 128 KiB of float32: stays in the cache between multiplications, hides the cost of an op, and is the most that torch
# gives to one core: waiting for other threads would take longer than the multiplications.
_CPU_BLOCK = 1 << 15
_FEWEST_REPEATS = 3
_GPU_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_CPU_TYPES = ("fp64", "fp32", "bf16")
_TORCH_NAMES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# What a device that lacks a type, a torch that lacks an op, or a full memory raises.
_CANNOT = (RuntimeError, AttributeError, TypeError, NotImplementedError)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """The device to measure, and for how long in all."""

    torch: Any
    gpu: bool
    seconds: float

    @property
    def place(self) -> str:
        """Name of the device in torch."""
        return "cuda" if self.gpu else "cpu"

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def seconds_of(self, call: Callable[[], object], budget_s: float) -> float:
        """Median time of a call within a budget, after a first one that warms up."""
        call()
        self.synchronize()
        times: list[float] = []
        until = time.perf_counter() + budget_s
        while len(times) < _FEWEST_REPEATS or time.perf_counter() < until:
            began = time.perf_counter()
            call()
            self.synchronize()
            times.append(time.perf_counter() - began)
        return max(statistics.median(times), 1e-9)


def calibrate(
    *, gpu: bool | None = None, seconds: float | None = None, progress: Progress = lambda _: None
) -> Calibration:
    """Measure the device at hand.

    Args:
        gpu: True for the GPU, False for the CPU, None for the GPU if there is one.
        seconds: About how long measuring may take, without loading torch and compiling; 40 on a GPU, 10 on a CPU.
        progress: Called with what is measured next.

    Raises:
        InputError: torch is not installed, or there is no GPU and one was asked for.
    """
    torch = _torch()
    there = bool(torch.cuda.is_available())
    if gpu and not there:
        raise InputError("torch sees no GPU here; leave out --gpu to measure the CPU")
    use_gpu = there if gpu is None else gpu
    bench = Bench(torch, use_gpu, seconds or (40.0 if use_gpu else 10.0))
    with torch.no_grad():
        return Calibration(
            device=device_name(bench),
            measured_on=date.today().isoformat(),
            flops=dict(_products(bench, progress)),
            bandwidth_bytes_per_s=_bandwidth(bench, progress),
            launch_s=_launch(bench, progress),
            sweep=tuple(_sweep(bench, progress)),
        )


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError(
            "torch is not installed here: pip install torch, or calibrate where the training runs"
        ) from None


def device_name(bench: Bench) -> str:
    """Name of the GPU as the driver gives it, or of the CPU as the kernel does."""
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


def _products(bench: Bench, progress: Progress) -> Iterator[tuple[str, float]]:
    """Rate of a large product by type; types that the device or torch cannot do are left out."""
    types = _GPU_TYPES if bench.gpu else _CPU_TYPES
    budget_s = 0.5 * bench.seconds / len(types)
    for dtype in types:
        progress(f"products in {dtype}")
        side = _GPU_SIDE if bench.gpu else _CPU_SIDE
        if bench.gpu and dtype in ("fp64", "fp32"):
            side //= 2
        try:
            with _tf32(bench, dtype == "tf32"):
                taken = bench.seconds_of(_product(bench, dtype, side), budget_s)
        except _CANNOT:
            continue
        yield dtype, 2 * side**3 / taken


def _product(bench: Bench, dtype: str, side: int) -> Callable[[], object]:
    torch = bench.torch
    if dtype == "int8":
        a = torch.randint(-100, 100, (side, side), dtype=torch.int8, device=bench.place)
        b = torch.randint(-100, 100, (side, side), dtype=torch.int8, device=bench.place).t()
        return lambda: torch._int_mm(a, b)
    if dtype == "fp8":
        a = torch.randn(side, side, device=bench.place).to(torch.float8_e4m3fn)
        b = torch.randn(side, side, device=bench.place).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=bench.place)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    kind = getattr(torch, _TORCH_NAMES[dtype])
    a, b = (torch.randn(side, side, device=bench.place).to(kind) for _ in range(2))
    return lambda: torch.mm(a, b)


@contextmanager
def _tf32(bench: Bench, allowed: bool) -> Iterator[None]:
    """Allow TF32 for a while, or forbid it; the user's setting comes back."""
    before = bench.torch.get_float32_matmul_precision()
    bench.torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        bench.torch.set_float32_matmul_precision(before)


def _bandwidth(bench: Bench, progress: Progress) -> float | None:
    progress("copies")
    size = _GPU_COPY_BYTES if bench.gpu else _CPU_COPY_BYTES
    try:
        source = bench.torch.randn(size // 4, device=bench.place)
        to = bench.torch.empty_like(source)
        return 2 * size / bench.seconds_of(lambda: to.copy_(source), 0.1 * bench.seconds)
    except _CANNOT:
        return None


def _launch(bench: Bench, progress: Progress) -> float | None:
    """Seconds of CPU time for each of many tiny ops, launched without waiting."""
    progress("launches")
    tiny = bench.torch.zeros(1, device=bench.place)

    def many() -> None:
        for _ in range(_TINY_OPS):
            tiny.add_(1.0)

    return bench.seconds_of(many, 0.05 * bench.seconds) / _TINY_OPS


def _sweep(bench: Bench, progress: Progress) -> Iterator[SweepPoint]:
    """`k` multiplications for each element that is read and written, for growing k."""
    budget_s = 0.35 * bench.seconds / len(_SWEEP_MULTIPLICATIONS)
    x = bench.torch.rand((_GPU_SWEEP_BYTES if bench.gpu else _CPU_SWEEP_BYTES) // 4, device=bench.place)
    for k in _SWEEP_MULTIPLICATIONS:
        progress(f"{k} multiplications an element")
        try:
            taken = bench.seconds_of(_multiply_on_gpu(x, k) if bench.gpu else _multiply_on_cpu(x, k), budget_s)
        except _CANNOT:
            return
        yield SweepPoint(k, taken, x.numel() * k / taken, 8 * x.numel() / taken)
        if not bench.gpu and taken > 2 * budget_s:  # the rest would only take longer
            return


def _multiply_on_gpu(x: Any, k: int) -> Callable[[], object]:
    """One kernel that multiplies k times in registers, compiled on the spot; eager ops go through memory each time."""
    code = f"template <typename T> T multiply(T x) {{ for (int i = 0; i < {k}; ++i) x = x * T(0.999); return x; }}"
    multiply = importlib.import_module("torch.cuda.jiterator")._create_jit_fn(code)
    return lambda: multiply(x)


def _multiply_on_cpu(x: Any, k: int) -> Callable[[], object]:
    """Blocks that stay in the cache are multiplied k times before the next one is fetched from memory."""
    blocks = x.split(_CPU_BLOCK)

    def multiply() -> None:
        for block in blocks:
            for _ in range(k):
                block.mul_(-1.0)  # a factor under 1 would end in denormal numbers, which are slow

    return multiply
