"""The sessions that CI and the workflows run: every Python, the oldest and the newest dependencies, linters, docs.

nox -s tests --python 3.13         # everything, with torch, which pip downloads
nox -s analysis                    # without torch, on every Python that is here; others are skipped with a line
nox -s lowest newest nonroot
nox -s tests -- tests/trace -k zst # what follows -- is pytest's
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = PYTHONS[0]
FUZZ_SECONDS = os.environ.get("PERFDOCTOR_FUZZ_SECONDS", "60")

nox.options.sessions = ("lint", "analysis", "docs")

# The shims of pyenv find only what this variable names.
_PYENV = sorted(path.name for path in Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/3.*"))
os.environ.setdefault("PYENV_VERSION", ":".join(name for name in _PYENV if name.startswith(PYTHONS)))


def run_tests(session: nox.Session, **environment: str) -> None:
    """Run the tests that are named after --, or all: first those in-process, then those that start programs."""
    for chosen in [session.posargs] if session.posargs else ([], ["-m", "process"]):
        session.run("pytest", "-n", "auto", *chosen, env=environment)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all tests; pip chooses the torch, whose CUDA build takes gigabytes."""
    session.install("-e", ".[test]", "-c", "constraints.txt")
    run_tests(session, PERFDOCTOR_TEST_DOWNLOADS="1")


@nox.session(python=PYTHONS)
def analysis(session: nox.Session) -> None:
    """Run all tests in an environment without torch; what records programs is skipped."""
    session.install("-e", ".[test-analysis]", "-c", "constraints.txt")
    run_tests(session)


@nox.session(python=["3.11", "3.13"])
def lowest(session: nox.Session) -> None:
    """Run the tests that need no torch with the lowest versions that pyproject.toml allows."""
    session.install("uv")
    pins = str(Path(session.create_tmp()) / "lowest.txt")
    wanted = ("--resolution", "lowest-direct", "--only-binary", ":all:", "--no-emit-package", "perfdoctor")
    session.run("uv", "pip", "compile", "--quiet", *wanted, "--extra", "test-analysis", "-o", pins, "pyproject.toml")
    session.install("-r", pins)
    session.install("--no-deps", "-e", ".")
    run_tests(session)


@nox.session(python=OLDEST)
def newest(session: nox.Session) -> None:
    """Run all tests with the newest versions of everything."""
    session.install("--upgrade", "--upgrade-strategy", "eager", "-e", ".[test]")
    run_tests(session)


@nox.session(python=OLDEST)
def laws(session: nox.Session) -> None:
    """Try every property on many examples, as at night."""
    session.install("-e", ".[test-analysis]", "-c", "constraints.txt")
    run_tests(session, HYPOTHESIS_PROFILE="nightly")


@nox.session(python=OLDEST)
def coverage(session: nox.Session) -> None:
    """Measure which lines the tests run that start nothing, before a release: it may not fall. It needs ../shared."""
    session.install("-e", ".[test]", "-c", "constraints.txt")
    if not os.path.isdir("../shared/traces"):
        session.error("some lines are run on real traces alone, and ../shared is not here")
    measured = ("--cov=perfdoctor", "--cov=analyzers", "--cov-report=term:skip-covered", "--cov-fail-under=91")
    session.run("pytest", "-n", "auto", *measured, *session.posargs)


@nox.session(python=OLDEST)
def mutants(session: nox.Session) -> None:
    """Put errors into the rules, one at a time: a test of the rule has to fail; what survives is printed."""
    session.install("-e", ".[test-analysis]", "-c", "constraints.txt")
    session.run("python", "-m", "tests.mutate_rules", *session.posargs)


@nox.session(python=OLDEST)
def nonroot(session: nox.Session) -> None:
    """Run the tests that root cannot run, for root under another user."""
    session.install("-e", ".[test-analysis]", "-c", "constraints.txt")
    session.run(".ci/nonroot", "python", *session.posargs, external=True)


@nox.session(python=OLDEST)
def lint(session: nox.Session) -> None:
    """Check format, lints, types and the direction of imports."""
    session.install("-e", ".[dev]", "-c", "constraints.txt")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(python=OLDEST)
def docs(session: nox.Session) -> None:
    """Build the docs; a link or a name that leads nowhere is an error."""
    session.install("-e", ".[docs]", "-c", "constraints.txt")
    site = str(Path(session.create_tmp()) / "site")
    session.run("mkdocs", "build", "--strict", "--site-dir", site, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(python=OLDEST)
def fuzz(session: nox.Session) -> None:
    """Feed damaged traces to the C library, under sanitizers, for PERFDOCTOR_FUZZ_SECONDS; 60 unless that is set."""
    session.install("-e", ".[test-analysis]", "-c", "constraints.txt")
    session.run("python", "-m", "tests.fuzz", "--thorough", "--seconds", FUZZ_SECONDS, *session.posargs)
