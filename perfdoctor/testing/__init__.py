"""Test doubles that perfdoctor ships: make a trace in a few lines instead of recording one.

TraceBuilder writes single events. SimulatedProcess plays a program, whose events follow from costs. SyntheticFleet
plays a data-parallel job with planted faults.
"""

from __future__ import annotations

from perfdoctor.testing.simulated_process import SimulatedProcess
from perfdoctor.testing.synthetic_fleet import SyntheticFleet
from perfdoctor.testing.trace_builder import TraceBuilder, collective

__all__ = ["SimulatedProcess", "SyntheticFleet", "TraceBuilder", "collective"]
