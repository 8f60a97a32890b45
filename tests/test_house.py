"""Rules of the code base that no linter checks: no circle of imports, unique file names, no word that is banned."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Private words for which the field has others (longest_path, queue_stall, order_key_ns, unit_name, ...).
OLD_WORDS = ("settle", "held", "told", "roster", "turn_ns", "period")
CODE = ("perfdoctor", "analyzers", "tests", "benchmarks", "examples", "sample_traces")


@cache
def find_modules() -> dict[str, Path]:
    """The files of the package by their module names; analyzers/ is installed as perfdoctor.analyzers."""
    files = [path.relative_to(ROOT) for path in (ROOT / "perfdoctor").rglob("*.py")]
    files = [path for path in files if path.parts[:2] != ("perfdoctor", "analyzers")]
    found = {".".join(path.with_suffix("").parts): ROOT / path for path in files}
    for path in (ROOT / "analyzers").glob("*.py"):
        found[f"perfdoctor.analyzers.{path.stem}"] = path
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def find_imports(name: str, path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports: at its top, in functions, and for type checkers."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in find_modules())
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield target if target in find_modules() else base


def test_no_circle_of_files() -> None:
    # perfdoctor/__init__.py imports everything, but only when a name is first used.
    graph = {name: set(find_imports(name, path)) & find_modules().keys() for name, path in find_modules().items()}
    del graph["perfdoctor"]
    while True:
        leaves = {name for name, needed in graph.items() if not needed & graph.keys() - {name}}
        if not leaves:
            break
        for name in leaves:
            del graph[name]
    assert not graph, f"circles among {sorted(graph)}"


def test_no_two_files_have_one_name() -> None:
    counts = Counter(path.name for path in find_modules().values())
    assert {name for name, count in counts.items() if count > 1} <= {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("word", OLD_WORDS)
def test_words_of_the_old_vocabulary_are_gone(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py") if path != Path(__file__).resolve()]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"'{word}' stands in {found[:10]} ({len(found)} lines)"


def test_analyzers_may_import_no_room_but_the_door() -> None:
    """Import-linter knows no "all but": a new room has to join the list."""

    def modules(folder: str) -> set[str]:
        names = {
            each.stem for each in (ROOT / folder).iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()
        }
        return {f"{folder.replace('/', '.')}.{name}" for name in names - {"__init__", "__main__"}}

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (each for each in contracts if each.get("source_modules") == ["perfdoctor.analyzers"])
    assert contract["type"] == "forbidden"
    assert not contract.get("ignore_imports")
    open_to_rules = {"perfdoctor.rules", "perfdoctor.analyzers"}
    assert set(contract["forbidden_modules"]) == (modules("perfdoctor") | modules("perfdoctor/rules")) - open_to_rules
