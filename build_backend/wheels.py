"""All wheels of a release and the sdist, built and checked on one machine: `python -m build_backend.wheels --out dist`.

Zig's package cross-compiles the library for every target; `packaging`, `lief` and `twine` check what came out (the
extra "dev" has them all). The package itself is built once, so the wheels differ in the library alone. The first run
takes some minutes, mostly for Windows: zig builds that system's C library, and keeps it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_backend.compilers import zig_compiler
from build_backend.core_library import LIBRARY_FOLDER, ROOT, compile_core
from build_backend.hooks import build_plain_wheel, build_sdist
from build_backend.targets import TARGETS
from build_backend.wheel_checks import check_wheel
from build_backend.wheel_files import add_library

START_OF_ZIP = 315_619_200
"""1980-01-02, in seconds of Unix: zip files know no earlier time."""


def build_release(out: Path, targets: list[tuple[str, str]]) -> list[Path]:
    """The sdist, the wheel for any platform and one for each of the targets, in the folder `out`.

    Raises:
        CompilerError: if a library is not built.
    """
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(commit_time()))
    out.mkdir(parents=True, exist_ok=True)
    made = [out / build_sdist(str(out))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = build_plain_wheel(folder)
        made.append(Path(shutil.copy(plain, out)))
        for key in targets:
            compiler = zig_compiler(TARGETS[key])
            library = compile_core(compiler, Path(tempfile.mkdtemp(dir=folder)))
            made.append(add_library(plain, library, LIBRARY_FOLDER, compiler.wheel_tag, out))
    return made


def commit_time() -> int:
    """When the checkout's last commit was made, in seconds of Unix; the start of zip's time outside a checkout."""
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except FileNotFoundError:
        return START_OF_ZIP
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else START_OF_ZIP


def check_release(made: list[Path]) -> list[str]:
    """What is wrong with the files of a release, a sentence each."""
    problems = [f"{path.name}: {problem}" for path in made if path.suffix == ".whl" for problem in check_wheel(path)]
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return problems if done.returncode == 0 else [*problems, f"twine check: {done.stdout}{done.stderr}"]


def main() -> int:
    """Build, check, and list what was built; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m build_backend.wheels", description=__doc__)
    names = {"-".join(key): key for key in TARGETS}
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the folder, by default dist")
    parser.add_argument("--only", action="append", choices=names, help="a target; several times; by default all")
    options = parser.parse_args()
    out = options.out.absolute()
    os.chdir(ROOT)
    made = build_release(out, [names[name] for name in options.only or names])
    problems = check_release(made)
    sys.stdout.writelines(f"{path.stat().st_size:>9,}  {path.name}\n" for path in made)
    sys.stdout.writelines(f"wrong: {problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
