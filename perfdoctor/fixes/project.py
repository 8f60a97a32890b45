"""Project: the folder of the user's program, and which of its files may be edited."""

from __future__ import annotations

import ast
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from perfdoctor.errors import EditRefusedError
from perfdoctor.fixes.source_file import SourceFile, read_source

# Folders of a project that hold no source of its own.
NOT_SOURCE = ("node_modules", "site-packages", "dist-packages", "__pycache__")
# The folders of recordings and trials.
OURS = "perfdoctor-"
# The files that a program imports of its project, from its script on; more is not looked through.
MAX_IMPORTED = 500


class Project:
    """The folder of a program: that of its repository, else that of the script.

    Attributes:
        root: The folder, without links in its path.
        script: The file that Python is started with; None where that is not known.
        cwd: The folder in which the program runs.
        device_kind: "cuda" or "cpu": where the program computes.
        command: The words of its command line; none where they are not known, as no recording keeps them.
    """

    def __init__(self, script: Path | None, cwd: Path, device_kind: str = "cpu", command: Sequence[str] = ()) -> None:
        self.device_kind, self.command = device_kind, tuple(command)
        self.script, self.cwd = None if script is None else script.resolve(), cwd.resolve()
        self.root = find_root(self.script.parent if self.script else self.cwd)
        self._sources: dict[Path, SourceFile | EditRefusedError] = {}

    def source(self, file: str) -> SourceFile:
        """The file that a report names.

        Raises:
            EditRefusedError: It is none of the project's, or cannot be edited.
        """
        path = self.find(file)
        if path not in self._sources:
            try:
                self._sources[path] = read_source(path, path.relative_to(self.root).as_posix())
            except EditRefusedError as refused:
                self._sources[path] = refused
        source = self._sources[path]
        if isinstance(source, EditRefusedError):
            raise source
        return source

    def find(self, file: str) -> Path:
        """Where a file lies that a report names: absolute, or from the folder of the project, script or program.

        Raises:
            EditRefusedError: It is none of the project's, or must not be edited.
        """
        if file.startswith("<") or "ipykernel" in file:
            raise EditRefusedError(f"{file} is a cell of a notebook: change the cell")
        folders = [self.cwd, self.root, *((self.script.parent,) if self.script else ())]
        paths = [Path(file)] if os.path.isabs(file) else [folder / file for folder in folders]
        path = next((each for each in paths if each.is_file()), None)
        if path is None:
            raise EditRefusedError(f"{file} is not in {self.root}")
        self._check_own(path, file)
        return path.resolve()

    def _check_own(self, path: Path, file: str) -> None:
        """Check that a file is the project's own source.

        Raises:
            EditRefusedError: It is not.
        """
        real = path.resolve()
        of_library = f"{file} belongs to a library: change what your program passes to it"
        if not real.is_relative_to(self.root):
            raise EditRefusedError(f"{file} is a link out of the project" if path.is_symlink() else of_library)
        if not set(real.relative_to(self.root).parts).isdisjoint(NOT_SOURCE):
            raise EditRefusedError(of_library)
        if real.suffix != ".py":
            raise EditRefusedError(f"{file} is no Python file")
        if not os.stat(real).st_mode & stat.S_IWUSR:
            raise EditRefusedError(f"{file} is read-only")
        for folder in itertools.takewhile(lambda folder: folder != self.root, real.parents):
            if (folder / ".git").exists():
                raise EditRefusedError(f"{file} belongs to another repository, {folder.name}")
            if (folder / "pyvenv.cfg").exists():
                raise EditRefusedError(of_library)

    def program_files(self, first: str | None = None) -> Iterator[SourceFile]:
        """The sources that can be edited: that which a report names, the script, and what it imports of the project."""
        seen = set()
        named = [first] if first else []
        for file in [*named, *self._imported]:
            try:
                source = self.source(file)
            except EditRefusedError:
                continue
            if source.path not in seen:
                seen.add(source.path)
                yield source

    @cached_property
    def sources(self) -> list[Path]:
        """All Python files of the project that are neither links nor a library's; read from the disk once."""
        return list(_list_sources(self.root))

    @cached_property
    def _imported(self) -> list[str]:
        """The script and the files that it imports of the project, one after another."""
        files = [str(self.script)] if self.script else []
        for file in files:
            if len(files) > MAX_IMPORTED:
                break
            try:
                source = self.source(file)
            except EditRefusedError:
                continue
            files += [each for each in map(str, self._imports_of(source)) if each not in files]
        return files

    def _imports_of(self, source: SourceFile) -> list[Path]:
        names: list[tuple[Path | None, str]] = []
        names += [(None, each.name) for node in source.nodes(ast.Import) for each in node.names]
        for node in source.nodes(ast.ImportFrom):
            folder = source.path.parents[node.level - 1] if 0 < node.level <= len(source.path.parents) else None
            base = node.module or ""
            names += [(folder, f"{base}.{each.name}".strip(".")) for each in node.names]
        roots = [*((self.script.parent,) if self.script else ()), self.cwd, self.root, self.root / "src"]
        found = [_module_file(root, name) for folder, name in names for root in ([folder] if folder else roots)]
        return list(dict.fromkeys(each for each in found if each is not None))


def find_root(folder: Path) -> Path:
    """The folder of the repository in which a folder lies; itself where it is in none."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def find_script(command: Sequence[str], cwd: Path) -> Path | None:
    """The file that a command line starts Python with: its first word that is a Python file, or the file of `-m`."""
    for number, word in enumerate(command):
        if word == "-m" and number + 1 < len(command):
            module = _module_file(cwd, command[number + 1])
            if module is not None:
                main = module.with_name("__main__.py")
                return main if module.name == "__init__.py" and main.is_file() else module
        path = cwd / word
        if path.suffix == ".py" and path.is_file():
            return path
        if path.is_dir() and (path / "__main__.py").is_file():
            return path / "__main__.py"
    return None


def _module_file(root: Path, name: str) -> Path | None:
    """The file of a module below a folder, or of the module of which it is a member."""
    parts = PurePosixPath(*name.split(".")) if name else PurePosixPath("__init__")
    for module in (parts, parts.parent):
        for path in (root / f"{module}.py", root / module / "__init__.py"):
            if str(module) != "." and path.is_file():
                return path
    return None


def _list_sources(root: Path) -> Iterator[Path]:
    """The Python files of a project that are neither links nor a library's."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name
            for name in names
            if not name.startswith((".", OURS))
            and name not in NOT_SOURCE
            and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".py") and not path.is_symlink() and path.is_file():
                yield path
