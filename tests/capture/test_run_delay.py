"""The run delay of a thread: read again and again, in the thread, in its children, and after its file was closed."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from perfdoctor.capture.inject._perfdoctor_inject import core_usage
from perfdoctor.capture.inject._perfdoctor_inject.core_usage import read_queued_ns

pytestmark = pytest.mark.skipif(read_queued_ns() is None, reason="this system does not say it")


def of_this_thread() -> int:
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        return int(file.read().split()[1])


def test_it_is_that_of_the_calling_thread() -> None:
    read_queued_ns()
    for _ in range(3):
        least, found, most = of_this_thread(), read_queued_ns(), of_this_thread()
        assert found is not None
        assert least <= found <= most


def test_each_thread_has_its_own_and_many_threads_leave_few_files_open() -> None:
    found: list[int | None] = []
    for _ in range(3 * core_usage._MAX_OPEN_FILES):
        thread = threading.Thread(target=lambda: found.extend((read_queued_ns(), read_queued_ns())))
        thread.start()
        thread.join()
    assert None not in found
    assert len(core_usage._open_files) <= core_usage._MAX_OPEN_FILES


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_the_program_has_closed_is_opened_again() -> None:
    read_queued_ns()
    descriptor = core_usage._open_files.get(threading.get_native_id())
    if descriptor is not None:
        os.close(descriptor)
    for _ in range(2):
        least, found, most = of_this_thread(), read_queued_ns(), of_this_thread()
        assert found is not None
        assert least <= found <= most
