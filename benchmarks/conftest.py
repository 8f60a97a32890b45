"""Fixtures: traces of 30 MB, and a comparison of two contenders in turns; ratios are printed at the end."""

from __future__ import annotations

import gzip
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.lengthen_trace import lengthen_trace
from benchmarks.measure import SUMMARY_LINES, add_summary_line

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE = REPOSITORY / "sample_traces" / "host-device-sync.json.gz"
REAL = REPOSITORY.parent / "shared" / "traces" / "v100-bare-list-workers0.json.gz"
TEXT_BYTES = 30_000_000


@dataclass(frozen=True, slots=True)
class Traces:
    """One trace as two files: JSON text and gzip."""

    raw: Path
    packed: Path

    @property
    def raw_bytes(self) -> int:
        """Size of the JSON text."""
        return self.raw.stat().st_size


@pytest.fixture(scope="session", params=["repeated", "real"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """A sample repeated to 30 MB, and a real trace of 30 MB where the shared traces are available."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "real" and not REAL.is_file():
        pytest.skip("the shared trace corpus (../shared) is not here")
    raw, packed = folder / "trace.json", folder / "trace.json.gz"
    if request.param == "real":
        raw.write_bytes(gzip.decompress(REAL.read_bytes()))
    else:
        lengthen_trace(SAMPLE, raw, TEXT_BYTES)
    packed.write_bytes(gzip.compress(raw.read_bytes(), 6, mtime=0))
    return Traces(raw, packed)


@pytest.fixture
def compare(benchmark, request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that measures ours against theirs and adds the ratio of the medians to the summary."""

    def measure(label: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7) -> None:
        their_seconds: list[float] = []

        def time_theirs() -> None:
            start = time.perf_counter()
            theirs()
            their_seconds.append(time.perf_counter() - start)

        # The speed of the machine changes from minute to minute. The contenders take turns, so both see the same load.
        benchmark.pedantic(ours, setup=time_theirs, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is not None:
            median, their_median = benchmark.stats.stats.median, statistics.median(their_seconds[-rounds:])
            ratio = median / their_median
            add_summary_line(request, f"{label}: {median:.3f} s / {their_median:.3f} s = {ratio:.2f}")

    return measure


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the ratios, which pytest-benchmark's own table does not show."""
    lines = terminalreporter.config.stash.get(SUMMARY_LINES, [])
    if lines:
        terminalreporter.section("compared with the targets in benchmarks/README.md")
        for line in lines:
            terminalreporter.write_line(line)
