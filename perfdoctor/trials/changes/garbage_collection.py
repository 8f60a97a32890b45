"""gc: garbage is collected at the borders of steps only, and what lives long is not scanned."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program


class GarbageCollection:
    """`gc.freeze` once the program trains; then no collection within a step, and a short one between two."""

    name = "gc"
    summary = "garbage collection at the borders of steps only; long-lived objects are frozen"
    rules = ("PD003", "PD110")
    effect_on_results = "none; cycles that outlive a step are not freed"
    code = "gc.collect(); gc.freeze(); gc.disable()   # before the loop; in it gc.collect(1) once a step"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting: what the garbage collector takes below a millisecond is in no fact."""
        return ("step-borders",)

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Freeze at the first border of steps; the program's own calls within a step do nothing from then on."""
        collect = gc.collect
        is_frozen = False

        def wrap(original: Any) -> Any:
            def collect_at_borders(*args: Any, **kwargs: Any) -> int:
                if not is_frozen:
                    return int(original(*args, **kwargs))
                program.met(self, program.location_of_caller(), "gc.collect() in a step left out")
                return 0

            return collect_at_borders

        def on_step(steps: int) -> None:  # noqa: ARG001
            nonlocal is_frozen
            if is_frozen:
                collect(1)
                return
            is_frozen = True
            collect()
            gc.freeze()
            if gc.isenabled():
                gc.disable()
                program.met(self, None, f"{gc.get_freeze_count()} objects frozen")

        program.patch(gc, "collect", wrap)
        program.on_step(on_step)
