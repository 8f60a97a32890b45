"""The recorder's settings: from the environment under `perfdoctor run`, from the session in a program of its own."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

# skip, base, warmup, timing and evidence as `CaptureOptions` has them.
STANDARD_SIZES = (5, 10, 2, 8, 3)
# In the capture folder: what `perfdoctor record` has asked for, a capture of its own.
WINDOW_FOLDER = re.compile(r"window-[0-9]{1,6}")
# In the capture folder of a job: an empty file for each step before which the recorder of any rank has worked.
WORK_FOLDER = ".recorder-work"
SETTINGS_VARIABLE = "PERFDOCTOR_CAPTURE_SETTINGS"


@dataclass(frozen=True)
class TrialChange:
    """A change to apply to the program: the file that holds it, its class there, and the setting to try."""

    name: str
    file: str
    class_name: str
    setting: str


@dataclass(frozen=True)
class TrialOptions:
    """What makes a run a trial: steps are timed without a profiler, with changes applied to the program.

    Attributes:
        seed: Seed of Python's, NumPy's and torch's random numbers, set before the program's own code; None for none.
        changes: Applied in this order, right after torch is imported; none for the plain program.
    """

    seed: int | None = 0
    changes: tuple[TrialChange, ...] = ()


@dataclass(frozen=True)
class RecorderSettings:
    """The recorder's part of `CaptureOptions`: window sizes in steps and bytes, and the capture folder."""

    folder: str
    skip: int
    base: int
    warmup: int
    timing: int
    evidence: int
    max_evidence_bytes: int = 500_000_000
    stop_after: bool = False
    ranks: tuple[int, ...] | None = None
    nvtx_only: bool = False
    memory: bool = False
    watch: bool = False
    watches_hangs: bool = False
    trial: TrialOptions | None = None

    @property
    def adapts(self) -> bool:
        """Whether the windows adapt to the program: their sizes are the standard ones, chosen by nobody."""
        return (self.skip, self.base, self.warmup, self.timing, self.evidence) == STANDARD_SIZES


def parse_settings(text: str) -> RecorderSettings:
    """The settings in the text that `CaptureOptions.to_json` returned."""
    values = json.loads(text)
    ranks, trial = values.pop("ranks", None), values.pop("trial", None)
    return RecorderSettings(
        **values, ranks=None if ranks is None else tuple(ranks), trial=None if trial is None else parse_trial(trial)
    )


def parse_trial(values: dict[str, Any]) -> TrialOptions:
    """The options of a trial, of what `asdict` made of them."""
    return TrialOptions(values["seed"], tuple(TrialChange(**each) for each in values["changes"]))


def settings_from_environment() -> RecorderSettings | None:
    """The settings of the `perfdoctor run` above this process, or None when there is none."""
    text = os.environ.get(SETTINGS_VARIABLE)
    return parse_settings(text) if text else None
