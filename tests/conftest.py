"""Settings and fixtures of every test: the built-in rules alone, forks with torch, the corpus, files in memory."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest
from fork_server import ForkServer, clean_environment
from hypothesis import settings
from left_out_library import without_library

from perfdoctor.installed_packages import EntryPoint
from perfdoctor.rules import registry

# No deadlines: tests share the machine with the programs that other tests start. Few examples while somebody waits:
# at night there is time for many (`nox -s laws`).
settings.register_profile("perfdoctor", deadline=None, max_examples=25)
# CI judges a change, so it tries the same examples each time; developers' runs look for new ones.
settings.register_profile("ci", settings.get_profile("perfdoctor"), derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("perfdoctor"), max_examples=1000, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "perfdoctor"))

# Threads of programs that tests start sleep while they wait: spinning, those of two programs at a time on two cores
# take each other's time, and a program of 15 s of CPU time takes a minute (torch's libgomp reads this once).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Programs that tests start find the package compiled, and this process the tests: otherwise each program compiles what
# it imports again, for half a second, and the tests take 13 s of each worker.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What runs in the background of a script ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Plugins that happen to be installed change no result: the tests see the entry points of the built-in rules alone.
_all_entry_points = registry.find_entry_points


def _built_in_entry_points(group: str) -> list[EntryPoint]:
    return [point for point in _all_entry_points(group) if point.value.startswith("perfdoctor.analyzers.")]


registry.find_entry_points = _built_in_entry_points

REPOSITORY = Path(__file__).resolve().parent.parent


# What takes another process, a server or a port: tests of that are marked `process`.
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind")
_started: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what comes out")


def pytest_configure(config: pytest.Config) -> None:
    """Let `pytest` alone leave out what `pytest -m process` runs; a named file or folder is run whole."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not process"
    if config.option.markexpr == "not process":
        sys.addaudithook(_note_starts)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test that the mark picks: to import all takes 10 s of each worker."""
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_left_out = {
        "process": "mark.process" not in text and "launcher" not in text,
        "not process": re.search(r"^pytestmark = .*mark\.process", text, re.MULTILINE) is not None,
    }
    return is_left_out.get(config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Put what shares the real traces first, so that one worker has it: each reads and analyses all of them in 30 s."""
    sharing = {"read_once", "find_once", "analyze_once", "report_on"}
    items.sort(key=lambda item: sharing.isdisjoint({*vars(item.module), *item.fixturenames}))


def _note_starts(event: str, _arguments: tuple[object, ...]) -> None:
    if event in _STARTS:
        _started.append(event)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that has started something, or a fixture of it, without the mark."""
    yield
    started = ", ".join(_started)
    _started.clear()
    if started and not item.get_closest_marker("process"):
        pytest.fail(f"{started}: what starts a process or a server is marked `process`")


@cache
def may_read_everything() -> bool:
    """Whether this process may read a file that nobody may read: that of root, and any on Windows."""
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "closed")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0))
        return os.access(path, os.R_OK)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of closed files and folders where there are none, and those of shared material likewise."""
    _started.clear()  # what was started while tests were collected is nobody's
    if item.get_closest_marker("corpus") is not None:
        _find_shared()
    if item.get_closest_marker("nonroot") and may_read_everything():
        pytest.skip("root may read everything; .ci/nonroot runs this test under another user")


@pytest.fixture(scope="module", params=["library", "python"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets tests run with the C library, and as where that cannot be used."""
    with nullcontext() if request.param == "library" else without_library():
        yield


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer | None]:
    """Starts programs with torch in 0.1 s; None without torch, where a Python starts fast enough."""
    if find_spec("torch") is None:
        yield None
        return
    server = ForkServer(tmp_path_factory.mktemp("server"), clean_environment())
    yield server
    server.stop()


@pytest.fixture(scope="session")
def as_forks(fork_server: ForkServer | None) -> Callable[[], AbstractContextManager[None]]:
    """A context in which programs of this Python are forks, also those that perfdoctor starts."""
    return nullcontext if fork_server is None else fork_server.replace_popen


@pytest.fixture
def forks(as_forks: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """The same for a whole test."""
    with as_forks():
        yield


def _find_shared() -> Path:
    """The folder of shared material beside the repository; the test is skipped where it is not mounted."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip("the shared trace corpus (../shared) is not here")
    return folder


shared = pytest.fixture(_find_shared, scope="session", name="shared")


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """The folder of real traces."""
    return shared / "traces"


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system of memory:// URLs, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()
