"""The cost of `perfdoctor run --memory` without frames: taskset -c 0 python -m benchmarks.capture.memory [PAIRS].

Blocks of steps after the windows take turns within one process and one recording, with what `--memory` does in a step
and without; runs of their own differ by a tenth, which is more than what is asked for. CPU time of the training thread,
user and system; the share of the thread that looks at the host stands beside it, since it runs in both.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from statistics import median

import torch
from torch import nn

from benchmarks.capture.window import TINY_WIDTH, Training
from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import RecorderSettings
from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks

STEPS, WARMUP = 10, 2
# Of a normal distribution 95 % lie within so many standard deviations.
DEVIATIONS = 1.96


class RecordedTraining(Training):
    """A training whose steps are recorded with `--memory`, in blocks with and without what that does in a step."""

    def __init__(self, size: str, width: int | None, recorder: Recorder) -> None:
        super().__init__(size, width)
        self._recorder = recorder

    def run_block(self, *, with_memory: bool) -> float:
        """Mean CPU time of a step in ns, without the first ones."""
        self._recorder.memory_watch.enabled = with_memory
        sampler = torch.randint(256, (STEPS + WARMUP + 1, self.batch)).tolist()
        clock = []
        for rows in sampler:
            clock.append(time.thread_time_ns())
            self._recorder.end_step()
            x, y = self.data[rows]
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return (clock[-1] - clock[WARMUP]) / STEPS


def measure(size: str, pairs: int, width: int | None = None) -> str:
    """One line: the step without, what `--memory` adds in median with its interval of 95 %, and the thread's share."""
    with tempfile.TemporaryDirectory() as folder:
        settings = RecorderSettings(folder, skip=1, base=1, warmup=1, timing=1, evidence=0, memory=True)
        recorder = Recorder(settings, automatic=False)
        recorder._program_facts = {}
        hooks = Hooks(recorder)
        hooks.install()
        recorder.begin()
        try:
            training = RecordedTraining(size, width, recorder)
            training.run_block(with_memory=True)
            looks_ns, wall_ns = recorder.memory_watch.host._cpu_ns, time.perf_counter_ns()
            without, ratios = [], []
            for number in range(pairs):
                # ABBA: what drifts evenly cancels out.
                order = (False, True) if number % 2 else (True, False)
                block = {with_memory: training.run_block(with_memory=with_memory) for with_memory in order}
                without.append(block[False])
                ratios.append(block[True] / block[False] - 1)
            looks_ns = recorder.memory_watch.host._cpu_ns - looks_ns
            wall_ns = time.perf_counter_ns() - wall_ns
            recorder.memory_watch.enabled = True
        finally:
            recorder.finish("benchmark")
            hooks.remove()
    ratios.sort()
    margin = DEVIATIONS * math.sqrt(pairs) / 2
    low, high = (ratios[min(max(round((pairs - 1) / 2 + each), 0), pairs - 1)] for each in (-margin, margin))
    step_ns, added = median(without), median(ratios)
    return (
        f"{size}: {step_ns / 1e6:.2f} ms without, {100 * added:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f}), "
        f"{added * step_ns / 1000:.0f} us a step; the thread that looks at the host {100 * looks_ns / wall_ns:.2f} % "
        "of a core"
    )


def main() -> None:
    """Measure the ops of a step on tiny tensors, where the rest is small, and steps of 2, 10 and 70 ms."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}, {pairs} pairs of blocks of {STEPS} steps")
    for size in ("2ms", "10ms", "70ms"):
        print("tiny tensors,", measure(size, 4 * pairs, TINY_WIDTH), flush=True)
        print(measure(size, pairs), flush=True)


if __name__ == "__main__":
    main()
