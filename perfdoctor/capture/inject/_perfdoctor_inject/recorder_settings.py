"""The recorder's settings: from the environment under `perfdoctor run`, from the session in a program of its own."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

# skip, base, warmup, timing and evidence as `CaptureOptions` has them.
STANDARD_SIZES = (5, 10, 2, 8, 3)
SETTINGS_VARIABLE = "PERFDOCTOR_CAPTURE_SETTINGS"


@dataclass(frozen=True)
class RecorderSettings:
    """The recorder's part of `CaptureOptions`: window sizes in steps, and the capture folder."""

    folder: str
    skip: int
    base: int
    warmup: int
    timing: int
    evidence: int
    stop_after: bool = False
    ranks: tuple[int, ...] | None = None
    nvtx_only: bool = False

    @property
    def adapts(self) -> bool:
        """Whether the windows adapt to the program: their sizes are the standard ones, chosen by nobody."""
        return (self.skip, self.base, self.warmup, self.timing, self.evidence) == STANDARD_SIZES


def parse_settings(text: str) -> RecorderSettings:
    """The settings in the text that `CaptureOptions.to_json` returned."""
    values = json.loads(text)
    ranks = values.pop("ranks", None)
    return RecorderSettings(**values, ranks=None if ranks is None else tuple(ranks))


def settings_from_environment() -> RecorderSettings | None:
    """The settings of the `perfdoctor run` above this process, or None when there is none."""
    text = os.environ.get(SETTINGS_VARIABLE)
    return parse_settings(text) if text else None
