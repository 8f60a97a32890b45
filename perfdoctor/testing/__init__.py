"""Test doubles that perfdoctor ships: build a trace in a few lines instead of recording one."""

from __future__ import annotations

from perfdoctor.testing.builder import TraceBuilder, collective
from perfdoctor.testing.fleet import SyntheticFleet

__all__ = ["SyntheticFleet", "TraceBuilder", "collective"]
