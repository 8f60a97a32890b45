"""Test doubles that perfdoctor ships: build a trace in a few lines instead of recording one."""

from __future__ import annotations

from perfdoctor.testing.builder import TraceBuilder, collective

__all__ = ["TraceBuilder", "collective"]
