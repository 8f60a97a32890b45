"""The peak of memory of a program and its child processes.

`python -m benchmarks.clinic.peak_meter SCRIPT [ARGUMENT...]` prints "peak_bytes N": the larger of two figures of the
kernel, the most that one process had in RAM (exact), and the most that the whole tree had at a look, pages that
processes share counted once. It exits like the program.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

# Blocks of which the allocator of C gives each back at once when it is freed, so that RAM follows what is allocated.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
_LOOK_SECONDS = 0.05
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def tree_of(process_id: int) -> list[int]:
    """A process and all that descend from it."""
    found = [process_id]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:  # it has ended
                continue
    return found


def read_pss_bytes(process_id: int) -> int:
    """What a process has in RAM, its share of what several have; 0 where it has ended."""
    try:
        match = _PSS.search(Path(f"/proc/{process_id}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def main() -> int:
    """Run the program and print its peak."""
    program = subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, **ENVIRONMENT})
    most_bytes = 0
    while program.poll() is None:
        tree = tree_of(program.pid)
        if len(tree) > 1:  # of one process the kernel itself knows the peak
            most_bytes = max(most_bytes, sum(map(read_pss_bytes, tree)))
        time.sleep(_LOOK_SECONDS)
    own_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print("peak_bytes", max(own_bytes, most_bytes))
    return program.returncode


if __name__ == "__main__":
    raise SystemExit(main())
