"""Measures again what the field guide's documents measured: python benchmarks/gpu/experiments.py [--device cpu] ...

One small A/B a row, on this machine: loader workers, fused GELU, cuDNN's autotuner, multiplications an element, and
what a small op, a Python addition and a matrix product cost. The variants of an experiment take turns, so that clocks
and neighbours change for all of them alike; the table has medians and ranges of the rounds. A claim holds where the
range of the ratio lies on the side that was claimed; on a CPU the form is tried, and no claim is judged. Needs torch
alone. Sources: NVIDIA, "PyTorch performance tuning guide" (ECCV 2020) for workers, GELU and the autotuner; H. He,
"Making Deep Learning Go Brrrr From First Principles" for multiplications and overhead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Setting:
    """The device, small sizes or those of the documents, rounds, and the time at which nothing more begins."""

    device: str
    small: bool
    rounds: int
    deadline: float

    def size(self, full: int, small: int) -> int:
        """A size: that of the document, or a small one."""
        return small if self.small else full

    @property
    def measure_s(self) -> float:
        """Seconds that one measurement of a round repeats its call for."""
        return 0.002 if self.small else 0.04

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass
class Outcome:
    """One experiment: the claim, seconds of each variant by round, and what follows.

    Attributes:
        row: Its number in the field guide.
        claim: What the document says, and of which machine.
        seconds: Of each variant, a figure a round.
        found: What was found, in words.
        holds: Whether the claim holds here; None where this machine or the noise does not let it be judged.
    """

    row: int
    claim: str
    seconds: Times = field(default_factory=dict)
    found: str = ""
    holds: bool | None = None


def seconds_a_call(call: Callable[[], object], setting: Setting) -> float:
    """The mean seconds of a call that is repeated; the GPU is waited for once at the end, as in a training step."""
    call()
    setting.synchronize()
    start = time.perf_counter()
    call()
    setting.synchronize()
    count = max(3, min(2000, int(setting.measure_s / max(time.perf_counter() - start, 1e-7))))
    start = time.perf_counter()
    for _ in range(count):
        call()
    setting.synchronize()
    return (time.perf_counter() - start) / count


def take_turns(variants: Mapping[str, Callable[[], float]], setting: Setting, warm_up: bool = True) -> Times:
    """The seconds of each variant, measured in turns; every other round in reverse order."""
    times: Times = {name: [] for name in variants}
    for number in range(-1 if warm_up else 0, setting.rounds):
        if number > 0 and time.monotonic() > setting.deadline:
            break
        names = list(variants) if number % 2 == 0 else list(reversed(variants))
        for name in names:
            seconds = variants[name]()
            if number >= 0:  # the first round fills caches
                times[name].append(seconds)
    return times


def ratios(times: Times, slow: str, fast: str) -> list[float]:
    """The ratio of two variants, round by round."""
    return [a / b for a, b in zip(times[slow], times[fast], strict=True)]


def in_words(values: Sequence[float], unit: str = "") -> str:
    """A median with its range."""
    return f"{statistics.median(values):.3g}{unit} ({min(values):.3g} to {max(values):.3g})"


# Row 17


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Grey images of 28 x 28, made floats and normalized one by one, as the MNIST example does."""

    def __init__(self, count: int) -> None:
        self.pixels = torch.randint(256, (count, 28, 28), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.tensor(self.pixels[index].tolist(), dtype=torch.uint8).unsqueeze(0)  # decoding
        return image.float().div(255).sub(0.1307).div(0.3081), index % 10


def choose_workers(setting: Setting) -> Outcome:
    """Row 17: more loader workers are not always better."""
    outcome = Outcome(17, "MNIST: 6.7 s an epoch with 1 worker, 4.1 with 4, 4.5 with 8: more is not always better")
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )
    model.to(setting.device)(torch.zeros(1, 1, 28, 28, device=setting.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images = Images(setting.size(16384, 256))

    def epoch(workers: int) -> float:
        pin = setting.device == "cuda"
        loader = torch.utils.data.DataLoader(images, 64, num_workers=workers, pin_memory=pin)
        start = time.perf_counter()
        for x, y in loader:
            x, y = x.to(setting.device, non_blocking=pin), y.to(setting.device, non_blocking=pin)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        setting.synchronize()
        return time.perf_counter() - start

    counts = sorted({0, 1, 2} if setting.small else {0, 1, 4, 8, os.cpu_count() or 1})
    outcome.seconds = take_turns({f"{n} workers": lambda n=n: epoch(n) for n in counts}, setting, warm_up=False)
    medians = {name: statistics.median(values) for name, values in outcome.seconds.items()}
    best = min(medians, key=medians.__getitem__)
    largest = f"{counts[-1]} workers"
    slower = ratios(outcome.seconds, largest, best)
    outcome.found = f"least with {best} of {os.cpu_count()} cores; {largest} take {in_words(slower)} times that"
    outcome.holds = None if best != largest and min(slower) < 1 < max(slower) else best != largest
    return outcome


# Row 30


def gelu_by_formula(x: torch.Tensor) -> torch.Tensor:
    """The slide's GELU: five pointwise ops."""
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


def fuse_gelu(setting: Setting) -> Outcome:
    """Row 30: five kernels become one."""
    outcome = Outcome(30, "fused GELU: five kernels become one, close to 4x on a million elements")
    variants: dict[str, Callable[[], float]] = {}
    for count, word in ((setting.size(1_000_000, 10_000), "small"), (setting.size(1 << 27, 100_000), "large")):
        x = torch.randn(count, device=setting.device)
        variants[f"formula, {word}"] = lambda x=x: seconds_a_call(lambda: gelu_by_formula(x), setting)
        variants[f"fused, {word}"] = lambda x=x: seconds_a_call(lambda: functional.gelu(x), setting)
        if setting.device == "cuda":
            graph = capture_graph(lambda x=x: gelu_by_formula(x))
            variants[f"formula as a CUDA graph, {word}"] = lambda graph=graph: seconds_a_call(graph.replay, setting)
    outcome.seconds = take_turns(variants, setting)
    small, large = (ratios(outcome.seconds, f"formula, {word}", f"fused, {word}") for word in ("small", "large"))
    outcome.found = f"{in_words(small)} times as fast on a million elements, {in_words(large)} on 134 million"
    outcome.holds = None if min(small) < 3 < max(small) else min(small) >= 3
    return outcome


def capture_graph(call: Callable[[], object]) -> Any:
    """The CUDA graph of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


# Row 31


def serve_convolution(pipe: Connection, device: str, small: bool, autotuned: bool) -> None:
    """In a process of its own: time the convolution whenever asked. A plan once found stays in a process for good."""
    torch.backends.cudnn.benchmark = autotuned
    setting = Setting(device, small, 1, 0.0)
    side, batch = setting.size(64, 8), setting.size(32, 2)
    layer = nn.Conv2d(64, 64, 3, padding=1).to(device)
    x = torch.randn(batch, 64, side, side, device=device, requires_grad=True)

    def step() -> None:
        layer(x).sum().backward()

    while pipe.recv():  # False ends this process
        pipe.send(seconds_a_call(step, setting))


def autotune_convolution(setting: Setting) -> Outcome:
    """Row 31: cuDNN's autotuner on one convolution, in two processes that take turns."""
    outcome = Outcome(
        31, "convolution of 64 3x3 filters, batch 32, 64 x 64, on a V100: 1,430 us become 840 with the autotuner"
    )
    context, pipes, processes = get_context("spawn"), {}, []
    for name, autotuned in (("heuristics", False), ("autotuner", True)):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve_convolution, args=(theirs, setting.device, setting.small, autotuned), daemon=True
        )
        process.start()
        theirs.close()  # so that its end is noticed
        pipes[name] = ours
        processes.append(process)

    def ask(name: str) -> float:
        pipes[name].send(True)
        return float(pipes[name].recv())

    try:
        outcome.seconds = take_turns({name: lambda name=name: ask(name) for name in pipes}, setting)
    finally:
        for name, process in zip(pipes, processes, strict=True):
            with contextlib.suppress(OSError):
                pipes[name].send(False)
            process.join(5)
            process.kill()
    faster = ratios(outcome.seconds, "heuristics", "autotuner")
    outcome.found = f"{in_words(faster)} times as fast with the autotuner, forward and backward"
    outcome.holds = None if min(faster) < 1.05 < max(faster) else min(faster) >= 1.05
    return outcome


# Row 35


def make_multiply(x: torch.Tensor, k: int) -> Callable[[], object]:
    """A call that multiplies each element k times, in registers on a GPU and in blocks that fit a cache on a CPU."""
    if x.is_cuda:
        code = f"template <typename T> T multiply(T x) {{ for (int i = 0; i < {k}; ++i) x = x * T(0.999); return x; }}"
        multiply = torch.cuda.jiterator._create_jit_fn(code)
        return lambda: multiply(x)
    blocks = x.split(1 << 15)

    def multiply_blocks() -> None:
        for block in blocks:
            for _ in range(k):
                block.mul_(-1.0)

    return multiply_blocks


def repeat_multiplication(setting: Setting) -> Outcome:
    """Row 35: how many multiplications an element cost as much as one."""
    outcome = Outcome(
        35, "a million elements times 2, k times, fused (A100): 16 cost as much as one, compute binds from 64"
    )
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    sizes = {"a million": setting.size(1 << 20, 1 << 16), "a hundred million": setting.size(100 << 20, 1 << 17)}
    words = []
    for word, size in sizes.items():
        x = torch.rand(size, device=setting.device)
        calls = {f"{word}, k = {k}": make_multiply(x, k) for k in counts}
        times = take_turns(
            {name: lambda call=call: seconds_a_call(call, setting) for name, call in calls.items()}, setting
        )
        outcome.seconds |= times
        medians = [statistics.median(times[f"{word}, k = {k}"]) for k in counts]
        same = max(k for k, seconds in zip(counts, medians, strict=True) if seconds <= 1.1 * medians[0])
        bound = [k for k, before, after in zip(counts[1:], medians, medians[1:], strict=False) if after > 1.5 * before]
        words.append(
            f"{word} elements: {same} cost as much as one, maths binds from {bound[0] if bound else 'nowhere'}"
        )
        if word == "a hundred million":
            outcome.holds = same >= 16
    outcome.found = "; ".join(words)
    return outcome


# Row 36


def count_overhead(setting: Setting) -> Outcome:
    """Row 36: what Python, the framework and the device do in a second."""
    outcome = Outcome(36, "280,000 small ops a second, 32 million Python additions, 312 TFLOP/s (A100, bf16)")
    one = torch.ones(1, device=setting.device)
    other = torch.ones(1, device=setting.device)
    side = setting.size(8192, 256)
    a, b = (torch.randn(side, side, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    outcome.seconds = take_turns(
        {
            "addition in Python": lambda: seconds_an_addition(setting.size(2_000_000, 20_000)),
            "op of one element": lambda: seconds_a_call(lambda: torch.add(one, other), setting),
            f"product of {side} x {side}, bf16": lambda: seconds_a_call(lambda: torch.mm(a, b), setting),
        },
        setting,
    )
    addition, op, product = (statistics.median(values) for values in outcome.seconds.values())
    rate = 2 * side**3 / product
    outcome.found = (
        f"{1 / op:,.0f} small ops and {1e-6 / addition:.0f} million Python additions a second, {rate / 1e12:,.1f} "
        f"TFLOP/s; while an op of one element runs, {rate * op / 1e6:,.0f} million FLOPs could"
    )
    outcome.holds = 100_000 <= 1 / op <= 1_000_000
    return outcome


def seconds_an_addition(count: int) -> float:
    """The seconds of one addition in a Python loop, less the loop."""
    total = number = 0
    start = time.perf_counter()
    while number < count:
        number += 1
    once = time.perf_counter()
    while total < count:
        total += 1
        number += 1
    return max(time.perf_counter() - once - (once - start), 1e-12) / count


EXPERIMENTS: tuple[Callable[[Setting], Outcome], ...] = (
    fuse_gelu,
    autotune_convolution,
    repeat_multiplication,
    count_overhead,
    choose_workers,
)


def run_experiments(setting: Setting) -> Iterator[Outcome]:
    """Yield the outcome of each experiment; one that fails says so, and one without time is not begun."""
    for number, experiment in enumerate(EXPERIMENTS):
        left_s = setting.deadline - time.monotonic()
        own = replace(setting, deadline=time.monotonic() + left_s / (len(EXPERIMENTS) - number))
        if left_s <= 0:
            yield Outcome(0, (experiment.__doc__ or "").splitlines()[0], found="out of time")
            continue
        try:
            outcome = experiment(own)
        except (RuntimeError, AttributeError, TypeError, OSError, EOFError) as error:
            text = (str(error).splitlines() or [""])[0][:200]
            outcome = Outcome(0, (experiment.__doc__ or "").splitlines()[0], found=f"{type(error).__name__}: {text}")
        if setting.device == "cpu" or setting.small:
            outcome.holds = None
        yield outcome


def format_table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table: a line for each experiment, and below it one for each variant."""
    lines = ["| row | claim | found here | holds |", "|---|---|---|---|"]
    verdicts = {True: "yes", False: "**no**", None: "not judged"}
    lines += [f"| {each.row or ''} | {each.claim} | {each.found} | {verdicts[each.holds]} |" for each in outcomes]
    lines += ["", "| row | variant | median, us | least to most | rounds |", "|---|---|---|---|---|"]
    for each in outcomes:
        for name, values in each.seconds.items():
            us = [1e6 * value for value in values]
            spread = f"{min(us):,.2f} to {max(us):,.2f}"
            lines.append(f"| {each.row} | {name} | {statistics.median(us):,.2f} | {spread} | {len(us)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run all experiments and print the tables; returns 2 without the GPU that was asked for."""
    parser = argparse.ArgumentParser(description="Experiments of the field guide.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the form")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="begin no other round after this time")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write figures.json and report.md there")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu tries the form", file=sys.stderr)
        return 2
    rounds = 1 if options.small else options.rounds
    setting = Setting(options.device, options.small, rounds, time.monotonic() + options.seconds)
    outcomes = []
    for outcome in run_experiments(setting):
        outcomes.append(outcome)
        print(f"row {outcome.row}: {outcome.found}", file=sys.stderr, flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            figures = {"experiments": [asdict(each) for each in outcomes]}
            (options.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            (options.out / "report.md").write_text(format_table(outcomes) + "\n", encoding="utf-8")
    print(format_table(outcomes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
