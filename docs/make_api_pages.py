"""Pages of the API: every public name, by its kind; mkdocstrings fills in signatures and docstrings.

What rules import has a page for each section of door.md: its example, and below it what the names of its heading are.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import perfdoctor
import perfdoctor.rules
import perfdoctor.testing

KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "functions": ("Functions", inspect.isfunction),
    "classes": ("Classes", lambda value: inspect.isclass(value) and not issubclass(value, Exception)),
    "exceptions": ("Exceptions", lambda value: inspect.isclass(value) and issubclass(value, Exception)),
}
# Modules whose names are public as well, each on a page of its own.
MODULES = {"gpu": "perfdoctor.gpu", "testing": "perfdoctor.testing"}
DOOR = Path(__file__).parent / "door.md"
_PLAIN = (int, str, Mapping, types.GenericAlias)
_EXAMPLES = "The `rank` of the example is [the one of all examples](../../door.md)."


def make_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each page."""
    for kind, (title, fits) in KINDS.items():
        names = [name for name in perfdoctor.__all__ if fits(getattr(perfdoctor, name))]
        yield f"api/{kind}.md", "\n\n".join((f"# {title}", *map(_describe_value, names))) + "\n"
    for name, module in MODULES.items():
        yield f"api/{name}.md", f"# {module}\n\n{_directive(module)}\n"
    sections = find_door_sections()
    rows = [f"| {', '.join(f'[`{each}`](rules/{names[0]}.md)' for each in names)} |" for names in sections]
    yield "api/rules.md", "\n".join(("# perfdoctor.rules\n\n| names |\n|---|", *rows)) + "\n"
    for names, text in sections.items():
        values = ((name, getattr(perfdoctor.rules, name)) for name in names)
        # Numbers and types of arrays have no docstring: the section says what they are.
        described = (f"::: perfdoctor.rules.{name}" for name, value in values if not isinstance(value, _PLAIN))
        yield f"api/rules/{names[0]}.md", "\n\n".join((f"# {', '.join(names)}", text, _EXAMPLES, *described)) + "\n"


def make_menu() -> list[object]:
    """The menu of the API."""
    pages = {title: kind for kind, (title, _) in KINDS.items()} | {module: name for name, module in MODULES.items()}
    door = [{", ".join(names): f"api/rules/{names[0]}.md"} for names in find_door_sections()]
    return [{title: f"api/{page}.md"} for title, page in pages.items()] + [
        {"perfdoctor.rules": ["api/rules.md", *door]}
    ]


def find_door_sections() -> dict[tuple[str, ...], str]:
    """The sections of door.md by the names in their headings."""
    parts = re.split(r"^## (.+)$", DOOR.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {tuple(names.split(", ")): text.strip() for names, text in zip(parts[::2], parts[1::2], strict=True)}


def describe_names() -> str:
    """All names of the package as a table."""
    return "\n".join(("| name | is |\n|---|---|", *map(_describe_name, perfdoctor.__all__)))


def _describe_value(name: str) -> str:
    """A name, and below it the class that says what its fields are, where the public class only adds to that one."""
    bases = getattr(getattr(perfdoctor, name), "__bases__", ())
    fields = [f"{base.__module__}.{base.__name__}" for base in bases if base.__name__ == name]
    options = "\n    options:\n      show_root_full_path: true\n      heading_level: 3\n      members: []"
    return "\n\n".join((f"::: perfdoctor.{name}", *(f"::: {field}{options}" for field in fields)))


def _describe_name(name: str) -> str:
    value = getattr(perfdoctor, name)
    page = next((kind for kind, (_, fits) in KINDS.items() if fits(value)), name)
    anchor = f"#perfdoctor.{name}" if page in KINDS else ""
    summary = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return f"| [`perfdoctor.{name}`]({page}.md{anchor}) | {summary} |"


def _directive(module: str) -> str:
    """All public names of a module, without its heading: the page has one."""
    return f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
