"""Clocks, power, throttling and memory of the GPU while a program runs.

The sampler works in the user's process and lives with the rest of what does; this is the way to it from here.
"""

from __future__ import annotations

from perfdoctor.capture.inject._perfdoctor_inject.nvml import Gpu, Sampler, devices_in_use, summarize

__all__ = ["Gpu", "Sampler", "devices_in_use", "summarize"]
