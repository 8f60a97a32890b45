"""Step times of an hour in ms, of programs that are healthy or that drift, each from its own seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
HOUR_MS = 3_600_000.0


def _steps(ms: float) -> int:
    return int(HOUR_MS / ms)


def _every(values: FloatArray, interval: int, factor: float, first: int = 0) -> FloatArray:
    values = values.copy()
    values[first::interval] *= factor
    return values


def healthy_runs() -> dict[str, FloatArray]:
    """Twenty programs of an hour that do not drift."""
    rng = np.random.default_rng(20)

    def noisy(ms: float, share: float = 0.03) -> FloatArray:
        return ms * (1 + share * rng.standard_normal(_steps(ms)).clip(-3, 3))

    def phase(count: int, interval: int) -> FloatArray:
        return (np.arange(count) % interval) / interval

    def while_busy(values: FloatArray, start_share: float, minutes: float, factor: float) -> FloatArray:
        values, first = values.copy(), int(start_share * len(values))
        values[first : first + int(minutes / 60 * len(values))] *= factor
        return values

    count = _steps(50)
    wander = np.convolve(rng.standard_normal(count + 999), np.ones(1000) / 1000, "valid")
    return {
        "steady": noisy(20),
        "200,000 steps": noisy(18),
        "log-normal": 40 * rng.lognormal(0, 0.3, _steps(40)),
        "heavy tail": 40 * (1 + 0.1 * rng.pareto(1.5, _steps(40))),
        "Cauchy noise": 30 + np.abs(rng.standard_cauchy(_steps(30))),
        "evaluation every 500 steps": _every(noisy(100), 500, 40),
        "checkpoint every 1,000 steps": _every(noisy(80), 1000, 60, 999),
        "epochs with a slow first step": _every(noisy(200), 900, 30),
        "epochs sorted by length, twenty": noisy(50) * (0.5 + phase(count, count // 20)),
        "epochs sorted by length, three": noisy(50) * (0.5 + phase(count, count // 3 + 1)),
        "epochs sorted by length, two": noisy(50) * (0.5 + phase(count, count // 2 + 1)),
        "two shapes by chance": np.where(rng.random(count) < 0.5, 30.0, 70.0) * (noisy(50) / 50),
        "two shapes in turn": np.where(np.arange(count) % 2, 30.0, 70.0) * (noisy(50) / 50),
        "collector every 70 steps": _every(noisy(60), 70, 2.5),
        "a busy neighbour for a minute": while_busy(noisy(60), 0.6, 1, 2.0),
        "a busy neighbour in the last minute": while_busy(noisy(60), 59 / 60, 1, 2.0),
        "five busy minutes early": while_busy(noisy(60), 0.2, 5, 1.7),
        "warm-up of ten minutes": while_busy(noisy(60), 0, 10, 1.6),
        "gets faster slowly": noisy(50) * np.linspace(1.4, 1.0, count),
        "wanders by some percent": noisy(50) * (1 + wander),
    }


def drifting_runs() -> dict[str, tuple[FloatArray, str, int, float]]:
    """Ten drifts of an hour: the steps, "jump" or "ramp", the step where it begins, and after / before."""
    rng = np.random.default_rng(10)
    runs: dict[str, tuple[FloatArray, str, int, float]] = {}

    def add(name: str, steps: FloatArray, kind: str, share: float, factor: float) -> None:
        began = int(share * len(steps))
        shape = np.ones(len(steps))
        shape[began:] = factor if kind == "jump" else np.linspace(1, factor, len(steps) - began)
        runs[name] = steps * shape, kind, began, factor

    def noisy(ms: float, share: float = 0.03) -> FloatArray:
        return ms * (1 + share * rng.standard_normal(_steps(ms)).clip(-3, 3))

    count = _steps(50)
    add("jump by a fifth", noisy(20), "jump", 0.5, 1.2)
    add("jump by a tenth", noisy(100), "jump", 0.3, 1.1)
    add("jump late", noisy(50), "jump", 0.8, 1.5)
    add("ramp from the start", noisy(50), "ramp", 0.0, 2.0)
    add("ramp from the middle", noisy(50), "ramp", 0.5, 1.6)
    add("ramp with checkpoints", _every(noisy(80), 1000, 60), "ramp", 0.2, 1.4)
    add("ramp with epochs", noisy(50) * (0.9 + 0.2 * (np.arange(count) % 2000) / 2000), "ramp", 0.0, 1.5)
    add("jump of log-normal steps", 40 * rng.lognormal(0, 0.3, _steps(40)), "jump", 0.6, 1.3)
    add("jump of two shapes", np.where(rng.random(count) < 0.5, 30.0, 70.0), "jump", 0.4, 1.25)
    add("jump after a warm-up", _warm(noisy(60)), "jump", 0.6, 1.4)
    return runs


def _warm(values: FloatArray) -> FloatArray:
    values[: len(values) // 20] *= 1.8
    return values
