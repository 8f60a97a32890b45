"""Pages of the API: every public name, by its kind; mkdocstrings fills in signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import perfdoctor
import perfdoctor.rules
import perfdoctor.testing

KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "functions": ("Functions", inspect.isfunction),
    "classes": ("Classes", lambda value: inspect.isclass(value) and not issubclass(value, Exception)),
    "exceptions": ("Exceptions", lambda value: inspect.isclass(value) and issubclass(value, Exception)),
}
# Modules whose names are public as well, each on a page of its own.
MODULES = {"gpu": "perfdoctor.gpu", "rules": "perfdoctor.rules", "testing": "perfdoctor.testing"}


def make_pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the Markdown of each page."""
    for kind, (title, fits) in KINDS.items():
        names = [name for name in perfdoctor.__all__ if fits(getattr(perfdoctor, name))]
        yield f"api/{kind}.md", "\n\n".join((f"# {title}", *map(_describe_value, names))) + "\n"
    for name, module in MODULES.items():
        yield f"api/{name}.md", f"# {module}\n\n{_directive(module)}\n"


def make_menu() -> list[object]:
    """The menu of the API."""
    pages = {title: kind for kind, (title, _) in KINDS.items()} | {module: name for name, module in MODULES.items()}
    return [{title: f"api/{page}.md"} for title, page in pages.items()]


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
