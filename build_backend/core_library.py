"""The C library, compiled: into a folder for a wheel, or into the tree for an editable installation."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from build_backend.compilers import Compiler, CompilerError, find_compiler, run_compiler

ROOT = Path(__file__).resolve().parent.parent
SCANNER = ROOT / "perfdoctor" / "trace" / "scanner"
LIBRARY_FOLDER = SCANNER.relative_to(ROOT).as_posix()
"""Where the library lies in the package, from the root."""


def load_core_sources() -> ModuleType:
    """`core_sources.py` by its path: what perfdoctor imports is not installed while it is built."""
    spec = importlib.util.spec_from_file_location("perfdoctor_core_sources", SCANNER / "core_sources.py")
    if spec is None or spec.loader is None:
        raise CompilerError("perfdoctor/trace/scanner/core_sources.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_required() -> bool:
    """Whether a build without the library, or with a warning about it, is an error."""
    return os.environ.get("PERFDOCTOR_LIBRARY") == "required"


def compile_core(compiler: Compiler, folder: Path) -> Path:
    """The library in `folder`, under the name that it has on the compiler's platform.

    Raises:
        CompilerError: if it is not built.
    """
    core = load_core_sources()
    sources = [path for path in core.source_files() if path.suffix == ".c"]
    if not sources:
        raise CompilerError("the C library's sources are missing")
    out: Path = folder / core.library_name(compiler.sys_platform)
    strict = ("-Wall", "-Wextra", "-Werror") if is_required() else ()
    run_compiler(compiler, sources, out, (*strict, f'-DPERFDOCTOR_SOURCES="{core.hash_sources()}"'))
    return out


def try_compile(folder: Path) -> tuple[Path, Compiler] | None:
    """The library for this machine in `folder`, and its compiler; None, and a line on stderr, where it is not built.

    Raises:
        CompilerError: if it is not built though it is required.
    """
    if os.environ.get("PERFDOCTOR_LIBRARY") == "off":
        return None
    try:
        compiler = find_compiler()
        if compiler is None:
            raise CompilerError("no C compiler works here, and the package ziglang, which brings one, is not installed")
        return compile_core(compiler, folder), compiler
    except CompilerError as error:
        if is_required():
            raise
        print(f"warning: perfdoctor is built without its C library and will read with Python: {error}", file=sys.stderr)  # noqa: T201
        return None


def build_in_tree() -> bool:
    """Put the library beside its Python files, where an editable installation finds it; whether it was built."""
    with tempfile.TemporaryDirectory(dir=SCANNER, prefix=".build-") as folder:
        built = try_compile(Path(folder))
        if built:
            # A running perfdoctor keeps the file that it has opened.
            built[0].replace(SCANNER / built[0].name)
    return built is not None


if __name__ == "__main__":
    sys.exit(0 if build_in_tree() else 1)
