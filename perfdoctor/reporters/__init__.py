"""Report -> text: for a terminal, as JSON, as Markdown, and as tracks in a Chrome trace.

Only output.py and chrome.py touch files.
"""

from perfdoctor.reporters.output import print_report, save
from perfdoctor.reporters.reporter import Reporter

__all__ = ["Reporter", "print_report", "save"]
