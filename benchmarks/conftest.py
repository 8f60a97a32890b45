"""Traces to measure on, processes to measure, and a table of ratios at the end."""

from __future__ import annotations

import gzip
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parent / "sample_traces" / "host-device-sync.json.gz"
REAL = HERE.parent.parent / "shared" / "traces" / "v100-bare-list-workers0.json.gz"
RAW_BYTES = 30_000_000

sys.path.insert(0, str(HERE))  # importlib mode puts no test folder on the path

from make_trace import lengthen  # noqa: E402
from measure import LINES, tell  # noqa: E402


@dataclass(frozen=True, slots=True)
class Traces:
    """One trace in both forms, and the size of its text."""

    raw: Path
    packed: Path

    @property
    def raw_bytes(self) -> int:
        """Size of the JSON text."""
        return self.raw.stat().st_size


@pytest.fixture(scope="session", params=["repeated", "real"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """30 MB of a sample's steps, and a real trace of 30 MB where the shared ones are there."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "real" and not REAL.is_file():
        pytest.skip("the shared trace corpus (../shared) is not here")
    raw, packed = folder / "trace.json", folder / "trace.json.gz"
    if request.param == "real":
        raw.write_bytes(gzip.decompress(REAL.read_bytes()))
    else:
        lengthen(SAMPLE, raw, RAW_BYTES)
    packed.write_bytes(gzip.compress(raw.read_bytes(), 6, mtime=0))
    return Traces(raw, packed)


@pytest.fixture
def compare(benchmark, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Measures something against something else, turn by turn, and tells the ratio of the medians."""

    def measure(label: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7) -> None:
        others: list[float] = []

        def other() -> None:
            began = time.perf_counter()
            theirs()
            others.append(time.perf_counter() - began)

        # The machine's pace changes from minute to minute: the two take turns, so both see the same.
        benchmark.pedantic(ours, setup=other, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is not None:
            median, other_median = benchmark.stats.stats.median, statistics.median(others[-rounds:])
            ratio = median / other_median
            tell(request, f"{label}: {median:.3f} s / {other_median:.3f} s = {ratio:.2f}")

    return measure


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The ratios, which pytest-benchmark's own table does not show."""
    lines = terminalreporter.config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("what the targets are about")
        for line in lines:
            terminalreporter.write_line(line)
