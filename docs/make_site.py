"""The hook of the site: makes the pages that come from the package, and leads links of the repository to pages.

    mkdocs build --strict        # the site, in build/site
    mkdocs serve                 # the site while you write

Rules, commands and the API are described once, in the code. A hook of our own turns them into pages, because what there
is to turn is our own: docstrings with the sections of a rule, examples in epilogs, a report. mkdocs itself takes pages
from a hook (`File.generated`), so that no plugin for that is needed; signatures and docstrings of the API are
mkdocstrings' work.

What a page may say to the hook, each in a line of its own (on GitHub one sees nothing of it):

    <!-- part: Where a step -->                     the part of the sample's report that begins so
    <!-- output: perfdoctor show -->                what a command prints
    <!-- table: rules -->                           a table of the package: rules, commands, names, ...
    <!-- include: benchmarks/README.md ## Title --> a section of another file
    <!-- file: docs/rules/examples/setting.py -->   a file as code
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import make_advice_page
import make_api_pages
import make_command_pages
import make_rule_pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "sample_traces/dataloader-stall.json.gz"
REPORT_WIDTH = 84
# Files outside docs/ that are pages of the site as well.
BORROWED = {
    "benchmarks/README.md": "benchmarks.md",
    "sample_traces/README.md": "sample_traces.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
TABLES: dict[str, Callable[[], str]] = {
    "rules": make_rule_pages.describe_rules,
    "commands": make_command_pages.describe_commands,
    "names": make_api_pages.describe_names,
    "changes": make_command_pages.describe_changes,
    "tables": make_command_pages.describe_tables,
}
# Where the pages of each kind stand in the menu: behind the page that introduces them.
SECTIONS = {"rules/index.md": make_rule_pages, "commands/index.md": make_command_pages, "api/index.md": make_api_pages}
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_MARK = re.compile(r"^<!-- (part|output|table|include|file): (.+?) -->$", re.MULTILINE)
log = logging.getLogger("mkdocs.hooks.make_site")


def on_config(config: MkDocsConfig) -> None:
    """Put the made pages into the menu, and at the end of Guides each page that nobody put there."""
    nav = list(config.nav or ())
    named = set(_leaves(nav))
    for introduction, maker in SECTIONS.items():
        _insert_behind(nav, introduction, maker.make_menu())
    guides = next(group["Guides"] for group in nav if isinstance(group, dict) and "Guides" in group)
    guides += sorted(path.name for path in Path(config.docs_dir).glob("*.md") if path.name not in named)
    config.nav = nav


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made, and those that stand elsewhere in the repository."""
    from mkdocs.structure.files import File

    for uri, text in make_pages():
        files.append(File.generated(config, uri, content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Fill in what a page asks for, and lead its links to pages of the site."""
    source = next((path for path, uri in BORROWED.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")
    return fill_marks(lead_links(markdown, source, page.file.src_uri), page.file.src_uri)


def make_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each page that is not in docs/."""
    for maker in SECTIONS.values():
        yield from maker.make_pages()
    yield "advice.md", make_advice_page.describe_table()
    for path, uri in BORROWED.items():
        yield uri, (ROOT / path).read_text(encoding="utf-8")


def lead_links(markdown: str, source: str, uri: str) -> str:
    """Markdown whose links are those of a page, where they were those of a file.

    A link to what is no page (a folder of examples, a schema) leaves its text behind: the site does not say where the
    repository is.

    Args:
        markdown: The text.
        source: The file that it stands in, from the repository's root.
        uri: The address of its page.
    """

    def lead(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        address = BORROWED.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if address is None:
            return text
        return f"[{text}]({posixpath.relpath(address, posixpath.dirname(uri) or '.')}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(lead, part) for part in parts)


def fill_marks(markdown: str, uri: str) -> str:
    """Markdown with what its marks ask for in their places; a mark that nothing answers is a warning."""

    def fill(match: re.Match[str]) -> str:
        kind, wanted = match[1], match[2]
        text = include_section(wanted, uri) if kind == "include" else _MAKERS[kind](wanted)
        if not text:
            log.warning("%s asks for the %s '%s', which does not exist", uri, kind, wanted)
        return text

    return _MARK.sub(fill, markdown)


def find_part(start: str) -> str:
    """The paragraph of the sample's report that begins with a text, as a block; empty where there is none."""
    found = next((part for part in sample_report().split("\n\n") if part.lstrip("\n").startswith(start)), "")
    return f"```text\n{found}\n```" if found else ""


def print_output(line: str) -> str:
    """What a command prints in the repository's folder, as a block.

    Raises:
        CalledProcessError: It failed.
    """
    program, *words = shlex.split(line)
    environment = os.environ | {"COLUMNS": str(REPORT_WIDTH), "NO_COLOR": "1"}
    command = [sys.executable, "-m", program, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return f"```text\n{done.stdout.strip(chr(10))}\n```"


@cache
def sample_report() -> str:
    """The report of the sample trace, as a terminal without colours shows it."""
    import perfdoctor
    from perfdoctor.reporters.terminal import Terminal

    return Terminal(width=REPORT_WIDTH, color=False).render(perfdoctor.analyze(ROOT / SAMPLE)).strip("\n")


def quote_file(path: str) -> str:
    """A file of Python as a block."""
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8')}```"


def include_section(wanted: str, uri: str) -> str:
    """The text below a heading of a file, up to the next heading of its level; empty where there is no such heading.

    Args:
        wanted: The file and the heading, as "CHANGELOG.md ## [Unreleased]".
        uri: The address of the page that includes it.
    """
    path, heading = wanted.split(" ", 1)
    _, found, rest = (ROOT / path).read_text(encoding="utf-8").partition(f"\n{heading}\n")
    level = heading.partition(" ")[0]
    body = re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip("\n")
    return lead_links(body, path, uri) if found else ""


_MAKERS: dict[str, Callable[[str], str]] = {
    "part": find_part,
    "output": print_output,
    "table": lambda name: TABLES[name]() if name in TABLES else "",
    "file": quote_file,
}


def _leaves(nav: list[object]) -> Iterator[str]:
    for item in nav:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from _leaves(
                [each for value in item.values() for each in (value if isinstance(value, list) else [value])]
            )


def _insert_behind(nav: list[object], leaf: str, items: list[object]) -> None:
    for item in nav:
        for value in item.values() if isinstance(item, dict) else ():
            if isinstance(value, list) and leaf in value:
                value[value.index(leaf) + 1 : value.index(leaf) + 1] = items
            elif isinstance(value, list):
                _insert_behind(value, leaf, items)
