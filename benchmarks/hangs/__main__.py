"""Run each staged hang under `perfdoctor run`, and compare what it says with the truth; healthy runs must stay quiet.

python -m benchmarks.hangs [--only WAY...] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROGRAM = HERE / "program.py"
HANG_AFTER_S, START_S, END_S = 5, 150, 60


class Truth(NamedTuple):
    """What stops the program, written before it was ever run."""

    kind: str
    collective: str | None
    line: str  # the mark of the line
    ranks: tuple[int, ...] = (1,)


HANGS = {
    "branch": Truth("missing", "all_reduce", "branch"),
    "order": Truth("mismatch", "all_reduce", "order"),
    "size": Truth("mismatch", "all_reduce", "size"),
    "dtype": Truth("mismatch", "all_reduce", "dtype"),
    "killed": Truth("dead", "all_reduce", "waits"),  # nothing can say at which line a killed process was
    "exception": Truth("dead", "all_reduce", "exception"),
    "early-end": Truth("dead", "all_reduce", "waits"),
    "sleep": Truth("slow", "all_reduce", "sleep"),
    "busy": Truth("slow", "all_reduce", "busy"),
    "lock": Truth("blocked", "all_reduce", "lock"),
    "loader-worker": Truth("blocked", "all_reduce", "loader-worker"),
    "fifo": Truth("blocked", "all_reduce", "fifo"),
    "gil": Truth("blocked", "all_reduce", "gil"),
    "stopped": Truth("blocked", "all_reduce", "waits"),  # nor of one that runs no handler
}
HEALTHY = (
    "plain", "workers", "slow-steps", "evaluation", "evaluation-without-core", "checkpoint", "long-end",
)  # fmt: skip


class Result(NamedTuple):
    """What perfdoctor said: the line on stderr, and the hang of the report."""

    message: str
    hang: dict[str, object] | None
    seconds: float


def line_of(mark: str) -> int:
    """The line of the program with the mark."""
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def run(way: str, folder: Path) -> Result:
    """Run the program in the way, end it once perfdoctor has spoken, and analyze the capture."""
    capture, errors = folder / "capture", folder / "stderr"
    perfdoctor = [sys.executable, "-m", "perfdoctor"]
    command = [*perfdoctor, "run", "--out", str(capture), "--no-report", "--hang-after", str(HANG_AFTER_S), "--"]
    command += [sys.executable, str(HERE / "launch.py"), "3", str(PROGRAM), way, str(folder)]
    began = time.monotonic()
    with errors.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        while process.poll() is None and "no step any more" not in errors.read_text(errors="replace"):
            if time.monotonic() - began > START_S:
                break
            time.sleep(0.5)
        for pid in find_ranks(capture):
            os.kill(pid, signal.SIGKILL)
        process.wait(END_S)
    text = errors.read_text(errors="replace")
    message = next((line for line in text.splitlines() if "no step any more" in line), "")
    shown = subprocess.run(
        [*perfdoctor, "analyze", str(capture), "--json"], capture_output=True, text=True, check=False
    )
    hang = json.loads(shown.stdout)["hang"] if shown.returncode == 0 else {"error": shown.stderr}
    return Result(message, hang, time.monotonic() - began)


def find_ranks(capture: Path) -> list[int]:
    """The processes that run with this capture in their environment, but for perfdoctor itself."""
    mark, found = str(capture).encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def judge(way: str, hang: dict[str, object] | None) -> dict[str, bool]:
    """By rank, collective, line and kind whether the hang is the true one."""
    truth = HANGS[way]
    if not hang or "error" in hang:
        return dict.fromkeys(("rank", "collective", "line", "kind"), False)
    collective = hang["collective"] or {}
    location = hang["location"] or {}
    assert isinstance(collective, dict)
    assert isinstance(location, dict)
    # Calls over several lines begin at the first, and some Pythons name that one.
    lines = {line_of(truth.line), line_of(truth.line) - 1}
    return {
        "rank": hang["ranks"] == list(truth.ranks),
        "collective": collective.get("name") == truth.collective,
        "line": location.get("line") in lines,
        "kind": hang["kind"] == truth.kind,
    }


def main() -> int:
    """Print a row for each way; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[*HANGS, *HEALTHY])
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    wrong = 0
    for way in options.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / way
            folder.mkdir(parents=True)
            result = run(way, folder)
        said = re.sub(r";? ?stacks and coll.*", "", result.message)
        if way in HANGS:
            right = judge(way, result.hang)
            row = " ".join(f"{name}:{'yes' if is_right else 'NO'}" for name, is_right in right.items())
            wrong += not all(right.values())
        else:
            is_quiet = not result.message and result.hang is None
            row = "quiet" if is_quiet else "NOT QUIET"
            wrong += not is_quiet
        print(f"{way:24} {row}  ({result.seconds:.0f} s)  {said}  {result.hang if 'NO' in row else ''}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
