"""Object code is loaded without LLVM where it is understood, with LLVM where it is not, and does the same."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

import pytest

from perfdoctor.trace.scanner import machine_code, scan
from perfdoctor.trace.scanner import object_code as objectcode
from perfdoctor.trace.scanner import scanner_code as native
from perfdoctor.trace.scanner.machine_code import Native

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="object code of another kind is left to LLVM"
)

NAME = b"plus"
PLUS = b"\x48\x8d\x05\x00\x00\x00\x00\x48\x8b\x00\x48\x01\xf8\xc3"  # lea rax, [rip + ...]; mov rax, [rax]; add; ret
ADDED = 1 << 40


def object_file(
    *, machine: int = 62, flags: int = 2, kind: int = 1, relocation: int = 2, home: int = 2, name: bytes = NAME
) -> bytes:
    """A file with a function that adds a number to one from another section."""
    contents = [
        (b"", 0, 0, 0, 0),
        (PLUS, 1, 6, 16, 0),
        (struct.pack("<q", ADDED), kind, flags, 64, 0),
        (struct.pack("<QIIq", 3, relocation, 2, -4), 4, 0, 8, 1),
        (struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 18, 0, 1, 0, len(PLUS))
         + struct.pack("<IBBHQQ", 0, 1, 0, home, 0, 8), 2, 0, 8, 0),
        (b"\0" + name + b"\0", 3, 0, 1, 0),
    ]  # fmt: skip
    body, table = bytearray(64), b""
    for content, section, flag, align, info in contents:
        body += bytes(-len(body) % 8)
        link = 5 if section == 2 else 4
        table += struct.pack("<IIQQQQIIQQ", 0, section, flag, 0, len(body), len(content), link, info, align, 0)
        body += content
    body += bytes(-len(body) % 8)
    body[:20] = struct.pack("<6s10xHH", b"\x7fELF\x02\x01", 1, machine)
    struct.pack_into("<Q", body, 40, len(body))
    struct.pack_into("<HH", body, 58, 64, len(contents))
    return bytes(body + table)


def test_a_function_finds_what_lies_in_another_section() -> None:
    loaded = objectcode.function_in(object_file(), NAME)
    assert loaded is not None
    _, address = loaded
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
    assert [function(number) for number in (0, 7, -ADDED)] == [ADDED, ADDED + 7, 0]


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"\xcf\xfa\xed\xfe" + bytes(100),
        object_file(machine=183),
        object_file(flags=3),
        object_file(kind=8),
        object_file(relocation=1),
        object_file(home=0),
        object_file(home=0xFFF2),
    ],
    ids=["empty", "of a Mac", "for ARM", "writable", "zeros", "absolute", "undefined", "common"],
)
def test_what_is_not_understood_is_left_to_llvm(code: bytes) -> None:
    assert objectcode.function_in(code, NAME) is None


@pytest.fixture
def left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> Native:
    """The scanner's code as LLVM loads it."""
    scan.warm()
    monkeypatch.setattr(objectcode, "function_in", lambda *_: None)
    loaded = Native("kernel", (), 6, lambda: None)
    kept = native.enter.from_disk()
    if kept is None:
        pytest.skip("no folder for machine code can be written")
    monkeypatch.setattr(loaded, "from_disk", lambda: kept)
    return loaded


def test_llvm_loads_the_same_code(left_to_llvm: Native) -> None:
    text = b"thread" + bytes(128)
    answers = []
    for enter in (native.enter, left_to_llvm):
        table = scan.Interner()
        buffer = ctypes.create_string_buffer(text, len(text))
        address = ctypes.addressof(buffer)
        answers.append([enter(1, address, address + size, table.control.ctypes.data) for size in (6, 3, 6)])
    assert answers == [[0, 1, 0], [0, 1, 0]]


def test_the_code_is_kept_for_one_kind_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    own = native.enter._file_name()
    monkeypatch.setattr(machine_code, "_processor", lambda: b"another")
    assert native.enter._file_name() != own
