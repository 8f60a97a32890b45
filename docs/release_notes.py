"""Prints the changelog of one version, for the page of its release, if all files agree that it is the one.

    python docs/release_notes.py --tag v0.2.0

Ends with exit code 1 and a sentence where the tag, pyproject.toml, CITATION.cff and the first release of CHANGELOG.md
are not of one version, or the date of the changelog and of the citation differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RELEASE = re.compile(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
_SECTION_END = re.compile(r"^(?:## |\[[^\]]+\]: )", re.MULTILINE)


def find_versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file names, with its date where it has one: "0.2.0" or "0.2.0 of 2026-11-23"."""
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", citation, re.MULTILINE))
    release = _RELEASE.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        "CITATION.cff": f"{cited.get('version')} of {cited.get('date-released')}",
        "CHANGELOG.md": f"{release[1]} of {release[2]}" if release else "no release",
    }


def check_versions(versions: dict[str, str], tag: str) -> str:
    """Why the files are not of one release with this tag; empty where they are."""
    version = versions["pyproject.toml"]
    if tag != f"v{version}":
        return f"the tag is {tag}, and pyproject.toml has version {version}"
    for file in ("CITATION.cff", "CHANGELOG.md"):
        if versions[file].partition(" of ")[0] != version:
            return f"pyproject.toml has version {version}, and {file} {versions[file]}"
    if versions["CITATION.cff"] != versions["CHANGELOG.md"]:
        return f"CITATION.cff has {versions['CITATION.cff']}, and CHANGELOG.md {versions['CHANGELOG.md']}"
    return ""


def find_notes(changelog: str, version: str) -> str:
    """What a changelog says of a version, without its heading; empty where it does not have it."""
    found = next((match for match in _RELEASE.finditer(changelog) if match[1] == version), None)
    return "" if found is None else _SECTION_END.split(changelog[found.end() :], maxsplit=1)[0].strip("\n")


def main(arguments: Sequence[str]) -> int:
    """Print the notes; returns 1, with a sentence on stderr, where the files do not agree."""
    parser = argparse.ArgumentParser(description="Print the changelog of the release that a tag names.")
    parser.add_argument("--tag", required=True)
    tag = parser.parse_args(arguments).tag
    error = check_versions(find_versions(), tag)
    if error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(find_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag.removeprefix("v")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
