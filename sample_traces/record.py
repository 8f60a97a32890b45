"""Records sample_traces/cpu-training.json.gz: a real training program on a CPU, run under `perfdoctor run`.

    python sample_traces/record.py

Every event stays as the profiler wrote it. Host name, trace id and path, which identify a machine or a run, are removed
from the head of the file, and so is white space. Another run gives other times: after recording again, update the
expected report, and machine and versions in README.md.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = ("examples/train_image_classifier.py", "--steps", "40", "--batch-size", "4")
WINDOWS = ("--timing", "4", "--evidence", "0")
_IDENTIFYING = ("host_name", "trace_id", "traceName")


def main() -> None:
    """Record into a temporary folder and copy the trace of the timing window."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "capture"
        command = [sys.executable, "-m", "perfdoctor", "run", "--out", str(out), "--no-report", *WINDOWS, *PROGRAM]
        subprocess.run(command, cwd=HERE.parent, check=True)
        trace = json.loads(gzip.decompress((out / "rank0" / "timing.json.gz").read_bytes()))
    text = json.dumps({key: value for key, value in trace.items() if key not in _IDENTIFYING}, separators=(",", ":"))
    (HERE / "cpu-training.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
