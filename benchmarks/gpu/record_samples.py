"""Records programs that show one fault each, for sample_traces: python benchmarks/gpu/record_samples.py OUT.

Each is run under `perfdoctor run`; the trace of its timing window, trimmed, is OUT/sample_traces/NAME.json.gz, and
candidates.json says what perfdoctor found in it beside what the sample must show. Bring both back and run
take_samples.py there. The straggler and the exposed communication need several GPUs and stay generated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sample_program import FAULTS
from take_samples import describe_candidate
from trim_trace import trim_trace

HERE = Path(__file__).resolve().parent
WINDOWS = ("--skip", "8", "--base", "5", "--warmup", "2", "--timing", "2", "--evidence", "0")


def record_sample(fault: str, device: str, target: Path, seconds: float, *, small: bool) -> str:
    """Record one program; returns why that failed, "" if it did not."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        program = [str(HERE / "sample_program.py"), fault, "--device", device, *(["--small"] if small else [])]
        command = [sys.executable, "-m", "perfdoctor", "run", "--no-report", "--stop-after", *WINDOWS]
        try:
            done = subprocess.run(
                [*command, "--out", str(capture), *program],
                capture_output=True,
                text=True,
                timeout=max(seconds, 1),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s"
        traces = sorted(capture.glob("rank0/timing.json.gz"))
        if done.returncode or not traces:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]
        trim_trace(traces[0], target)
    return ""


def describe_if_possible(path: Path) -> dict[str, Any]:
    """What the recording is; where its analysis fails, that: the recording is worth keeping for it."""
    try:
        return describe_candidate(path)
    except Exception as error:
        why = f"its analysis fails: {type(error).__name__}: {error}"[:300]
        return {"name": path.name.removesuffix(".json.gz"), "usable": False, "why": why}


def main(arguments: list[str]) -> int:
    """Record all samples that time allows; returns 1 if there is none."""
    parser = argparse.ArgumentParser(description="Record candidates for sample_traces.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="", help="only programs whose name contains this")
    options = parser.parse_args(arguments)
    samples = options.folder / "sample_traces"
    samples.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for fault in (each for each in FAULTS if options.only in each):
        left_s = deadline - time.monotonic()
        target = samples / f"{fault}.json.gz"
        why = "out of time" if left_s < 5 else record_sample(fault, options.device, target, left_s, small=options.small)
        rows.append({"name": fault, "usable": False, "why": why} if why else describe_if_possible(target))
        print(fault, why or rows[-1]["why"] or "usable", flush=True)
        (options.folder / "candidates.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lines = ["| sample | device | first finding | all findings | bytes | usable |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["name"], row.get("device"), row.get("first"), ", ".join(row.get("findings", [])), row.get("bytes")]
        lines.append(f"| {' | '.join(str(cell or '') for cell in cells)} | {row['why'] or 'yes'} |")
    (options.folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if any((samples / f"{row['name']}.json.gz").exists() for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
