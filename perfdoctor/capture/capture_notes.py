"""What the user reads after a run: one sentence for each thing that is missing, with what to do about it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfdoctor.capture.capture_options import CaptureOptions, fit_windows
from perfdoctor.capture.command_line import find_isolating_flag
from perfdoctor.capture.inject._perfdoctor_inject.messages import USER_PROFILER
from perfdoctor.capture.missing_torch import explain_missing_torch
from perfdoctor.facts.captured import RUNNING, CapturedFacts

USE_SESSION = "mark the steps yourself: with perfdoctor.profile() as session, and with session.step() around each step"

# Steps after which adapted windows have their full sizes.
ADAPTED_STEPS = 42

DUPLICATE_RANK = (
    "several processes of the program trained as the same rank, and the first of them was recorded: "
    "run perfdoctor on the one that you mean."
)


NO_TORCH = "the program never imported torch, or only in a Python that keeps perfdoctor out (-I, -E, -S)"
UNRECORDED_DUPLICATE = "Another process of the program trained as the same rank and was not recorded."


# What is read there of memory, cores and waits comes from /proc.
TESTED_PLATFORM = "linux"
PLATFORM_NAMES = {"darwin": "macOS", "win32": "Windows"}


def collect_notes(
    command: Sequence[str],
    options: CaptureOptions,
    folder: Path,
    ranks: tuple[int, ...],
    markers: frozenset[str],
    exit_code: int = 0,
    left_running: int = 0,
) -> tuple[str, ...]:
    """Everything that the user should know about a capture; empty when all went as planned.

    `left_running`: processes of the program that go on after its end.
    """
    if not ranks and left_running:
        return (
            f"nothing was recorded: the program has ended, and {left_running} of its processes run on in the "
            "background, unrecorded; let it stay in the foreground.",
        )
    if not ranks:
        return (explain_empty_capture(command, options, markers, exit_code),)
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        for text in notes_of_rank(read_facts(folder, rank), options):
            by_text.setdefault(text, []).append(rank)
    if "duplicate" in markers:
        by_text[DUPLICATE_RANK] = list(ranks)
        for rank in ranks:
            add_unrecorded(folder, rank, UNRECORDED_DUPLICATE)
    if sys.platform != TESTED_PLATFORM:
        by_text[describe_untested_platform()] = list(ranks)
    missing = sorted(set(options.ranks or ()) - set(ranks))
    if missing:
        by_text.setdefault(f"rank {', '.join(map(str, missing))} was asked for, but never made a step.", list(ranks))
    return tuple(
        text if len(who) == len(ranks) else f"rank {', '.join(map(str, who))}: {text}" for text, who in by_text.items()
    )


def describe_untested_platform() -> str:
    """What to expect of a recording on a system on which recording is not tested."""
    name = PLATFORM_NAMES.get(sys.platform, sys.platform)
    return f"recording is tested on Linux only; on {name}, facts about memory, CPU cores and waits are missing in part."


def explain_empty_capture(
    command: Sequence[str], options: CaptureOptions, markers: frozenset[str], exit_code: int = 0
) -> str:
    """The likeliest reason why no rank has a folder; of a program that failed its own traceback says the rest."""
    if "python" not in markers:
        flag = find_isolating_flag(command)
        if flag:
            return f"nothing was recorded: python {flag} keeps perfdoctor out; run it without {flag}, or {USE_SESSION}."
        return (
            "nothing was recorded: no Python of the program loaded perfdoctor (python -I, -E or -S, a cleared "
            f"environment, or a container); run the training script directly, or {USE_SESSION}."
        )
    if "perfdoctor" in markers:
        return "nothing was recorded here: the program runs perfdoctor itself, which has its own folder."
    if "torch" not in markers:
        # Behind the interpreter of a script or module stands the program; other commands may start any Python.
        hint = explain_missing_torch(command[1:]) if command[0] == sys.executable else None
        return f"nothing was recorded: {hint or NO_TORCH}."
    if exit_code:
        return f"nothing was recorded: the program ended with exit code {exit_code} before a training step was seen."
    if options.ranks is not None:
        return f"nothing was recorded: no rank of --ranks {','.join(map(str, options.ranks))} made a training step."
    return f"nothing was recorded: no training step was seen; {USE_SESSION}."


def read_facts(folder: Path, rank: int) -> CapturedFacts | None:
    """The facts of a rank, or None when they cannot be read."""
    plain = _read_plain_facts(folder, rank)
    return None if plain is None else CapturedFacts.parse(plain)


def has_ended(facts: CapturedFacts | None) -> bool:
    """Whether the recorder of a rank has written how it ended: the program has, or it was taken out."""
    return facts is not None and facts.exit not in RUNNING


def _read_plain_facts(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        facts = json.loads((folder / f"rank{rank}" / "facts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def add_unrecorded(folder: Path, rank: int, sentence: str) -> None:
    """Write into facts.json of a rank what only the parent process knows of the run."""
    facts = _read_plain_facts(folder, rank)
    if facts is None or not isinstance(facts.get("run"), dict):
        return
    facts["run"].setdefault("unrecorded", []).append(sentence)
    path = folder / f"rank{rank}" / "facts.json"
    unfinished = path.with_suffix(".unfinished")
    with contextlib.suppress(OSError):  # a full disk, or a kill here, leaves the facts as they were
        unfinished.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        unfinished.replace(path)


def notes_of_rank(facts: CapturedFacts | None, options: CaptureOptions) -> Iterator[str]:
    """Sentences on what is missing from one rank's recording."""
    if facts is None:
        yield "the recording was cut off before anything but step times was written."
        return
    timing, steps = facts.windows.timing, facts.steps_seen or 0
    for note in facts.notes:
        yield f"{note}."
    yield from tell_out_of_memory(facts)
    if facts.exit in ("running", "recorded"):
        yield "the end of the program was not recorded: it was killed, the disk was full, or a part of it still runs."
        if timing.file:
            return
    if not timing.file or (options.adapts and not timing.steps):
        yield explain_missing_timing(steps, options, facts)
    elif options.adapts and timing.steps:
        yield from explain_short_windows(options, facts)
    elif not timing.complete:
        why = ""
        if not facts.notes:
            why = f", because the program ended after {steps} steps{suggest_windows(steps)}"
        yield f"the timing window has {timing.steps} of {options.timing} steps{why}."
    elif options.evidence and not facts.windows.evidence.complete and not facts.notes:
        yield (
            f"the evidence window (shapes, source lines) is incomplete: the program ended after {steps} steps "
            f"and {options.steps} are needed{suggest_windows(steps)}."
        )


def tell_out_of_memory(facts: CapturedFacts) -> Iterator[str]:
    """Where memory ran out."""
    failed = facts.memory.out_of_memory
    if failed.error:
        line = f" at {failed.location.file}:{failed.location.line}" if failed.location else ""
        yield f"memory ran out{line}."


def explain_short_windows(options: CaptureOptions, facts: CapturedFacts) -> Iterator[str]:
    """At most one sentence on windows that adapted to a program of few steps, or of steps with many events."""
    steps, timing, evidence = facts.steps_seen or 0, facts.windows.timing.steps or 0, facts.windows.evidence.steps or 0
    if steps > ADAPTED_STEPS or timing >= options.timing or facts.notes:
        return
    yield (
        f"the program made {steps} steps, so that times are of {timing} of them and shapes and lines of {evidence}: "
        "a longer run gives more reliable figures."
    )


def explain_missing_timing(steps: int, options: CaptureOptions, facts: CapturedFacts) -> str:
    """The reason why a rank has no trace of the timing window."""
    if any(note.startswith(USER_PROFILER) for note in facts.notes):
        return (
            f"there is no trace of the timing window{describe_step_times(facts)}: run the program without its "
            "profiler, or give what that one writes to `perfdoctor analyze`."
        )
    if facts.notes:
        return "there is no trace of the timing window."
    if steps > options.first_timing_step:
        return "there is no trace of the timing window: the process was killed before it was saved."
    if options.adapts:
        return (
            f"the program ended after {steps} step{'s' * (steps != 1)}, before a whole step was recorded: let it run "
            "for six steps and more."
        )
    return (
        f"the program ended after {steps} steps, before the timing window begins at step "
        f"{options.first_timing_step}: let it run for {options.steps} steps{suggest_windows(steps)}."
    )


def describe_step_times(facts: CapturedFacts) -> str:
    """The steps of a run without a trace, for the middle of a sentence; empty when the facts do not have them."""
    run = facts.run
    if not run.steps or run.seen_ns is None:
        return ""
    return f" (its {run.steps} steps took {run.seen_ns / run.steps / 1e6:.3g} ms each, its profiler included)"


def suggest_windows(steps: int) -> str:
    """The options whose windows a program of so few steps completes; empty when there are none."""
    fitting = fit_windows(steps)
    if fitting is None:
        return ""
    names = ("skip", "base", "warmup", "timing", "evidence")
    return "; windows that fit: " + " ".join(f"--{name} {getattr(fitting, name)}" for name in names)
