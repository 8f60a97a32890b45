"""Writes what run.sh found: three files, so that they are carried home easily. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 4_000_000
MAX_TOTAL_BYTES = 16_000_000
# Of text, such as logs; gzip makes a tenth of it.
MAX_TEXT_BYTES = 400_000
TEXTS = (".txt", ".md", ".json", ".csv", ".jsonl")


def write_results(out: Path, work: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write summary.json, README.md and results.tar.gz into `out`, each as a whole.

    Args:
        out: The folder of the results.
        work: The folder of the stages' files; folders there named `_...` are not packed.
        facts: How the run was started and what the machine is.
        rows: A row for each stage so far.
    """
    left_out = pack(out / "results.tar.gz", work)
    summary = {"facts": dict(facts), "stages": list(rows), "left_out_of_the_archive": left_out}
    replace_text(out / "summary.json", json.dumps(summary, indent=1, default=str) + "\n")
    replace_text(out / "README.md", format_readme(work, facts, rows, left_out))


def pack(archive: Path, work: Path) -> list[str]:
    """Write the archive; returns what was too large for it, with why."""
    left_out, total = [], 0
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w:gz", compresslevel=6) as tar:
        for path in files_of(work):
            size = path.stat().st_size
            name = path.relative_to(work).as_posix()
            if size > (MAX_TEXT_BYTES if path.suffix in TEXTS else MAX_FILE_BYTES):
                left_out.append(f"{name} ({size:,} bytes)")
            elif total + size > MAX_TOTAL_BYTES:
                left_out.append(f"{name} (the archive is full)")
            else:
                tar.add(path, name)
                total += size
    os.replace(partial, archive)
    return left_out


def files_of(work: Path) -> Iterator[Path]:
    """The files to pack, small ones first: what is most easily lost is least dear."""
    folders = (folder for folder in work.iterdir() if folder.is_dir() and not folder.name.startswith("_"))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    yield from sorted(files, key=lambda path: (path.stat().st_size, path))


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def format_readme(
    work: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]
) -> str:
    """What a person reads first: the machine, a table of the stages, then what each stage reports."""
    machine = ", ".join(
        str(facts[key]) for key in ("gpu", "driver", "torch", "cuda", "python_version") if facts.get(key)
    )
    lines = [f"# Results of benchmarks/gpu/run.sh, {facts.get('began', '')}", ""]
    lines += [f"Machine: {machine or 'not known'}. Device: {facts.get('device')}."]
    if facts.get("dry"):
        lines += ["", "**A dry run: sizes are small, and no figure says anything about the device.**"]
    lines += ["", "| stage | status | seconds | why |", "|---|---|---|---|"]
    for row in rows:
        why = str(row.get("why", "")).replace("|", "\\|")
        lines.append(f"| {row['name']}: {row.get('title', '')} | {row['status']} | {row['seconds']} | {why} |")
    if facts.get("seconds"):
        lines += ["", f"In all {facts['seconds']} s of {facts.get('deadline_s')}."]
    for row in rows:
        lines += ["", f"## {row['name']}", "", *report_of(work / str(row["name"]), row)]
    if left_out:
        lines += ["", "## Left out of results.tar.gz", "", *(f"- {name}" for name in left_out)]
    return "\n".join(lines) + "\n"


def report_of(folder: Path, row: Mapping[str, Any]) -> list[str]:
    """A stage's own report, a file of Markdown, or else the end of its log."""
    for report in sorted(folder.glob("*.md")):
        with contextlib.suppress(OSError):
            return report.read_text(encoding="utf-8")[:MAX_TEXT_BYTES].rstrip().splitlines()
    return ["```", *row.get("log_tail", ["nothing"]), "```"]
