"""What a capture is asked for: one frozen value, validated once, for parent, child and session alike."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import STANDARD_SIZES, TrialOptions
from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass

# Evaluations and checkpoints take a minute or two; NCCL gives up after 600 s.
HANG_AFTER_S = 180.0


@frozen_dataclass
class CaptureOptions:
    """Sizes of the windows, in steps, and where the files go.

    A run passes through `skip` -> `base` -> `warmup` -> `timing` -> one warm-up step -> `evidence`. The base window
    runs without any profiler and gives the true step time. The timing window records without stacks and shapes. The
    evidence window records stacks, shapes, memory and source lines; its times are not to be trusted.

    Windows of the standard sizes adapt: a program is recorded three times, in windows that grow, so that a program of
    six steps has windows, too. What is recorded later replaces what was recorded before. Other sizes are kept exactly.

    Attributes:
        out: Capture folder; None makes `perfdoctor-<script>-<time>` in the working directory.
        force: Write into a folder that already holds a capture, replacing it.
        skip: Steps left alone at the start (lazy initialisation, compilation, autotuning).
        base: Steps timed without a profiler.
        warmup: Steps for the profiler to warm up before the timing window. The first recorded step takes up to three
            times as long as the others and must not be counted.
        timing: Steps of the timing window.
        evidence: Steps of the evidence window; 0 leaves it out.
        max_evidence_bytes: Text of the evidence window before it is compressed to a tenth or less; the profiler takes
            seven times as much memory for it. What would have more has fewer steps, or no stacks.
        memory: Record memory: the peaks of each step, the host's memory by a thread that looks at /proc, a snapshot of
            CUDA's allocator with its history in the evidence window, and one where memory runs out.
        watch: Leave a socket in the folder of each rank, through which `perfdoctor record` asks for more windows.
        hang_after_s: Seconds without a step, at least, after which a rank stands still; 0 does not look.
        stop_after: End the program, with exit code 0, once everything is recorded.
        ranks: Record these ranks only; None records all of them.
        nvtx_only: Record nothing and only mark the phases of each step as NVTX ranges, for use under nsys.
        trial: Make a trial: only `skip` and `base` count, nothing is recorded, and the program is ended after them.
    """

    out: Path | None = None
    force: bool = False
    skip: int = 5
    base: int = 10
    warmup: int = 2
    timing: int = 8
    evidence: int = 3
    stop_after: bool = False
    ranks: tuple[int, ...] | None = None
    nvtx_only: bool = False
    trial: TrialOptions | None = None
    max_evidence_bytes: int = 500_000_000
    memory: bool = False
    watch: bool = False
    hang_after_s: float = HANG_AFTER_S

    def __post_init__(self) -> None:
        for name, minimum in (("skip", 0), ("base", 0), ("warmup", 0), ("timing", 1), ("evidence", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise UsageError(
                    f"--{name} {value!r} is not a number of steps: give a whole number of at least {minimum}."
                )
        if not self.hang_after_s >= 0:
            raise UsageError(f"--hang-after {self.hang_after_s:g} is no time: give seconds, or 0 not to look.")
        if self.max_evidence_bytes < 1:
            raise UsageError(
                f"--max-evidence {self.max_evidence_bytes / 1e6:g} leaves no evidence: give more than 0 MB."
            )
        if self.trial is not None and not self.base:
            raise UsageError("A trial times the steps of its base window: give it at least one.")
        if self.ranks is not None and (not self.ranks or any(rank < 0 for rank in self.ranks)):
            raise UsageError("--ranks names no rank that exists: give numbers from 0 up, such as --ranks 0,7.")

    @property
    def adapts(self) -> bool:
        """Whether the windows adapt to the number of steps: their sizes are the standard ones."""
        return (self.skip, self.base, self.warmup, self.timing, self.evidence) == STANDARD_SIZES

    @property
    def first_timing_step(self) -> int:
        """Index of the first step of the timing window."""
        return self.skip + self.base + self.warmup

    @property
    def steps(self) -> int:
        """Whole steps that a program must make for every window to be complete."""
        if self.trial is not None:
            return self.skip + self.base
        return self.first_timing_step + self.timing + (min(self.warmup, 1) + self.evidence if self.evidence else 0)

    def to_json(self, folder: Path) -> str:
        """The settings that the injected recorder reads, as the text of one environment variable.

        The folder is an absolute path, and exists.
        """
        names = (
            "skip",
            "base",
            "warmup",
            "timing",
            "evidence",
            "max_evidence_bytes",
            "stop_after",
            "ranks",
            "nvtx_only",
            "memory",
            "watch",
        )
        values = {"folder": str(folder), **{name: getattr(self, name) for name in names}}
        values["watches_hangs"] = bool(self.hang_after_s) and self.trial is None and not self.nvtx_only
        if self.trial is not None:
            values |= {"warmup": 0, "timing": 0, "evidence": 0, "stop_after": True, "trial": asdict(self.trial)}
        return json.dumps(values)


def fit_windows(steps: int) -> CaptureOptions | None:
    """Windows that a program of so few steps completes, every one of them.

    Half of the steps are recorded for timing and up to three for evidence. The remaining steps are shared between
    skipping and the base window.

    Args:
        steps: Whole steps that the program makes.

    Returns:
        The options, or None when fewer than four steps leave no room for any window.
    """
    if steps < 4:
        return None
    standard = CaptureOptions()
    if steps >= standard.steps:
        return standard
    evidence = 0 if steps < 8 else min(standard.evidence, steps // 8 + 1)
    warmup = 1 if steps < 16 else standard.warmup
    rest = steps - warmup - (evidence + 1 if evidence else 0)
    timing = min(standard.timing, max(2, rest // 2))
    skip = min(standard.skip, (rest - timing) // 2)
    base = min(standard.base, rest - timing - skip)
    return CaptureOptions(skip=skip, base=base, warmup=warmup, timing=timing, evidence=evidence)
