"""What the names of copies say, in the spellings of CUDA, ROCm and Nsight Systems."""

from __future__ import annotations

import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.vocabulary import COPY_DIRECTIONS, DTOH, HOST, HOST_MEMORY, HTOD, PAGEABLE, PINNED


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "Pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "Pinned"),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", "Pageable"),
        ("Memcpy DtoH (Device Static -> Pinned)", "DtoH", "Pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", "unknown"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", "unknown"),
        ("Memcpy HtoH (Pinned -> Pageable)", "HtoH", "Pageable"),
        ("Memcpy HtoD (Managed -> Device)", "HtoD", "unknown"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", "Host"),
        ("Memcpy Unknown (Host -> Device)", "HtoD", "Host"),
        ("CopyHostToDevice", "HtoD", "Host"),
        ("CopyDeviceToHost", "DtoH", "Host"),
        ("CopyDeviceToDevice", "DtoD", "unknown"),
        ("Memcpy HtoA (Pinned -> Array)", "unknown", "Pinned"),
        ("Memcpy Unknown (Unknown -> Unknown)", "unknown", "unknown"),
        ("", "unknown", "unknown"),
    ],
)
def test_a_name_says_the_direction_and_the_kind_of_host_memory(name: str, direction: str, memory: str) -> None:
    kinds = copy_kinds_of(TraceBuilder().memcpy(name, 0, 1).trace())
    assert [COPY_DIRECTIONS[code] for code in kinds.direction] == [direction]
    assert [HOST_MEMORY[code] for code in kinds.host_memory] == [memory]
    assert kinds.with_host.tolist() == [direction not in ("DtoD", "PtoP")]


def test_a_kernel_is_no_copy_whatever_its_name() -> None:
    trace = TraceBuilder().kernel("Memcpy HtoD (Pageable -> Device)", 0, 1).memcpy("DtoH", 2, 1).memset(4, 1).trace()
    kinds = copy_kinds_of(trace)
    assert (len(kinds), kinds.direction.tolist()) == (3, [-1, DTOH, -1])
    assert kinds.host_memory.tolist() == [-1, PAGEABLE, -1]
    assert kinds.with_host.tolist() == [False, True, False]
    assert copy_kinds_of(trace) is kinds


def test_copies_are_chosen_by_direction_and_memory() -> None:
    trace = TraceBuilder().memcpy("HtoD", 0, 1).memcpy("HtoD", 2, 1, pinned=True).memcpy("DtoH", 4, 1)
    kinds = copy_kinds_of(trace.memcpy("Memcpy HtoD (Host -> Device)", 6, 1).trace())
    assert kinds.matches(HTOD).tolist() == [True, True, False, True]
    assert kinds.matches(HTOD, PAGEABLE, HOST).tolist() == [True, False, False, True]
    assert kinds.matches(DTOH, PINNED).tolist() == [False] * 4
