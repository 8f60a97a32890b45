"""Record the cases that no public trace holds, on the GPU of this machine, with shapes: one small trace each.

    python benchmarks/gpu/record.py OUT [--cpu] [--only WORD]

Not yet run on a GPU: written against the documented behaviour of torch, and tried on a CPU (`--cpu`), where the cases
that need a GPU are left out. Recording takes a few minutes; after 8 no further case starts. Cases that the device or
torch does not support are listed as left out. `summary.json` beside the traces holds for each case the kernel names
with their time, our verdict and, where shapes are known, the FLOP/s. Promised savings against real ones are measured
by `python -m benchmarks.clinic --device cuda`.
"""

from __future__ import annotations

import argparse
import gzip
import json
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

RECORD_SECONDS = 8 * 60
REPEATS = 5

Program = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One trace: the program to record, and the settings that it runs under."""

    name: str
    make: Callable[[str], Program]
    gpu_only: bool = True
    tf32: bool = False


def gemm(dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[str], Program]:
    """A gemm of random matrices."""

    def make(device: str) -> Program:
        a = torch.randn(m, k, device=device).to(dtype)
        b = torch.randn(k, n, device=device).to(dtype)
        return lambda: torch.mm(a, b)

    return make


def int8_gemm(device: str) -> Program:
    """`_int_mm`, which is what quantized linear layers use."""
    a = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=device)
    b = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=device).t()
    return lambda: torch._int_mm(a, b)


def fp8_gemm(device: str) -> Program:
    """`_scaled_mm` with one scale a tensor."""
    a = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def batched_gemm(dtype: torch.dtype, side: int) -> Callable[[str], Program]:
    """A batch of gemms, as attention without a fused kernel runs."""

    def make(device: str) -> Program:
        a = torch.randn(48, side, 64, device=device).to(dtype)
        b = torch.randn(48, 64, side, device=device).to(dtype)
        return lambda: torch.bmm(a, b)

    return make


def attention(backend: str, dtype: torch.dtype, causal: bool) -> Callable[[str], Program]:
    """Attention forward and backward with one of PyTorch's kernels."""

    def make(device: str) -> Program:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.randn(4, 16, 1024, 64, device=device).to(dtype).requires_grad_() for _ in range(3))

        def run() -> None:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                nn.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

        return run

    return make


def convolution(dtype: torch.dtype, channels_last: bool, channels: int = 64) -> Callable[[str], Program]:
    """A convolution forward and backward, in one memory format."""

    def make(device: str) -> Program:
        form = torch.channels_last if channels_last else torch.contiguous_format
        x = torch.randn(16, channels, 56, 56, device=device).to(dtype).to(memory_format=form).requires_grad_()
        layer = torch.nn.Conv2d(channels, 2 * channels, 3, padding=1).to(device, dtype).to(memory_format=form)
        return lambda: layer(x).sum().backward()

    return make


def depthwise(device: str) -> Program:
    """A depthwise convolution, which Tensor Cores cannot help."""
    x = torch.randn(16, 128, 56, 56, device=device)
    layer = torch.nn.Conv2d(128, 128, 3, padding=1, groups=128).to(device)
    return lambda: layer(x).sum().backward()


def recurrent(device: str) -> Program:
    """An LSTM: cuDNN's persistent kernels in half precision."""
    layer = torch.nn.LSTM(256, 256, 2).to(device, torch.float16)
    x = torch.randn(32, 16, 256, device=device).to(torch.float16)
    return lambda: layer(x)


def cases() -> Iterator[Case]:
    """Yield all cases; a case has the name of its file."""
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    for gpu_only, dtype, word in ((False, single, "fp32"), (False, half, "bf16"), (True, torch.float16, "fp16")):
        yield Case(f"mm-{word}", gemm(dtype, 2048, 2048, 2048), gpu_only=gpu_only)
        yield Case(f"mm-{word}-unaligned", gemm(dtype, 2048, 2049, 2048), gpu_only=gpu_only)
        yield Case(f"mm-{word}-unaligned-k", gemm(dtype, 2048, 2048, 2049))
    yield Case("mm-fp64", gemm(double, 2048, 2048, 2048))
    yield Case("mm-fp64-unaligned", gemm(double, 2048, 2049, 2048))
    yield Case("mm-tf32", gemm(single, 4096, 4096, 4096), tf32=True)
    yield Case("mm-tf32-unaligned", gemm(single, 4096, 4097, 4096), tf32=True)
    yield Case("mm-bf16-vocabulary", gemm(half, 4096, 30522, 768))
    yield Case("mm-bf16-vocabulary-padded", gemm(half, 4096, 30528, 768))
    yield Case("mm-bf16-vector", gemm(half, 1, 4096, 4096))
    yield Case("mm-int8", int8_gemm)
    yield Case("mm-fp8", fp8_gemm)
    yield Case("bmm-bf16", batched_gemm(half, 512), gpu_only=False)
    yield Case("bmm-bf16-unaligned", batched_gemm(half, 513), gpu_only=False)
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
    yield Case("conv-bf16-unaligned-channels", convolution(half, True, 61))
    yield Case("conv-depthwise", depthwise, gpu_only=False)
    yield Case("lstm-fp16", recurrent)


def record(case: Case, device: str, folder: Path) -> Path:
    """Run one case under the profiler, with shapes, and return the file of the trace."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with ExitStack() as settings:
        settings.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        settings.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.set_float32_matmul_precision("high" if case.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = case.tf32
        program = case.make(device)
        for _ in range(2):
            program()
        synchronize(device)
        with profile(activities=activities, record_shapes=True) as session:
            for _ in range(REPEATS):
                program()
            synchronize(device)
    uncompressed = folder / f"{case.name}.json"
    session.export_chrome_trace(str(uncompressed))
    path = folder / f"{case.name}.json.gz"
    path.write_bytes(gzip.compress(uncompressed.read_bytes(), 9, mtime=0))
    uncompressed.unlink()
    return path


def synchronize(device: str) -> None:
    """Wait until the GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def summarize(path: Path) -> list[dict[str, Any]]:
    """Return a row for each kernel name of a recorded trace, costliest first: our verdict, rule, bound and FLOP/s."""
    import numpy as np

    from perfdoctor import read
    from perfdoctor.analysis.kernels.tensor_core_verdicts import BASES, VERDICTS
    from perfdoctor.gpu.roofline.kernel_bounds import BOUNDS, REASONS
    from perfdoctor.rank import Rank

    rank = Rank(read(path))
    gpu, rows = rank.trace.gpu, []
    for code, kernel in rank.kernel_classes.by_name.items():
        launches = np.flatnonzero(gpu.name == code)
        flops_per_s = rank.kernel_costs.flops[launches] / np.maximum(gpu.dur_ns[launches], 1) * 1e9
        first = int(launches[0])
        rows.append(
            {
                "kernel": rank.trace.strings[code],
                "category": kernel.category,
                "rule": kernel.rule,
                "verdict": VERDICTS[rank.verdicts.tensor_core[first]],
                "by": BASES[rank.verdicts.basis[first]],
                "launches": len(launches),
                "time_ns": int(gpu.dur_ns[launches].sum()),
                "flops_per_s": None if np.isnan(flops_per_s).all() else float(np.nanmax(flops_per_s)),
                "bound": BOUNDS[rank.bounds.kind[first]] if rank.bounds.kind[first] >= 0 else None,
                "reason": REASONS[rank.bounds.reason[first]] or None,
            }
        )
    return sorted(rows, key=lambda row: -row["time_ns"])


def main(arguments: list[str]) -> int:
    """Record what this machine can run; returns 2 without a GPU, unless --cpu is given."""
    parser = argparse.ArgumentParser(description="Record kernels that no public trace holds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true", help="only the cases that a CPU can run, to try the script")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args(arguments)
    if not options.cpu and not torch.cuda.is_available():
        print("torch sees no GPU here; --cpu tries the cases that need none", file=sys.stderr)
        return 2
    device = "cpu" if options.cpu else "cuda"
    options.folder.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "cases": {}, "left_out": {}}
    summary["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    deadline = time.monotonic() + RECORD_SECONDS
    for case in cases():
        if options.only not in case.name or (case.gpu_only and device == "cpu"):
            continue
        if time.monotonic() > deadline:
            summary["left_out"][case.name] = "out of time"
            continue
        try:
            summary["cases"][case.name] = summarize(record(case, device, options.folder))
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            summary["left_out"][case.name] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        print(case.name, summary["left_out"].get(case.name, "recorded"), flush=True)
    (options.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
