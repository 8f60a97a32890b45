"""Makes a recorded trace small and anonymous; standard library only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

# What identifies a machine or a run.
IDENTIFYING = ("host_name", "trace_id", "traceName")


def trim_trace(source: Path, target: Path) -> None:
    """Write a Chrome trace again, compressed, without white space and without what identifies the machine.

    Args:
        source: The trace, .json or .json.gz.
        target: The .json.gz to write.
    """
    content = source.read_bytes()
    trace = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    text = json.dumps({key: value for key, value in trace.items() if key not in IDENTIFYING}, separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
