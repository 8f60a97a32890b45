"""What the user is told after a run: one sentence each, with what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfdoctor.capture.inject._perfdoctor_inject.output import OWN_PROFILER
from perfdoctor.capture.options import CaptureOptions, fit_windows
from perfdoctor.capture.target import isolating_flag

API = "mark the steps yourself: with perfdoctor.profile() as session, and with session.step() around each step"

SEVERAL = (
    "several processes of the program trained as the same rank, and the first of them was recorded: "
    "run perfdoctor on the one that you mean."
)


def explain(
    command: Sequence[str], options: CaptureOptions, folder: Path, ranks: tuple[int, ...], kinds: frozenset[str]
) -> tuple[str, ...]:
    """Everything worth saying about a capture; empty when all went as planned.

    Args:
        command: The command that was run.
        options: What was asked for.
        folder: The capture folder.
        ranks: The ranks recorded.
        kinds: What `take_marks` returned.
    """
    if not ranks:
        return (why_nothing(command, options, kinds),)
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        for text in rank_notes(read_facts(folder, rank), options):
            by_text.setdefault(text, []).append(rank)
    if "again" in kinds:
        by_text[SEVERAL] = list(ranks)
    missing = sorted(set(options.ranks or ()) - set(ranks))
    if missing:
        by_text.setdefault(f"rank {', '.join(map(str, missing))} was asked for and never made a step.", list(ranks))
    return tuple(
        text if len(who) == len(ranks) else f"rank {', '.join(map(str, who))}: {text}" for text, who in by_text.items()
    )


def why_nothing(command: Sequence[str], options: CaptureOptions, kinds: frozenset[str]) -> str:
    """The likeliest reason why no rank has a folder."""
    if "python" not in kinds:
        flag = isolating_flag(command)
        if flag:
            return f"nothing was recorded: python {flag} keeps perfdoctor out; run it without {flag}, or {API}."
        return (
            "nothing was recorded: no Python of the program loaded perfdoctor (python -I, -E or -S, a cleared "
            f"environment, or a container); run the training script directly, or {API}."
        )
    if "torch" not in kinds:
        return "nothing was recorded: the program never imported torch."
    if options.ranks is not None:
        return f"nothing was recorded: no rank of --ranks {','.join(map(str, options.ranks))} made a training step."
    return f"nothing was recorded: no training step was seen; {API}."


def read_facts(folder: Path, rank: int) -> dict[str, Any] | None:
    """facts.json of a rank, or None when it cannot be read."""
    try:
        facts = json.loads((folder / f"rank{rank}" / "facts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def rank_notes(facts: dict[str, Any] | None, options: CaptureOptions) -> Iterator[str]:
    """What is missing from one rank's recording."""
    if facts is None:
        yield "the recording was cut off before anything but step times was written."
        return
    windows, steps = facts.get("windows", {}), int(facts.get("steps_seen", 0))
    for note in facts.get("notes", ()):
        yield f"{note}."
    if not windows.get("timing", {}).get("file"):
        yield no_timing(steps, options, facts)
    elif not windows["timing"]["complete"]:
        got, why = windows["timing"]["steps"], ""
        if not facts.get("notes"):
            why = f", because the program ended after {steps} steps{suggestion(steps)}"
        yield f"the timing window has {got} of {options.timing} steps{why}."
    elif options.evidence and not windows.get("evidence", {}).get("complete") and not facts.get("notes"):
        yield (
            f"the evidence window (shapes, source lines) is incomplete: the program ended after {steps} steps "
            f"and {options.steps} are needed{suggestion(steps)}."
        )


def no_timing(steps: int, options: CaptureOptions, facts: dict[str, Any]) -> str:
    """The sentence for a program that was over before its timing window."""
    if any(note.startswith(OWN_PROFILER) for note in facts.get("notes", ())):
        return (
            "there is no trace of the timing window: run the program without its profiler, or give what that one "
            "writes to `perfdoctor analyze`."
        )
    if facts.get("notes"):
        return "there is no trace of the timing window."
    if steps > options.first_timing_step:
        return "there is no trace of the timing window: the process was killed before it was saved."
    return (
        f"the program ended after {steps} steps, before the timing window begins at step "
        f"{options.first_timing_step}: let it run for {options.steps} steps{suggestion(steps)}."
    )


def suggestion(steps: int) -> str:
    """Options that fit a program of so few steps, or nothing when none do."""
    fitting = fit_windows(steps)
    if fitting is None:
        return ""
    names = ("skip", "base", "warmup", "timing", "evidence")
    return "; windows that fit: " + " ".join(f"--{name} {getattr(fitting, name)}" for name in names)
