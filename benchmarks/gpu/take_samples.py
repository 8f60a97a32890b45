"""Looks at recordings brought back from a GPU, and takes those that can replace generated sample traces.

    python benchmarks/gpu/take_samples.py RESULTS           # results.tar.gz or a folder: says which could
    python benchmarks/gpu/take_samples.py RESULTS --take    # and replaces them in sample_traces/

A recording is taken if it is of a GPU, small, anonymous, and has the first finding that its sample must show. It is
then listed in sample_traces/recorded.json, so that generate.py leaves it out. Afterwards the expected reports and the
README of sample_traces are to be brought up to date: the tests say where.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 150_000
# What each sample must show first, as tests/samples demands.
WANTED = {
    "healthy": None,
    "dataloader-stall": "PD101",
    "host-device-sync": "PD102",
    "gpu-idle": "PD103",
    "launch-bound": "PD104",
    "allocator-churn": "PD107",
    "gemm-without-tensor-cores": "PD201",
    "convolution-without-tensor-cores": "PD203",
}
_PATHS = ("/home", "/root", "/tmp", "/work", "/usr", "/opt/")


def describe_candidate(path: Path) -> dict[str, Any]:
    """What a recording is and whether it could be a sample.

    Args:
        path: A trace, whose name is that of the sample.

    Returns:
        name, device, step_ns, first (the first finding's rule, None if there is none), findings, bytes, usable, and
        why it is not usable ("" if it is).
    """
    import perfdoctor

    name = path.name.removesuffix(".json.gz")
    report = perfdoctor.analyze(path)
    findings = [each.rule for each in report.findings if each.severity != "info"]
    first = report.findings[0].rule if report.findings else None
    device = report.traces[0].device
    text = gzip.decompress(path.read_bytes()).decode()
    faults = []
    if name not in WANTED:
        faults.append("no sample has this name")
    elif first != WANTED[name]:
        faults.append(f"shows {first} first, not {WANTED[name]}")
    if report.traces[0].vendor is None or '"kernel"' not in text:
        faults.append("no kernel of a GPU in it")
    if path.stat().st_size >= MAX_BYTES:
        faults.append(f"larger than {MAX_BYTES:,} bytes")
    named = [word for word in _PATHS if word in text]
    if named:
        faults.append(f"names paths of its machine ({', '.join(named)})")
    return {
        "name": name,
        "device": device,
        "step_ns": report.steps.median_ns,
        "first": first,
        "findings": findings,
        "bytes": path.stat().st_size,
        "usable": not faults,
        "why": "; ".join(faults),
    }


def take_samples(folder: Path, target: Path, *, take: bool) -> list[dict[str, Any]]:
    """Describe all recordings of a results folder, and copy the usable ones if that is wanted.

    Args:
        folder: Has sample_traces/ in it, at any depth.
        target: The folder of the samples.
        take: Whether to copy.
    """
    rows = [describe_candidate(path) for path in sorted(folder.rglob("sample_traces/*.json.gz"))]
    usable = {row["name"]: row for row in rows if row["usable"]}
    if take and usable:
        for path in folder.rglob("sample_traces/*.json.gz"):
            if path.name.removesuffix(".json.gz") in usable:
                shutil.copyfile(path, target / path.name)
        listed = target / "recorded.json"
        recorded = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else {}
        recorded |= {name: {"device": row["device"], "first": row["first"]} for name, row in usable.items()}
        listed.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return rows


def main(arguments: list[str]) -> int:
    """Command line; returns 2 where the results cannot be read, 1 if none is usable."""
    parser = argparse.ArgumentParser(description="Take recordings as sample traces.")
    parser.add_argument("results", type=Path, help="results.tar.gz of run.sh, or a folder")
    parser.add_argument("--take", action="store_true")
    parser.add_argument("--into", type=Path, default=ROOT / "sample_traces")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        results = options.results
        if results.is_file():
            with tarfile.open(results) as archive:
                archive.extractall(folder, filter="data")
            results = Path(folder)
        elif not results.is_dir():
            print(f"{results} does not exist: name results.tar.gz or a folder", file=sys.stderr)
            return 2
        rows = take_samples(results, options.into, take=options.take)
    for row in rows:
        taken = "taken" if options.take else "could be taken"
        print(f"{row['name']}: {taken if row['usable'] else row['why']} ({row['device']}, {row['bytes']:,} bytes)")
    return 0 if any(row["usable"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
