"""perfdoctor: why is my training step slow, which line do I change, and how much will it give me?

Names load when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor import gpu
    from perfdoctor.analysis.host.locations import SourceLocation
    from perfdoctor.api import Guide, Report, Table, analyze, guide
    from perfdoctor.capture.session import diagnose, profile
    from perfdoctor.compare_traces import Comparison, compare
    from perfdoctor.errors import CaptureError, GateError, InputError, PerfdoctorError, TraceError, UsageError
    from perfdoctor.expect_traces import Expectation, expect
    from perfdoctor.report.finding import Evidence, Finding
    from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer
    from perfdoctor.savings.saving import Claim, Saving
    from perfdoctor.trace import Trace, read

__all__ = [
    "Analyzer",
    "CaptureError",
    "Claim",
    "Comparison",
    "Evidence",
    "Expectation",
    "Finding",
    "FleetAnalyzer",
    "GateError",
    "Guide",
    "InputError",
    "PerfdoctorError",
    "RankAnalyzer",
    "Report",
    "Saving",
    "SourceLocation",
    "Table",
    "Trace",
    "TraceError",
    "UsageError",
    "analyze",
    "compare",
    "diagnose",
    "expect",
    "gpu",
    "guide",
    "profile",
    "read",
]

_HOMES = {
    "perfdoctor.api": ("Guide", "Report", "Table", "analyze", "guide"),
    "perfdoctor.compare_traces": ("Comparison", "compare"),
    "perfdoctor.expect_traces": ("Expectation", "expect"),
    "perfdoctor.capture.session": ("diagnose", "profile"),
    "perfdoctor.rules.analyzer": ("Analyzer", "FleetAnalyzer", "RankAnalyzer"),
    "perfdoctor.analysis.host.locations": ("SourceLocation",),
    "perfdoctor.report.finding": ("Evidence", "Finding"),
    "perfdoctor.savings.saving": ("Claim", "Saving"),
    "perfdoctor.errors": ("CaptureError", "GateError", "InputError", "PerfdoctorError", "TraceError", "UsageError"),
    "perfdoctor.trace": ("Trace", "read"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("perfdoctor.installed_packages").find_version()
    if name == "gpu":
        return import_module("perfdoctor.gpu")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'perfdoctor' has no attribute '{name}'")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
