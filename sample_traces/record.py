"""Records sample_traces/cpu-training.json.gz: a real training program on a CPU, run under `perfdoctor run`.

    python sample_traces/record.py

The recording is what the profiler wrote, every event as it is; what identifies a machine or a run is taken out of the
head of the file (host name, trace id, path), and white space is dropped. Another run gives other times: after recording
again, update the expected report and what README.md says about machine and versions.
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
_PRIVATE = ("host_name", "trace_id", "traceName")


def main() -> None:
    """Record into a folder that is thrown away, and keep the timing window."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "capture"
        command = [sys.executable, "-m", "perfdoctor", "run", "--out", str(out), "--no-report", *WINDOWS, *PROGRAM]
        subprocess.run(command, cwd=HERE.parent, check=True)
        whole = json.loads(gzip.decompress((out / "rank0" / "timing.json.gz").read_bytes()))
    text = json.dumps({key: value for key, value in whole.items() if key not in _PRIVATE}, separators=(",", ":"))
    (HERE / "cpu-training.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
