"""Fuzz the C library under sanitizers of addresses and of undefined behaviour: python -m tests.fuzz [--thorough].

Builds the library with both, and runs the tests that give it adversarial, mutated and generated texts, with each set of
instructions that this processor has. The reader in Python is the oracle: both must read the same. Ends with 1 where a
test fails or a sanitizer speaks, and with 0 and a sentence where there is no compiler that has sanitizers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_backend.compilers import Compiler, run_compiler
from build_backend.targets import tag_local_platform
from perfdoctor.trace.scanner import core_sources

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
TESTS = [
    "tests/trace/kineto/test_fuzz.py",
    "tests/trace/kineto/test_event_templates.py",
    "tests/trace/scanner",
    "tests/trace/tables/test_nesting.py",
    "tests/reporters/chrome_trace/test_copy_events.py",
]
THOROUGH = ["tests/trace/kineto/test_readers_agree.py", "tests/savings/test_replay.py"]
INSTRUCTIONS = "PERFDOCTOR_FUZZ_INSTRUCTIONS"
FOLDER = "PERFDOCTOR_FUZZ_LIBRARY"


def build_library(command: str, folder: Path) -> Path:
    """Build the library with sanitizers in a folder; returns its file."""
    library = folder / core_sources.library_name()
    sources = [file for file in core_sources.source_files() if file.suffix == ".c"]
    named = f'-DPERFDOCTOR_SOURCES="{core_sources.hash_sources()}"'
    here = Compiler((command,), sys.platform, tag_local_platform())
    run_compiler(here, sources, library, (*SANITIZERS, *STRICT, named))
    return library


def find_runtimes(compiler: str) -> list[str]:
    """The sanitizers' own libraries, which must be loaded before all others; none where the compiler has none."""
    asked = [[compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    paths = [subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip() for each in asked]
    return paths if all(os.path.isabs(path) for path in paths) else []


def list_instructions(library: Path, runtimes: list[str]) -> list[str]:
    """The sets of instructions that this processor has."""
    program = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1])\n"
        "print(*[name for name in ('plain', 'neon', 'avx2', 'avx512') if library.perfdoctor_restrict(name.encode())])"
    )
    command = [sys.executable, "-c", program, str(library)]
    environment = os.environ | {"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


def run_tests(folder: Path, runtimes: list[str], instructions: str, seconds: float, tests: list[str]) -> bool:
    """Run tests with one set of instructions; returns whether they passed."""
    environment = os.environ | {
        # Python itself frees little at its end, and has a handler for crashes that would hide the sanitizers' report.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1:allow_user_segv_handler=0:exitcode=99",
        "LD_PRELOAD": " ".join(runtimes),
        "PERFDOCTOR_FUZZ_SECONDS": str(seconds),
        "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "ci"),
        INSTRUCTIONS: instructions,
        FOLDER: str(folder),
    }
    options = ["-q", "-n", "0", "-s", "-p", "no:faulthandler", "-p", "tests.fuzz.sanitized"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    print(f"+ {instructions}: {' '.join(tests)}", flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("PERFDOCTOR_FUZZ_SECONDS", "60")))
    parser.add_argument("--thorough", action="store_true", help="more tests, some minutes for each set of instructions")
    options = parser.parse_args()
    tests = TESTS + (THOROUGH if options.thorough else [])
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    runtimes = find_runtimes(compiler) if compiler and sys.platform == "linux" else []
    if not compiler or not runtimes:
        print("note: no gcc with AddressSanitizer here, the C library is not fuzzed")
        return 0
    with tempfile.TemporaryDirectory(prefix="perfdoctor-fuzz-") as folder:
        library = build_library(compiler, Path(folder))
        sets = list_instructions(library, runtimes)
        seconds = options.seconds / len(sets)
        passed = [run_tests(Path(folder), runtimes, instructions, seconds, tests) for instructions in sets]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
