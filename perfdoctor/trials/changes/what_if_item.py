"""what-if-item: what reading values of the GPU costs, by not waiting for them; results are wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Types of devices on which reading a value waits for all work before it.
ASYNCHRONOUS = ("cuda", "xpu", "mps")


class WhatIfItem:
    """`Tensor.item()` returns what it returned at the same line before, without waiting."""

    name = "what-if-item"
    summary = "item() returns the last value of its line without waiting for the GPU; results are wrong"
    rules = ("PD102",)
    needs = "cuda"
    alters_numerics = True
    effect_on_results = "wrong: for measuring the step time alone"
    is_what_if = True
    devices = ASYNCHRONOUS
    code = "total += value.detach()   # in place of value.item() in every step"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """On a GPU, where a finding is about waits."""
        is_found = any(each.get("rule") in self.rules for each in findings)
        return ("on",) if facts.devices and is_found else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Replace `item` and the conversions to numbers that call it."""
        import torch

        last: dict[tuple[Any, int], Any] = {}
        is_reading = False

        def wrap(original: Any) -> Any:
            def item(tensor: Any) -> Any:
                nonlocal is_reading
                caller = sys._getframe(1)
                place = caller.f_code, caller.f_lineno
                if is_reading or tensor.device.type not in self.devices:
                    return original(tensor)
                if place not in last:
                    is_reading = True  # a subclass of tensors comes by here twice
                    try:
                        last[place] = original(tensor)
                    finally:
                        is_reading = False
                    program.met(self, caller, "read once")
                return last[place]

            return item

        for name in ("item", "__float__", "__int__"):
            program.patch(torch.Tensor, name, wrap)
