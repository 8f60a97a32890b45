"""Where the source files of a report lie in the repository that one stands in.

Code reviews name a file from the root of its repository on. A trace names it as the machine did that recorded it:
relative to the program, or with the folders of that machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from perfdoctor.report.report import Report
from perfdoctor.reporters.relative_paths import make_shortener

# A cell of a notebook, or code without a file: "In[3]", "<string>".
_NO_FILE = re.compile(r"In\[\d+\]|<.*")


def is_file_name(text: str) -> bool:
    """Whether a location names a file, and not a cell of a notebook or code that was typed."""
    return _NO_FILE.match(text) is None


def find_source_files(report: Report, root: Path) -> dict[str, str]:
    """By the recorded path of each file in a finding's location, its path from `root` on, with forward slashes.

    A file of another machine is the one of `root` whose path has the longest end in common with it. One that is not
    below `root`, an absolute folder, keeps the path from its program's folder on. No file is read.
    """
    shorten = make_shortener(report.program_folders)
    files = {finding.location.file for finding in report.findings if finding.location is not None}
    return {file: _find_file(file, root) or shorten(file).replace("\\", "/") for file in sorted(files)}


def _find_file(file: str, root: Path) -> str | None:
    """The path of a file below `root`; None where there is none."""
    parts = [part for part in PurePosixPath(file.replace("\\", "/")).parts if part not in ("/", ".")]
    if not is_file_name(file) or ".." in parts:
        return None
    if os.path.isabs(file) and Path(file).is_relative_to(root):
        return Path(file).relative_to(root).as_posix()
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if os.path.isfile(os.path.join(root, end))), None)
