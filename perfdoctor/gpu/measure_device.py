"""Measurement of this machine's device: gemms by type, copies, launches, and the arithmetic-intensity sweep.

Torch is imported when measuring starts; nothing else in this room needs it. Inputs are random: zeros draw less power,
and the clock would rise above what real data allow. Every figure is the median of the repetitions that fit into its
share of the time.
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

_GPU_GEMM_SIZE, _CPU_GEMM_SIZE = 8192, 1024
_GPU_COPY_BYTES, _CPU_COPY_BYTES = 1 << 30, 1 << 27
_GPU_SWEEP_BYTES, _CPU_SWEEP_BYTES = 1 << 30, 1 << 24
_TINY_OPS = 2000
_SWEEP_MULTIPLICATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# 128 KiB of float32: a block stays in the cache between multiplications and is long enough to hide the cost of an op.
# Torch runs longer ones on several threads: waiting for them would take longer than the multiplications.
_CPU_BLOCK_ELEMENTS = 1 << 15
_MIN_REPEATS = 3
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
        seconds: About how long measuring may take, without loading torch and compiling; 40 on a GPU, 10 on a CPU.
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
    with torch.no_grad():
        return Calibration(
            device=_device_name(bench),
            measured_on=date.today().isoformat(),
            flops=dict(_measure_gemms(bench, progress)),
            bandwidth_bytes_per_s=_measure_bandwidth(bench, progress),
            launch_s=_measure_launch(bench, progress),
            sweep=tuple(_measure_sweep(bench, progress)),
        )


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError(
            "torch is not installed here: pip install torch, or calibrate where the training runs"
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


def _measure_gemms(bench: Benchmark, progress: Progress) -> Iterator[tuple[str, float]]:
    """Yield each operand type with the FLOP/s of a large gemm; types that are not supported here are left out."""
    types = _GPU_TYPES if bench.gpu else _CPU_TYPES
    budget_s = 0.5 * bench.seconds / len(types)
    for dtype in types:
        progress(f"products in {dtype}")
        size = _GPU_GEMM_SIZE if bench.gpu else _CPU_GEMM_SIZE
        if bench.gpu and dtype in ("fp64", "fp32"):
            size //= 2
        try:
            with _allow_tf32(bench, dtype == "tf32"):
                seconds = bench.median_seconds(_make_gemm(bench, dtype, size), budget_s)
        except _UNSUPPORTED:
            continue
        yield dtype, 2 * size**3 / seconds


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


def _measure_bandwidth(bench: Benchmark, progress: Progress) -> float | None:
    """Return the bytes per second of a large copy, reading and writing together; None if the memory is too small."""
    progress("copies")
    size = _GPU_COPY_BYTES if bench.gpu else _CPU_COPY_BYTES
    try:
        source = bench.torch.randn(size // 4, device=bench.device)
        target = bench.torch.empty_like(source)
        return 2 * size / bench.median_seconds(lambda: target.copy_(source), 0.1 * bench.seconds)
    except _UNSUPPORTED:
        return None


def _measure_launch(bench: Benchmark, progress: Progress) -> float | None:
    """Return the seconds of CPU time for each of many tiny ops, launched without waiting."""
    progress("launches")
    tiny = bench.torch.zeros(1, device=bench.device)

    def launch_many() -> None:
        for _ in range(_TINY_OPS):
            tiny.add_(1.0)

    return bench.median_seconds(launch_many, 0.05 * bench.seconds) / _TINY_OPS


def _measure_sweep(bench: Benchmark, progress: Progress) -> Iterator[SweepPoint]:
    """Yield the rates of `k` multiplications for each element that is read and written, for growing `k`."""
    budget_s = 0.35 * bench.seconds / len(_SWEEP_MULTIPLICATIONS)
    x = bench.torch.rand((_GPU_SWEEP_BYTES if bench.gpu else _CPU_SWEEP_BYTES) // 4, device=bench.device)
    for k in _SWEEP_MULTIPLICATIONS:
        progress(f"{k} multiplications an element")
        try:
            multiply = _make_gpu_multiply(x, k) if bench.gpu else _make_cpu_multiply(x, k)
            seconds = bench.median_seconds(multiply, budget_s)
        except _UNSUPPORTED:
            return
        yield SweepPoint(k, seconds, x.numel() * k / seconds, 8 * x.numel() / seconds)
        if not bench.gpu and seconds > 2 * budget_s:  # larger k would take even longer
            return


def _make_gpu_multiply(x: Any, k: int) -> Callable[[], object]:
    """Return a call of one kernel that multiplies k times in registers, compiled at run time.

    Eager ops would go through memory for each multiplication.
    """
    code = f"template <typename T> T multiply(T x) {{ for (int i = 0; i < {k}; ++i) x = x * T(0.999); return x; }}"
    multiply = importlib.import_module("torch.cuda.jiterator")._create_jit_fn(code)
    return lambda: multiply(x)


def _make_cpu_multiply(x: Any, k: int) -> Callable[[], object]:
    """Return a call that multiplies each block k times in the cache before it fetches the next one from memory."""
    blocks = x.split(_CPU_BLOCK_ELEMENTS)

    def multiply() -> None:
        for block in blocks:
            for _ in range(k):
                block.mul_(-1.0)  # a factor under 1 would end in denormal numbers, which are slow

    return multiply
