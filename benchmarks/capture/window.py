"""The overhead of the timing window, ours and the profiler's: python -m benchmarks.capture.window [ROUNDS].

Blocks of steps take turns in one process: plain, with `torch.autograd.profiler` alone, with the recorder in its timing
window, and with the recorder after its windows. Times are CPU times of the training thread, the median of a block.
Differences are taken within a round, so that slow changes of load cancel out, and the table has medians of the rounds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch import nn
from torch.autograd import profiler
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.capture.program import SIZES, make_model
from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import RecorderSettings
from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks

STEPS = 8
# The first steps of a block are slow, whether recorded or not.
WARMUP = 4
# The same ops on tensors of this width have next to no work: they show the cost of events alone.
TINY_WIDTH = 8

Block = Callable[[], list[int]]


class Training:
    """A program of `benchmarks.capture.program`, in blocks of a few steps."""

    def __init__(self, size: str, width: int | None = None) -> None:
        blocks, size_width, batch, kind = SIZES[size]
        width = width or size_width
        self.batch = batch
        self.model = make_model(blocks, width)
        self.optimizer = getattr(torch.optim, kind)(self.model.parameters(), lr=1e-3)
        self.data = TensorDataset(torch.randn(256, width), torch.randint(10, (256,)))

    def run_plain(self) -> list[int]:
        """CPU time of each step in ns, without the first ones."""
        clock = []
        sampler = torch.randint(256, (WARMUP + STEPS + 1, self.batch)).tolist()
        for x, y in DataLoader(self.data, batch_sampler=sampler):
            clock.append(time.thread_time_ns())
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return [after - before for before, after in zip(clock[WARMUP:], clock[WARMUP + 1 :], strict=False)]

    def run_profiled(self) -> list[int]:
        """The same with the profiler of the timing window and no recorder."""
        with profiler.profile(use_kineto=True):
            return self.run_plain()

    def run_timed(self) -> list[int]:
        """The same in the timing window, which begins with the second step and ends after the last."""
        return self._run_recorded(timing=WARMUP + STEPS)

    def run_after_windows(self) -> list[int]:
        """The same after all windows: the first step is skipped and the second is recorded."""
        return self._run_recorded(timing=1)

    def _run_recorded(self, timing: int) -> list[int]:
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(RecorderSettings(folder, skip=1, base=0, warmup=0, timing=timing, evidence=0))
            recorder._program_facts = {}
            hooks = Hooks(recorder)
            hooks.install()
            try:
                return self.run_plain()
            finally:
                recorder.finish("benchmark")
                hooks.remove()


def count_events_per_step(training: Training) -> int:
    """Events that the profiler records in one step."""
    with profiler.profile(use_kineto=True) as profile:
        steps = len(training.run_plain()) + WARMUP + 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.kineto_results.save(str(path))
        return sum(event["ph"] == "X" for event in json.loads(path.read_text())["traceEvents"]) // steps


def compare(name: str, training: Training, rounds: int) -> str:
    """One line: the plain step, and the overhead of each kind of block, in us and as a ratio."""
    blocks: dict[str, Block] = {
        "plain": training.run_plain,
        "profiler": training.run_profiled,
        "timing": training.run_timed,
        "after": training.run_after_windows,
    }
    times: dict[str, list[float]] = {kind: [] for kind in blocks}
    for number in range(rounds + 1):
        for kind, run in blocks.items():
            step_ns = median(run())
            if number:  # the first round fills caches
                times[kind].append(step_ns)
    plain = times["plain"]
    parts = [f"{name}: plain {median(plain) / 1e6:.2f} ms, {count_events_per_step(training)} events"]
    for kind in ("profiler", "timing", "after"):
        ratio = median(ours / base for ours, base in zip(times[kind], plain, strict=True))
        added = median(ours - base for ours, base in zip(times[kind], plain, strict=True)) / 1000
        added = (min(times[kind]) - min(plain)) / 1000
        parts.append(f"{kind} {ratio:.3f} (+{added:.0f} us, of the least +{added:.0f})")
    ours = median(a - b for a, b in zip(times["timing"], times["profiler"], strict=True)) / 1000
    return "; ".join([*parts, f"ours beside the profiler's in the timing window {ours:+.0f} us"])


def main() -> None:
    """Measure each kind of step, with its work and without."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}, {rounds} rounds of {STEPS} steps")
    for size in SIZES:
        print(compare(f"{size}, tiny tensors", Training(size, TINY_WIDTH), rounds), flush=True)
        print(compare(size, Training(size), rounds), flush=True)


if __name__ == "__main__":
    main()
