"""Record the cases that no public trace holds, on the GPU of this machine, with shapes: one small trace each.

    python benchmarks/gpu/record.py OUT [--device cpu] [--seconds S] [--only WORD] [--small]

Not yet run on a GPU: written against the documented behaviour of torch, and tried on a CPU (`--device cpu`), where the
cases that need a GPU are left out. After so many seconds no further case starts. Cases that the device or torch does
not support are listed as left out. `summary.json` beside the traces holds for each case the kernel names with their
time, our verdict and, where shapes are known, the FLOP/s; it is written after each case. Without perfdoctor in this
Python the traces are recorded all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from kernel_cases import Case, cases
from torch.profiler import ProfilerActivity, profile
from trim_trace import trim_trace

REPEATS = 5


def record(case: Case, device: str, folder: Path, repeats: int = REPEATS) -> Path:
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
            for _ in range(repeats):
                program()
            synchronize(device)
    uncompressed = folder / f"{case.name}.json"
    session.export_chrome_trace(str(uncompressed))
    path = folder / f"{case.name}.json.gz"
    trim_trace(uncompressed, path)
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


def try_to_record(case: Case, device: str, folder: Path, repeats: int) -> tuple[list[dict[str, Any]], str]:
    """Record one case; returns its rows, and why it was left out ("" if it was not)."""
    try:
        path = record(case, device, folder, repeats)
    except Exception as error:  # compilers and libraries raise what they like, and the next case has a chance
        return [], f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
    try:
        return summarize(path), ""
    except ImportError as error:
        return [{"note": f"recorded, not summarized: {error}"}], ""
    except Exception as error:
        return [{"note": f"recorded, and summarizing failed: {type(error).__name__}: {error}"[:300]}], ""


def works(device: str) -> bool:
    """Whether the device still answers this process."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


def format_report(summary: dict[str, Any]) -> str:
    """A Markdown table of the costliest kernel of each case, and what was left out."""
    lines = [
        "| case | costliest kernel | category | Tensor Cores | by | TFLOP/s | bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in summary["cases"].items():
        row = rows[0] if rows else {"note": "no kernel was recorded"}
        if "note" in row:
            lines.append(f"| {name} | {row['note']} |  |  |  |  |  |")
            continue
        rate = "n/a" if row["flops_per_s"] is None else f"{row['flops_per_s'] / 1e12:,.1f}"
        kernel = row["kernel"][:90].replace("|", "\\|")
        lines.append(
            f"| {name} | `{kernel}` | {row['category']} | {row['verdict']} | {row['by']} | {rate} | {row['bound']} |"
        )
    return "\n".join([*lines, "", *(f"- {name} left out: {why}" for name, why in summary["left_out"].items())])


def main(arguments: list[str]) -> int:
    """Record what this machine can run; returns 2 without a GPU, unless --device cpu is given."""
    parser = argparse.ArgumentParser(description="Record kernels that no public trace holds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only what a CPU can run")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=480, help="begin no other case after this time")
    parser.add_argument("--small", action="store_true", help="record each program once, to try the script")
    parser.add_argument("--after", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu tries the cases that need none", file=sys.stderr)
        return 2
    device = options.device
    traces = options.folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "cases": {}, "left_out": {}}
    summary["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    if options.after:
        summary = json.loads((options.folder / "summary.json").read_text(encoding="utf-8"))
    deadline = time.monotonic() + options.seconds
    names = [case.name for case in cases()]
    for case in islice(cases(), names.index(options.after) + 1 if options.after else 0, None):
        if options.only not in case.name:
            continue
        if case.gpu_only and device == "cpu":
            summary["left_out"][case.name] = "needs a GPU"
            continue
        if time.monotonic() > deadline:
            summary["left_out"][case.name] = "out of time"
            continue
        rows, why = try_to_record(case, device, traces, 1 if options.small else REPEATS)
        summary["left_out" if why else "cases"][case.name] = why or rows
        print(case.name, why or "recorded", flush=True)
        (options.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        (options.folder / "report.md").write_text(format_report(summary) + "\n", encoding="utf-8")
        if why and not works(device):  # a fault on the GPU stays in the process
            left = ["--seconds", str(deadline - time.monotonic()), "--after", case.name]
            os.execv(sys.executable, [sys.executable, str(Path(__file__).resolve()), *arguments, *left])
    return 0 if summary["cases"] else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
