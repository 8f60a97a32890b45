"""How long the command line takes to start, and what of it are imports."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.conftest import SAMPLE
from benchmarks.measure import add_summary_line, run_perfdoctor, run_process

_ROUNDS = 10
_LIST_MODULES = """
import sys
from perfdoctor.cli.main import main
main(["analyze", "-q", sys.argv[1]])
sys.stderr.write(" ".join(sys.modules))
"""
# In the order in which the analysis imported them. As there, the garbage collector seldom runs.
_IMPORT_MODULES = """
import contextlib, gc, importlib, sys, time
gc.set_threshold(200_000)
start = time.process_time()
for name in sys.stdin.read().split():
    with contextlib.suppress(ImportError):  # of the interpreter's own
        importlib.import_module(name)
print(time.process_time() - start)
"""


def test_help_against_pip(compare):
    """`perfdoctor --help` against `python -m pip --version`: under 2."""
    compare(
        "perfdoctor --help / pip --version",
        lambda: run_perfdoctor("--help"),
        lambda: run_process(sys.executable, "-m", "pip", "--version"),
    )


def test_imports_of_a_small_analysis(request):
    """CPU time of importing all that `perfdoctor analyze` imports for a small trace, without the interpreter's start.

    The target is 0.15 s.
    """
    # As `perfdoctor analyze` sets it: else numpy's BLAS starts a thread for each core.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["OPENBLAS_NUM_THREADS"] = "1"

    def run_code(code: str, *arguments: str, modules: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, input=modules, capture_output=True, text=True, check=True, env=environment)

    modules = run_code(_LIST_MODULES, str(SAMPLE)).stderr
    seconds = [float(run_code(_IMPORT_MODULES, modules=modules).stdout) for _ in range(_ROUNDS)]
    assert "perfdoctor.pipeline" in modules.split()
    line = f"imports of perfdoctor analyze: {min(seconds):.3f} s of CPU at least, of {_ROUNDS}"
    add_summary_line(request, f"{line} ({len(modules.split())} modules)")
