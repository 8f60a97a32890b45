"""Test doubles that perfdoctor ships: build a trace in a few lines instead of recording one."""

from __future__ import annotations

from perfdoctor.testing.synthetic_fleet import SyntheticFleet
from perfdoctor.testing.trace_builder import TraceBuilder, collective

__all__ = ["SyntheticFleet", "TraceBuilder", "collective"]
