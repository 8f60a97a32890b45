"""Runs one planted fault for some steps: python -m benchmarks.planted_faults.program NAME [--fixed] [--device cuda] ...

Prints the mean step in ns. All timed steps are measured together, because a wait for the GPU at the end of each step
would be another fault.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

import torch

from benchmarks.planted_faults.faults import FAULTS, Setting

WARMUP_STEPS, TIMED_STEPS = 10, 30


def measure_step_ns(name: str, setting: Setting, warmup: int = WARMUP_STEPS, timed: int = TIMED_STEPS) -> int:
    """Run one program; returns the mean of its timed steps."""
    torch.manual_seed(0)
    steps = next(fault for fault in FAULTS if fault.name == name).steps(setting)
    for _ in islice(steps, warmup):
        pass
    synchronize(setting.device)
    start_ns = time.perf_counter_ns()
    for _ in islice(steps, timed):
        pass
    synchronize(setting.device)
    return (time.perf_counter_ns() - start_ns) // timed


def synchronize(device: str) -> None:
    """Wait until the GPU is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Run one planted fault.")
    parser.add_argument("name", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--fixed", action="store_true", help="without the fault")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=TIMED_STEPS)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)  # the other cores are for loader workers and other programs
    print(measure_step_ns(options.name, Setting(options.device, options.scale, options.fixed), timed=options.steps))


if __name__ == "__main__":
    main()
