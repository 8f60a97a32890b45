"""The overhead of `perfdoctor run`: python -m benchmarks.capture [RUNS]. Each run is a process; all take turns.

Times of steps are CPU times of the training thread, because the load of other programs is not our cost. Between two
iterations perfdoctor also saves traces. So the last step of each window is left out, and the saving has a line of its
own. All figures are medians over the runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.child_process import build_environment

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "train_image_classifier.py"
STEPS = 60
WINDOWS = CaptureOptions()
# Iterations of each window, counted from 0, without the last one, which saves the trace of the window.
TIMING = range(WINDOWS.first_timing_step, WINDOWS.first_timing_step + WINDOWS.timing - 1)
EVIDENCE = range(TIMING.stop + 2, TIMING.stop + 2 + WINDOWS.evidence - 1)
PHASES = {"before": range(WINDOWS.skip, WINDOWS.skip + WINDOWS.base - 1), "timing": TIMING, "evidence": EVIDENCE}
PHASES["after"] = range(EVIDENCE.stop + 6, STEPS - 1)
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Measure everything and print it."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {runs} runs")
    for line in (*measure_startup(3 * runs), *measure_steps(runs), measure_whole_run()):
        print(line, flush=True)


def measure_startup(runs: int) -> Iterator[str]:
    """The start of a Python that never imports torch, with and without our folder on its path."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder)
        recorded = {**QUIET, **build_environment(marks, WINDOWS.to_json(marks))}
        times: dict[str, list[float]] = {"plain": [], "recorded": []}
        for _ in range(runs):
            for name, values in (("plain", QUIET), ("recorded", recorded)):
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", "pass"], env=values, check=True)
                times[name].append(1000 * (time.perf_counter() - start))
    plain, ours = median(times["plain"]), median(times["recorded"])
    added = min(times["recorded"]) - min(times["plain"])
    yield f"start-up without torch: {plain:.1f} ms, {ours:.1f} ms: +{ours - plain:.1f} ms (least: +{added:.1f} ms)"


def measure_steps(runs: int) -> Iterator[str]:
    """Steps of several lengths in each window, against the same iterations of the plain program."""
    for size in ("2ms", "10ms", "70ms", "10ms-adamw"):
        ratios: dict[str, list[float]] = {phase: [] for phase in PHASES}
        recorded_ns: dict[str, list[float]] = {phase: [] for phase in PHASES}
        plain_ns, saving_s = [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                out, capture = Path(folder) / "clock.json", Path(folder) / "capture"
                program = [str(HERE / "program.py"), size, str(STEPS), str(out)]
                run = [sys.executable, "-m", "perfdoctor", "run", "--no-report", "--out", str(capture), *program]
                subprocess.run([sys.executable, *program], env=QUIET, check=True)
                plain_clock = json.loads(out.read_text())
                subprocess.run(run, env=QUIET, check=True, stderr=subprocess.DEVNULL)
                clock = json.loads(out.read_text())
                saving_s.append(saving_time_ns(clock, capture) / 1e9)
            plain, ours = phase_medians_ns(plain_clock), phase_medians_ns(clock)
            plain_ns += [cpu_ns(plain_clock, number) for number in range(WINDOWS.skip, STEPS - 1)]
            for phase, numbers in PHASES.items():
                recorded_ns[phase] += [cpu_ns(clock, number) for number in numbers]
            for phase in PHASES:
                # A window is compared with the steps right before it in both programs: slow changes of load cancel out.
                drift = plain["before"] / ours["before"] if phase in ("timing", "evidence") else 1.0
                ratios[phase].append(drift * ours[phase] / plain[phase])
        for phase, measured in ratios.items():
            spread = f"median {median(measured):.3f} ({min(measured):.2f} to {max(measured):.2f})"
            yield f"{size}, {phase}: {spread}, least against least {min(recorded_ns[phase]) / min(plain_ns):.3f}"
        yield f"{size}: plain step {min(plain_ns) / 1e6:.1f} ms at least, median {median(plain_ns) / 1e6:.1f} ms"
        yield f"{size}: timing trace of {WINDOWS.timing} steps on disk after {median(saving_s):.2f} s"


def phase_medians_ns(clock: list[list[int]]) -> dict[str, float]:
    """Median CPU time of an iteration in each phase, in ns."""
    return {phase: median(cpu_ns(clock, number) for number in numbers) for phase, numbers in PHASES.items()}


def cpu_ns(clock: list[list[int]], number: int) -> int:
    """CPU time of one iteration, in ns."""
    return clock[number + 1][1] - clock[number][1]


def saving_time_ns(clock: list[list[int]], capture: Path) -> int:
    """Wall time from the end of the last timed step to the next batch, most of it for writing the trace."""
    last = TIMING.stop
    lines = (capture / "rank0" / "steps.jsonl").read_text().splitlines()
    following = json.loads(lines[last + 1])
    return clock[last + 1][0] - clock[last][0] - json.loads(lines[last])["dur_ns"] - following["loader_wait_ns"]


def measure_whole_run() -> str:
    """`perfdoctor run --stop-after` on the README's example, report included."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "perfdoctor", "run", "--stop-after", "--out", f"{folder}/capture", str(EXAMPLE)]
        start = time.perf_counter()
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return f"whole run with --stop-after on {EXAMPLE.name}: {time.perf_counter() - start:.1f} s"


if __name__ == "__main__":
    main()
