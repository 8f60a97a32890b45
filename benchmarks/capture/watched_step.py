"""The cost of a watched step that records nothing: python -m benchmarks.capture.watched_step [STEPS].

CPU time of this thread for the recorder's part of a step after all windows, with the line in steps.jsonl, without and
with the socket of `perfdoctor run --watch`, in turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from statistics import median

from perfdoctor.capture.inject._perfdoctor_inject.attached_recorder import AttachedRecorder
from perfdoctor.capture.inject._perfdoctor_inject.control_socket import ControlSocket
from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import RecorderSettings

ROUNDS = 9


def main() -> None:
    """Print the median and the least of the rounds, in microseconds a step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    costs: dict[str, list[float]] = {"run": [], "run --watch": []}
    for _ in range(ROUNDS):
        for name in costs:
            costs[name].append(measure(steps, watched=name.endswith("--watch")))
    for name, values in costs.items():
        print(f"{name:12} {median(values):6.1f} us a step, least {min(values):6.1f}")
    print(f"the socket   {median(b - a for a, b in zip(*costs.values(), strict=True)):6.2f} us a step")


def measure(steps: int, *, watched: bool) -> float:
    """Microseconds of CPU time that the recorder takes for a step between two others that it does not record."""
    with tempfile.TemporaryDirectory() as folder:
        settings = RecorderSettings(folder, skip=1, base=1, warmup=1, timing=1, evidence=0, watch=watched)
        recorder = Recorder(settings, automatic=False)
        if watched:
            recorder.control = ControlSocket(settings, AttachedRecorder)
        recorder.begin()
        for _ in range(10):
            recorder.end_step()
        start_ns = time.thread_time_ns()
        for _ in range(steps):
            recorder.end_step()
        cost_ns = time.thread_time_ns() - start_ns
        recorder.finish("benchmark")
    return cost_ns / steps / 1000


if __name__ == "__main__":
    main()
