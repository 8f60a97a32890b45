"""Makes the links of README.md absolute, for its page on PyPI, where there is no repository beside it.

    python docs/publish_readme.py v0.2.0        # before the distributions are built: README.md is changed

In the repository links stay relative, so that they work in every checkout and on every branch. Those of a release lead
to its tag.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def find_repository() -> str:
    """The address of the repository, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def lead_to_tag(markdown: str, tag: str) -> str:
    """Markdown whose relative links lead to the files of a tag; pictures to the files themselves."""

    def lead(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        kind = "raw" if picture else "tree" if (ROOT / target.partition("#")[0]).is_dir() else "blob"
        return f"{picture}[{text}]({find_repository()}/{kind}/{tag}/{target})"

    return "".join(part if part.startswith("```") else _LINK.sub(lead, part) for part in _FENCE.split(markdown))


def main(arguments: list[str]) -> int:
    """Change README.md; the argument is the tag."""
    if len(arguments) != 1:
        sys.stderr.write("usage: publish_readme.py TAG\n")
        return 2
    path = ROOT / "README.md"
    path.write_text(lead_to_tag(path.read_text(encoding="utf-8"), arguments[0]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
