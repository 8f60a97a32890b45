"""Loaded in the edited program: says whether the program has loaded the files that were edited."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdoctor.trials.change import Program


class EditedSource:
    """Met once the program runs an edited file; its setting is the name of the edit and the file, as JSON."""

    def apply(self, setting: str, program: Program) -> None:
        """Look for the file among the loaded modules at each border of steps, until it is there."""
        name, wanted = json.loads(setting)
        is_met = False

        def on_step(steps: int) -> None:  # noqa: ARG001
            nonlocal is_met
            if is_met:
                return
            files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            if any(file and os.path.realpath(file) == wanted for file in files if file and file.endswith(wanted[-4:])):
                is_met = True
                program.met(name)

        program.on_step(on_step)
