"""Compares the reports of two states of the code on every trace, to the byte.

::

    python -m benchmarks.same_reports save before      # in the old state
    python -m benchmarks.same_reports compare before   # in the new one; exit code 1 when a report differs

Each trace is analysed once by the command line, as users do: JSON report, text (short and long), Markdown, and
annotated trace. Only the seconds that rules took are left out.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# The traces of the repository, and the shared traces where they are beside it.
FOLDERS = ("sample_traces", "../shared/traces", "../shared/recordings", "../shared/nsight", "../shared/pairs")
SUFFIXES = (".json", ".json.gz", ".sqlite")
_MAX_LINES = 20
# Seconds differ from run to run: in JSON, of one job or in lines of several, and in the terminal's list of rules.
_SECONDS = re.compile(r'("seconds": ?|^ +[A-Z]+[0-9]{3} +ran +)[0-9.e-]+', re.MULTILINE)


def find_targets(folders: Sequence[str] = FOLDERS) -> list[str]:
    """Every trace, and every folder with several traces, relative to the repository."""
    found: set[str] = set()
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.name.endswith(SUFFIXES) and "expected" not in path.parts:
                found.add(os.path.relpath(path, REPOSITORY))
                traces = [other for other in path.parent.iterdir() if other.name.endswith(SUFFIXES)]
                if len(traces) > 1 and path.parent.parent.name != "shared" and path.parent.name != "sample_traces":
                    found.add(os.path.relpath(path.parent, REPOSITORY))
    return sorted(found)


def save_reports(target: str, folder: Path) -> None:
    """Write the report on one trace in all formats to a folder of its own."""
    out = folder / target.replace("../", "").replace("/", "+")
    out.mkdir(parents=True, exist_ok=True)
    annotated = out / "annotated.json.gz"
    # Only a single Chrome trace can be annotated: no Nsight export, and no folder of ranks.
    files = [
        *(out / f"report.{suffix}" for suffix in ("json", "md", "txt")),
        *([annotated] if target.endswith((".json", ".gz")) else []),
    ]
    text = _run("analyze", target, "-v", *(word for file in files for word in ("-o", str(file))))
    (out / "verbose.txt").write_text(text, encoding="utf-8")
    for file in (path for path in out.iterdir() if path != annotated):
        file.write_text(remove_seconds(file.read_text(encoding="utf-8")).replace(str(folder), ""), encoding="utf-8")
    if annotated.exists():
        digest = hashlib.sha256(gzip.decompress(annotated.read_bytes())).hexdigest()
        (out / "annotated.sha256").write_text(digest + "\n", encoding="utf-8")
        annotated.unlink()


def remove_seconds(text: str) -> str:
    """The text of a report without the seconds that rules took."""
    return _SECONDS.sub(r"\1-", text)


def _run(*arguments: str) -> str:
    """The standard output of perfdoctor; if it fails, with the exit code and standard error."""
    environment = os.environ | {"COLUMNS": "100", "PERFDOCTOR_CALIBRATION_DIR": os.devnull}
    command = [sys.executable, "-m", "perfdoctor", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else f"{done.stdout}\nexit code {done.returncode}\n{done.stderr}"


def compare_folders(before: Path, after: Path) -> Iterator[str]:
    """Yield a diff, cut to some lines, for each file that differs between two folders of reports."""
    names = sorted({path.relative_to(folder) for folder in (before, after) for path in folder.rglob("*.*")})
    for name in (name for name in names if not ((before / name).is_dir() or (after / name).is_dir())):
        old, new = (_lines(folder / name) for folder in (before, after))
        if old != new:
            diff = list(difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", n=0, lineterm=""))
            yield "\n".join([*diff[:_MAX_LINES], *(["..."] if len(diff) > _MAX_LINES else [])])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else ["(there is none)"]


def save_all(folder: Path, targets: Sequence[str], jobs: int) -> None:
    """Write the reports on all traces."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(partial(save_reports, folder=folder), targets))


def main() -> int:
    """Save reports or compare them with saved ones; returns 1 when one differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_reports", description=__doc__)
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("folder", type=Path, help="the reports of the old state")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="only traces with this in their path")
    options = parser.parse_args()
    targets = [target for target in find_targets() if options.only in target]
    if options.action == "save":
        save_all(options.folder, targets, options.jobs)
        print(f"{len(targets)} traces and folders saved in {options.folder}")
        return 0
    after = options.folder.with_name(options.folder.name + "-now")
    save_all(after, targets, options.jobs)
    before_only = options.only.replace("../", "").replace("/", "+")
    diffs = [text for text in compare_folders(options.folder, after) if before_only in text.splitlines()[0]]
    print(*diffs, sep="\n\n")
    print(f"{len(targets)} traces and folders: {len(diffs)} texts differ")
    return 1 if diffs else 0


if __name__ == "__main__":
    sys.exit(main())
