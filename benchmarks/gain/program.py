"""One planted fault, run for some steps: python -m benchmarks.gain.program NAME [--fixed] [--device cuda] ...

Prints how long a step took, in ns. The clock stands over all timed steps together: to stop the GPU at each step's end
would be a fault of its own.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

import torch

from benchmarks.gain.faults import FAULTS, Setting

WARM_STEPS, TIMED_STEPS = 10, 30


def step_ns(name: str, setting: Setting, warm: int = WARM_STEPS, timed: int = TIMED_STEPS) -> int:
    """Run one program and return the mean length of its timed steps."""
    torch.manual_seed(0)
    steps = next(fault for fault in FAULTS if fault.name == name).steps(setting)
    for _ in islice(steps, warm):
        pass
    wait(setting.device)
    began = time.perf_counter_ns()
    for _ in islice(steps, timed):
        pass
    wait(setting.device)
    return (time.perf_counter_ns() - began) // timed


def wait(device: str) -> None:
    """Until the GPU is through."""
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description="Run one planted fault.")
    parser.add_argument("name", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--fixed", action="store_true", help="with the fault taken out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=TIMED_STEPS)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)  # workers and other programs have the other cores
    print(step_ns(given.name, Setting(given.device, given.scale, given.fixed), timed=given.steps))


if __name__ == "__main__":
    main()
