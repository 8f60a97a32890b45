"""What the parent asked for, read from the environment, or made by the session."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

VARIABLE = "PERFDOCTOR_CAPTURE_SETTINGS"


@dataclass(frozen=True)
class Settings:
    """The child's half of `perfdoctor.capture.options.CaptureOptions`: window sizes in steps, and the folder."""

    folder: str
    skip: int
    base: int
    warmup: int
    timing: int
    evidence: int
    stop_after: bool = False
    ranks: tuple[int, ...] | None = None
    nvtx_only: bool = False


def parse(text: str) -> Settings:
    """The settings written by `CaptureOptions.to_json`."""
    values = json.loads(text)
    ranks = values.pop("ranks", None)
    return Settings(**values, ranks=None if ranks is None else tuple(ranks))


def from_environment() -> Settings | None:
    """The settings of the `perfdoctor run` above this process, or None when there is none."""
    text = os.environ.get(VARIABLE)
    return parse(text) if text else None
