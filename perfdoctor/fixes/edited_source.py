"""Loaded in the edited program: says whether the program has loaded the files that were edited."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdoctor.trials.change import Program


class EditedSource:
    """Met once the program runs an edited file; its setting is the name of the edit and the files, as JSON.

    Without any file, as where a configuration is edited, it is met at the first step.
    """

    def apply(self, setting: str, program: Program) -> None:
        """Look for the files among the loaded modules at each border of steps, until one is there."""
        name, *wanted = json.loads(setting)
        is_met = False

        def on_step(steps: int) -> None:  # noqa: ARG001
            nonlocal is_met
            if is_met:
                return
            files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            if not wanted or any(file.endswith(".py") and os.path.realpath(file) in wanted for file in files if file):
                is_met = True
                program.met(name)

        program.on_step(on_step)
