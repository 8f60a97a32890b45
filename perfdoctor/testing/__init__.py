"""Tools to test rules: makers of traces in a few lines, and the checks that the built-in rules pass."""

from __future__ import annotations

from perfdoctor.testing.check_rule import check_case, check_contract, check_laws, check_rule, findings_of_rule
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase
from perfdoctor.testing.simulated_process import SimulatedProcess
from perfdoctor.testing.synthetic_fleet import SyntheticFleet
from perfdoctor.testing.trace_builder import TraceBuilder, collective

__all__ = [
    "ExpectedFinding",
    "RuleCase",
    "SimulatedProcess",
    "SyntheticFleet",
    "TraceBuilder",
    "check_case",
    "check_contract",
    "check_laws",
    "check_rule",
    "collective",
    "findings_of_rule",
]
