"""What a program holds at the end of its steps: by malloc's own count, and by pages where nobody counts."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject import process_memory  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.process_memory import HeldMemory, find_malloc_info  # noqa: E402

MB = 1_000_000
needs_malloc_info = pytest.mark.skipif(find_malloc_info() is None, reason="this C library does not count")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """No garbage of earlier tests is collected, and freed, between two looks."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def read_now(memory: HeldMemory) -> int:
    """A look, whether its turn has come or not."""
    memory._pace._next_ns = 0
    kept = memory.read()
    assert kept is not None
    return kept


@needs_malloc_info
def test_what_is_kept_counts_and_what_is_freed_does_not() -> None:
    memory = HeldMemory()
    read_now(memory)
    before = read_now(memory)
    kept = [torch.empty(1_000_000) for _ in range(10)]  # not written: malloc counts what it hands out
    assert 40 * MB <= read_now(memory) - before < 41 * MB
    del kept[5:]
    assert 20 * MB <= read_now(memory) - before < 21 * MB
    kept.clear()
    assert abs(read_now(memory) - before) < MB


@needs_malloc_info
def test_looks_that_take_long_come_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, now = HeldMemory(), [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(time, "thread_time_ns", iter([0, 1000, 5000, 5000]).__next__)
    assert memory.read() is not None  # it took 1000 ns
    now[0] = 199_999
    assert memory.read() is None
    now[0] = 200_000
    assert memory.read() is not None


# In a process of its own: the system takes pages of a large one that has run thousands of tests while it is looked at.
PAGES = """
import ctypes, mmap, os, sys
import torch
from perfdoctor.capture.inject._perfdoctor_inject.process_memory import HeldMemory, find_malloc_info
if sys.argv[1] == "another C library":
    ctypes.CDLL = lambda _: object()
else:
    os.environ["LD_PRELOAD"] = "/usr/lib/libjemalloc.so.2"

def read_now(memory):
    memory._pace._next_ns = 0
    return memory.read()

assert find_malloc_info() is None
memory = HeldMemory()
before = read_now(memory)
kept = torch.ones(10_000_000)
after = read_now(memory)
with open(sys.argv[2], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    assert sum(mapped[::4096]) == 0
    last = read_now(memory)
memory.close()
print(before, after, last)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("why", ["another allocator", "another C library"])
def test_where_malloc_does_not_count_pages_do(why: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(50 * MB))
    command = [sys.executable, "-c", PAGES, why, str(tmp_path / "data")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after, last = map(int, printed.split())
    assert 35 * MB < after - before < 60 * MB
    # Pages of a file, such as a mapped data set, come and go as the system likes.
    assert abs(last - after) < 20 * MB


def test_the_allocator_of_a_gpu_is_asked_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_memory.read_allocated_bytes() is None
    statistics: dict[str, Any] = {"allocated_bytes": {"all": {"current": 7, "peak": 9}}}
    monkeypatch.setattr(process_memory, "cuda_is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda _: statistics, raising=False)
    assert process_memory.read_allocated_bytes() == 7
