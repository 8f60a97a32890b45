"""`perfdoctor demo`: the report on a trace that ships with the package, for the first minute."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from perfdoctor.cli import parameters
from perfdoctor.cli.report_output import ReportOutput, check_outputs, has_page, print_analysis, save_outputs
from perfdoctor.errors import UsageError
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.write_report import ANNOTATED_TRACE, suffix_of

if TYPE_CHECKING:
    from perfdoctor.report.report import Report

_TRACE = "demo.json.gz"
# What the generator made; a reader has to know that nobody's GPU was measured.
_WHAT_IT_IS = (
    "An example, simulated: six training steps of a float32 transformer on an A100, whose loop tokenizes and logs.\n"
)
_NEXT = """
Next, your own:
  perfdoctor run train.py          # instead of: python train.py
  perfdoctor analyze trace.json    # a trace that exists already
"""


@parameters.command(
    "perfdoctor demo",
    "perfdoctor demo -v",
    "perfdoctor demo -o demo.html --open",
    "perfdoctor demo --json | jq .findings[0]",
)
def demo(
    *,
    as_json: parameters.AsJson = False,
    output: parameters.Output,
    opens: parameters.OpenPage = False,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> None:
    """Show the report on an example that ships with perfdoctor, before you have a trace of your own.

    The trace is simulated: a small training program on an A100 with three faults that many real ones have.
    It needs neither a GPU nor torch nor a network. `perfdoctor analyze` prints such a report for a trace of yours.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    if opens and not has_page(output):
        raise UsageError("--open opens a page, and none is written: give -o demo.html")
    # Nothing here multiplies matrices; numpy's BLAS would start one thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    report_output = ReportOutput("json" if as_json else "text", tuple(output), None, no_color, verbosity, None, opens)
    with as_file(files("perfdoctor.demo") / _TRACE) as path:
        _emit_report(str(path), report_output)


def _emit_report(path: str, output: ReportOutput) -> None:
    """Analyse the example and show its report: first what it is, last what to type next."""
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import analyze_traces
    from perfdoctor.fleet.discover import find_traces

    report = analyze_traces(find_traces((path,)), AnalysisOptions(charts=has_page(output.files)))
    shown = _without_folder(report)
    if output.format == "text":
        write_stdout(_WHAT_IT_IS)
    else:
        sys.stderr.write(_WHAT_IT_IS)
    print_analysis(shown, output)
    for file in output.files:
        # The annotated trace is made of the trace, which is found by its path.
        save_outputs(report if suffix_of(file) == ANNOTATED_TRACE else shown, replace(output, files=(file,)))
    if output.format == "text":
        write_stdout(_NEXT)


def _without_folder(report: Report) -> Report:
    """The report whose trace has its bare name: the folder of the package is nothing to look into."""
    return replace(report, traces=tuple(replace(trace, path=_TRACE) for trace in report.traces))
