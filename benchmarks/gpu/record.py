"""Record the cases that no public trace holds, on the GPU at hand, with shapes: one small trace each.

    python benchmarks/gpu/record.py OUT [--cpu] [--only WORD]

Not yet run on a GPU: written against the documented behaviour of torch, and tried on a CPU (`--cpu`), where the cases
that need a GPU are left out. It takes a few minutes and stops starting cases after 8. What a device or torch cannot do
is said and left out. Beside the traces stands `summary.json`: for each case the kernel names with their time, our
verdict and, where shapes tell, the FLOP/s that it reached. Then comes `benchmarks.planted_faults`, promised savings
against measured ones, for the rest of 16 minutes: `gain.md` and `gain.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as nn
from torch.profiler import ProfilerActivity, profile

SECONDS = 8 * 60
GAIN_SECONDS = 8 * 60
ROOT = Path(__file__).resolve().parents[2]
REPEATS = 5

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One trace: what runs, and under which settings (context managers, made anew for each case)."""

    name: str
    make: Callable[[str], Work]
    gpu_only: bool = True
    tf32: bool = False


def product(dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[str], Work]:
    """A product of random matrices."""

    def make(place: str) -> Work:
        a = torch.randn(m, k, device=place).to(dtype)
        b = torch.randn(k, n, device=place).to(dtype)
        return lambda: torch.mm(a, b)

    return make


def int8_product(place: str) -> Work:
    """`_int_mm`, which is what quantized linear layers use."""
    a = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=place)
    b = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=place).t()
    return lambda: torch._int_mm(a, b)


def fp8_product(place: str) -> Work:
    """`_scaled_mm` with one scale a tensor."""
    a = torch.randn(4096, 4096, device=place).to(torch.float8_e4m3fn)
    b = torch.randn(4096, 4096, device=place).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=place)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def batched(dtype: torch.dtype, side: int) -> Callable[[str], Work]:
    """A batch of products, as attention without a fused kernel makes."""

    def make(place: str) -> Work:
        a = torch.randn(48, side, 64, device=place).to(dtype)
        b = torch.randn(48, 64, side, device=place).to(dtype)
        return lambda: torch.bmm(a, b)

    return make


def attention(backend: str, dtype: torch.dtype, causal: bool) -> Callable[[str], Work]:
    """Attention forward and backward with one of PyTorch's kernels."""

    def make(place: str) -> Work:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.randn(4, 16, 1024, 64, device=place).to(dtype).requires_grad_() for _ in range(3))

        def run() -> None:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                nn.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

        return run

    return make


def convolution(dtype: torch.dtype, channels_last: bool, channels: int = 64) -> Callable[[str], Work]:
    """A convolution forward and backward, in one memory format."""

    def make(place: str) -> Work:
        form = torch.channels_last if channels_last else torch.contiguous_format
        x = torch.randn(16, channels, 56, 56, device=place).to(dtype).to(memory_format=form).requires_grad_()
        layer = torch.nn.Conv2d(channels, 2 * channels, 3, padding=1).to(place, dtype).to(memory_format=form)
        return lambda: layer(x).sum().backward()

    return make


def depthwise(place: str) -> Work:
    """A depthwise convolution, which Tensor Cores cannot help."""
    x = torch.randn(16, 128, 56, 56, device=place)
    layer = torch.nn.Conv2d(128, 128, 3, padding=1, groups=128).to(place)
    return lambda: layer(x).sum().backward()


def recurrent(place: str) -> Work:
    """An LSTM: cuDNN's persistent kernels in half precision."""
    layer = torch.nn.LSTM(256, 256, 2).to(place, torch.float16)
    x = torch.randn(32, 16, 256, device=place).to(torch.float16)
    return lambda: layer(x)


def cases() -> Iterator[Case]:
    """All of them; names are the files'."""
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    for place_only, dtype, word in ((False, single, "fp32"), (False, half, "bf16"), (True, torch.float16, "fp16")):
        yield Case(f"mm-{word}", product(dtype, 2048, 2048, 2048), gpu_only=place_only)
        yield Case(f"mm-{word}-odd", product(dtype, 2048, 2049, 2048), gpu_only=place_only)
        yield Case(f"mm-{word}-odd-k", product(dtype, 2048, 2048, 2049))
    yield Case("mm-fp64", product(double, 2048, 2048, 2048))
    yield Case("mm-fp64-odd", product(double, 2048, 2049, 2048))
    yield Case("mm-tf32", product(single, 4096, 4096, 4096), tf32=True)
    yield Case("mm-tf32-odd", product(single, 4096, 4097, 4096), tf32=True)
    yield Case("mm-bf16-vocabulary", product(half, 4096, 30522, 768))
    yield Case("mm-bf16-vocabulary-padded", product(half, 4096, 30528, 768))
    yield Case("mm-bf16-vector", product(half, 1, 4096, 4096))
    yield Case("mm-int8", int8_product)
    yield Case("mm-fp8", fp8_product)
    yield Case("bmm-bf16", batched(half, 512), gpu_only=False)
    yield Case("bmm-bf16-odd", batched(half, 513), gpu_only=False)
    yield Case("sdpa-math", attention("MATH", half, False), gpu_only=False)
    for backend, word in (
        ("FLASH_ATTENTION", "flash"),
        ("EFFICIENT_ATTENTION", "efficient"),
        ("CUDNN_ATTENTION", "cudnn"),
    ):
        yield Case(f"sdpa-{word}", attention(backend, half, False))
        yield Case(f"sdpa-{word}-causal", attention(backend, half, True))
    yield Case("sdpa-efficient-fp32", attention("EFFICIENT_ATTENTION", single, False))
    yield Case("sdpa-efficient-fp32-tf32", attention("EFFICIENT_ATTENTION", single, False), tf32=True)
    for dtype, word in ((single, "fp32"), (half, "bf16")):
        for last in (False, True):
            name = f"conv-{word}-{'channels-last' if last else 'nchw'}"
            yield Case(name, convolution(dtype, last), gpu_only=dtype is half)
    yield Case("conv-tf32-channels-last", convolution(single, True), tf32=True)
    yield Case("conv-bf16-odd-channels", convolution(half, True, 61))
    yield Case("conv-depthwise", depthwise, gpu_only=False)
    yield Case("lstm-fp16", recurrent)


def record(case: Case, place: str, folder: Path) -> Path:
    """Run one case under the profiler with shapes; returns the trace."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place == "cuda" else [])]
    with ExitStack() as settings:
        settings.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        settings.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.set_float32_matmul_precision("high" if case.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = case.tf32
        run = case.make(place)
        for _ in range(2):
            run()
        wait(place)
        with profile(activities=activities, record_shapes=True) as session:
            for _ in range(REPEATS):
                run()
            wait(place)
    plain = folder / f"{case.name}.json"
    session.export_chrome_trace(str(plain))
    path = folder / f"{case.name}.json.gz"
    path.write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
    plain.unlink()
    return path


def wait(place: str) -> None:
    """Wait for the GPU."""
    if place == "cuda":
        torch.cuda.synchronize()


def summary(path: Path) -> list[dict[str, Any]]:
    """What our analysis says of a recorded trace, a row a kernel name, costliest first."""
    import numpy as np

    from perfdoctor import read
    from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, VERDICTS
    from perfdoctor.gpu.roofline.kernel_bounds import BOUNDS, REASONS
    from perfdoctor.rank import Rank

    run = Rank(read(path))
    gpu, rows = run.trace.gpu, []
    for code, kernel in run.kernel_classes.items():
        at = np.flatnonzero(gpu.name == code)
        rate = run.work.flops[at] / np.maximum(gpu.dur_ns[at], 1) * 1e9
        best = int(at[0])
        rows.append(
            {
                "kernel": run.trace.strings[code],
                "category": kernel.category,
                "rule": kernel.rule,
                "verdict": VERDICTS[run.verdicts.tensor_core[best]],
                "by": BASES[run.verdicts.basis[best]],
                "launches": len(at),
                "time_ns": int(gpu.dur_ns[at].sum()),
                "flops_per_s": None if np.isnan(rate).all() else float(np.nanmax(rate)),
                "bound": BOUNDS[run.bounds.kind[best]] if run.bounds.kind[best] >= 0 else None,
                "reason": REASONS[run.bounds.reason[best]] or None,
            }
        )
    return sorted(rows, key=lambda row: -row["time_ns"])


def planted_faults(place: str, folder: Path, seconds: float) -> str:
    """Measure `benchmarks.planted_faults` as far as the time goes; says how that ended."""
    command = [sys.executable, "-m", "benchmarks.planted_faults", "--device", place, "--rounds", "3"]
    command += ["--seconds", str(max(seconds, 0)), "--json", str((folder / "gain.json").resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (folder / "gain.md").write_text(done.stdout, encoding="utf-8")
    return "measured" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:200]


def main(arguments: list[str]) -> int:
    """Record what can be recorded here; 2 without a GPU, unless the CPU is meant."""
    parser = argparse.ArgumentParser(description="Record kernels that no public trace holds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true", help="only the cases that a CPU can run, to try the script")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    given = parser.parse_args(arguments)
    if not given.cpu and not torch.cuda.is_available():
        print("torch sees no GPU here; --cpu tries the cases that need none", file=sys.stderr)
        return 2
    place = "cpu" if given.cpu else "cuda"
    given.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "cases": {}, "left_out": {}}
    found["device"] = torch.cuda.get_device_name() if place == "cuda" else "cpu"
    until = time.monotonic() + SECONDS
    for case in cases():
        if given.only not in case.name or (case.gpu_only and place == "cpu"):
            continue
        if time.monotonic() > until:
            found["left_out"][case.name] = "out of time"
            continue
        try:
            found["cases"][case.name] = summary(record(case, place, given.folder))
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            found["left_out"][case.name] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        print(case.name, found["left_out"].get(case.name, "recorded"), flush=True)
    if not given.only:
        found["planted_faults"] = planted_faults(place, given.folder, GAIN_SECONDS + until - time.monotonic())
        print("planted faults", found["planted_faults"], flush=True)
    (given.folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
