"""Makes a long trace of a short one: its steps again and again, at later times, with new ids and step numbers.

python benchmarks/make_trace.py sample_traces/host-device-sync.json.gz long.json --megabytes 30
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

_IDS = ("correlation", "External id", "Python id", "Python parent id")
_STEP = re.compile(r"ProfilerStep#(\d+)")


def lengthen(sample: Path, out: Path, size_bytes: int) -> int:
    """Write the sample's events over and over until the text is `size_bytes` long; returns how often.

    The name of `out` decides: `.gz` is compressed.
    """
    text = sample.read_bytes()
    whole = json.loads(gzip.decompress(text) if sample.suffix == ".gz" else text)
    events = whole.pop("traceEvents")
    timed = [event for event in events if "ts" in event]
    span = max(e["ts"] + e.get("dur", 0) for e in timed) - min(e["ts"] for e in timed) + 1000
    ids = 1 + max(int(e["args"][key]) for e in events for key in _IDS if e.get("args", {}).get(key) is not None)
    steps = 1 + max((int(m[1]) for e in events if (m := _STEP.match(e.get("name", "")))), default=0)
    parts = [json.dumps(whole)[:-1] + ', "traceEvents": [\n']
    written, times = len(parts[0]), 0
    while written < size_bytes:
        lines = ",\n".join(json.dumps(_later(event, times * span, times * ids, times * steps)) for event in events)
        parts.append((",\n" if times else "") + lines)
        written += len(parts[-1])
        times += 1
    data = "".join([*parts, "\n]}"]).encode()
    out.write_bytes(gzip.compress(data, 6, mtime=0) if out.suffix == ".gz" else data)
    return times


def _later(event: dict[str, Any], time_us: float, ids: int, steps: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + time_us, 3)
    if args := moved.get("args"):
        # -1 and 0 mean that there is none.
        moved["args"] = {k: v + ids if k in _IDS and v is not None and v > 0 else v for k, v in args.items()}
    if match := _STEP.match(moved.get("name", "")):
        moved["name"] = f"ProfilerStep#{int(match[1]) + steps}"
    return moved


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=30)
    given = parser.parse_args()
    times = lengthen(given.sample, given.out, round(given.megabytes * 1e6))
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB, the sample {times} times")


if __name__ == "__main__":
    main()
