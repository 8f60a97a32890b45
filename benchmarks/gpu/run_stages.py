"""Runs the stages of run.sh one after another, each with a limit of its own, and says everything in OUT.

Standard library only, for any Python from 3.10 on: it starts on a bare machine, and the first stage installs the rest.
A stage that fails, hangs or lacks something never stops the next one. After each stage summary.json, README.md and
results.tar.gz are written anew, so that they are there whatever ends this program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stages import Stage, list_stages, read_stages
from write_results import write_results

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 525.0
# {seconds} is this much less than the limit; after SIGTERM a stage has that long to save what it has.
MARGIN_S, GRACE_S = 6.0, 4.0
# What one program of the clinic takes, its recordings and trials included.
PROGRAM_S = 45.0
# Ending the stages before may take a little of what was left to a stage.
ENOUGH = 0.7


def run_stages(
    stages: Sequence[Stage], out: Path, work: Path, deadline: float, facts: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run the stages in their order.

    Args:
        stages: What to run.
        out: The folder of the results.
        work: The folder of all files of the stages, one folder each.
        deadline: The time of `time.monotonic()` at which everything ends.
        facts: How this run was started; python, and what it has, are added by the stage `environment`.

    Returns:
        A row for each stage: name, status ("done", "failed", "timed out", "left out"), why, seconds, figures.
    """
    rows: list[dict[str, Any]] = []
    for number, stage in enumerate(stages):
        left_s = deadline - time.monotonic()
        later_s = sum(each.min_s for each in stages[number + 1 :] if each.min_s <= left_s)
        # Later stages keep the least that they need, unless this one would then not start at all.
        limit_s = min(stage.limit_s, max(left_s - later_s, min(stage.min_s, left_s)))
        why = why_left_out(stage, facts, limit_s)
        print(f"{stage.name}: {why or f'begins, at most {limit_s:.0f} s'}", flush=True)
        row = {"name": stage.name, "title": stage.title, "status": "left out", "why": why, "seconds": 0.0}
        rows.append(row if why else run_stage(stage, work, limit_s, facts))
        if stage.name == "environment":
            facts.update(read_json(work / stage.name / "figures.json").get("facts", {}))
        write_results(out, work, facts, rows)
    return rows


def why_left_out(stage: Stage, facts: Mapping[str, Any], limit_s: float) -> str:
    """Why a stage is not run: "" if it is."""
    missing = [name for name in stage.needs if not facts.get("has", {}).get(name, False)]
    if missing:
        return f"needs {', '.join(missing)}, and this machine has none that works"
    if limit_s < ENOUGH * stage.min_s:
        return f"out of time: {max(limit_s, 0.0):.0f} s are left, and it needs {stage.min_s:.0f}"
    return ""


def run_stage(stage: Stage, work: Path, limit_s: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Run one stage in a process group of its own, and end that at its limit; returns its row."""
    folder = work / stage.name
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "python": facts["python"],
        "base_python": sys.executable,
        "root": str(ROOT),
        "folder": str(folder),
        "work": str(work),
        "seconds": f"{max(limit_s - MARGIN_S, 1.0):.0f}",
        "begin_seconds": f"{max(limit_s - PROGRAM_S, 1.0):.0f}",
    }
    command = [fill_in(part, values) for part in stage.command]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "99", **facts.get("environment", {})}
    row: dict[str, Any] = {"name": stage.name, "title": stage.title, "why": "", "limit_s": round(limit_s, 1)}
    began = time.monotonic()
    try:
        with (folder / "log.txt").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_group(process)
    except OSError as error:
        code, row["why"] = 127, f"{command[0]} cannot be started: {error.strerror}"
    row["seconds"] = round(time.monotonic() - began, 1)
    row["exit_code"] = code
    row["status"] = "timed out" if code is None else "done" if code in stage.good_codes else "failed"
    row["log_tail"] = read_tail(folder / "log.txt")
    if row["status"] != "done" and not row["why"]:
        row["why"] = f"ended after {limit_s:.0f} s" if code is None else (row["log_tail"] or ["no output"])[-1]
    figures = read_json(folder / "figures.json")
    if figures:
        row["figures"] = figures
    print(f"    {row['status']} after {row['seconds']} s {row['why']}".rstrip(), flush=True)
    return row


def fill_in(part: str, values: Mapping[str, str]) -> str:
    """A part of a command with the values in place of their names in braces; other braces stay."""
    for name, value in values.items():
        part = part.replace("{" + name + "}", value)
    return part


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started: asked first, so that it can save what it has, then killed."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also what outlived a process that ended in time
    process.wait()


def read_tail(path: Path, lines: int = 12, width: int = 300) -> list[str]:
    """The last lines of a log, [] where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line[:width] for line in text.splitlines() if line.strip()][-lines:]


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object, {} where there is none that can be read."""
    try:
        if path.stat().st_size > 200_000:
            return {"note": f"{path.name} is too large for the summary; it is in results.tar.gz"}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {"figures": found}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line of run.sh."""
    parser = argparse.ArgumentParser(prog="run.sh", description="Everything that needs a GPU, in one go.")
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("wheels", type=Path, nargs="?", help="folder of wheels, for a machine without a network")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dry", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="STAGE,STAGE", help="these stages, and the environment")
    parser.add_argument("--no-install", action="store_true", help="use this Python as it is")
    parser.add_argument("--stages", type=Path, metavar="FILE", help="other stages, as JSON: for tests")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run everything; returns 2 for a wrong command line, 1 if no stage could be run, else 0."""
    began = time.monotonic()
    options = parse_arguments(arguments)
    if options.wheels is not None and not options.wheels.is_dir():
        print(f"{options.wheels} is no folder: fill one with collect_wheels.sh, or leave it out", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    stages = (
        read_stages(options.stages)
        if options.stages
        else list_stages(options.device, dry=options.dry, wheels=options.wheels, install=not options.no_install)
    )
    unknown = set(filter(None, options.only.split(","))) - {stage.name for stage in stages}
    if unknown:
        names = ", ".join(stage.name for stage in stages)
        print(f"there is no stage {', '.join(sorted(unknown))}; there are {names}", file=sys.stderr)
        return 2
    stages = [s for s in stages if not options.only or s.name in {"environment", *options.only.split(",")}]
    facts: dict[str, Any] = {
        "python": sys.executable,
        "device": options.device,
        "dry": options.dry,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "deadline_s": options.deadline,
    }
    work = Path(tempfile.mkdtemp(prefix="perfdoctor-gpu-"))
    try:
        rows = run_stages(stages, options.out, work, began + options.deadline, facts)
        facts["seconds"] = round(time.monotonic() - began, 1)
        write_results(options.out, work, facts, rows)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{options.out}/README.md has the results; {facts['seconds']} s", flush=True)
    return 0 if any(row["status"] == "done" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
