"""Where the program asks for float64 by name: `model.double()`, `model.to(torch.float64)`, the default type.

These run before the training loop, where no trace shows them.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from .user_code import user_location

MAX_SOURCES = 8


class Float64Sources:
    """The lines that ask for float64, each call and line once.

    Attributes:
        found: For each of them the call and the line, as they stand in facts.json.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def note(self, call: str, frame: FrameType | None) -> None:
        """Remember the line of a call."""
        source: dict[str, Any] = {"call": call, "location": user_location(frame)}
        if len(self.found) < MAX_SOURCES and source not in self.found:
            self.found.append(source)


def asks_for_float64(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of `Module.to` or `set_default_dtype` name float64, or a tensor of it."""
    given = (*args, *kwargs.values())
    return any(each is torch.float64 or (type(each) is torch.Tensor and each.dtype is torch.float64) for each in given)
