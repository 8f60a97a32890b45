"""Loaded in the plain program: lets it draw other random numbers from its second step on."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdoctor.trials.change import Program


class OtherRandomNumbers:
    """Sets the seeds of Python, NumPy and torch anew after the first step: model and order of the data stay."""

    name = "other-random-numbers"

    def apply(self, setting: str, program: Program) -> None:
        """Wait for the end of the first step; the setting is the seed."""
        is_set = False

        def on_step(steps: int) -> None:  # noqa: ARG001
            nonlocal is_set
            if is_set:
                return
            is_set, seed = True, int(setting)
            random.seed(seed)
            sys.modules["torch"].manual_seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed)
            program.met(self.name)

        program.on_step(on_step)
