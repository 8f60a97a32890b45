"""`perfdoctor mcp`: the same answers for programs that speak the Model Context Protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.config import load_config
from perfdoctor.errors import UsageError


@parameters.command("perfdoctor mcp", "perfdoctor mcp --root ~/traces --root ~/project")
def mcp(
    *,
    roots: Annotated[
        list[str],
        parameters.repeated("--root", metavar="FOLDER", help="Read no recording outside it; can be repeated."),
    ],
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Stop a call that takes longer; others go on.")
    ] = 300,
) -> None:
    """Serve analyze, show, explain and compare as tools of the Model Context Protocol, on standard input and output.

    A client starts it: see docs/mcp.md. It reads local files only and writes none. Rules and thresholds of the nearest
    pyproject.toml count as they do for the other commands, and reports name them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config = load_config((), (), (), Path.cwd())
    try:
        from perfdoctor.integrations.mcp_server import serve
    except ImportError as error:
        raise UsageError(
            f"the SDK of the protocol cannot be imported ({error}): pip install 'perfdoctor[mcp]'"
        ) from error
    from perfdoctor.analysis_options import AnalysisOptions

    serve(roots, AnalysisOptions(*config[:3], settings_file=config.file), time_limit)
