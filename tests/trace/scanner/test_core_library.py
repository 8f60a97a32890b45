"""The C library: what it is built from, what happens where it cannot be used, and each set of instructions."""

from __future__ import annotations

import ctypes
import operator
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.kineto import compiled_reader
from perfdoctor.trace.kineto.reader import parse
from perfdoctor.trace.scanner import core_library, core_sources, layout, scan
from perfdoctor.trace.scanner.core_library import LibraryError, find_problem, load_library

HEADER = core_sources.SOURCES_FOLDER / "perfdoctor.h"
SAMPLE = Path(__file__).parents[3] / "sample_traces" / "host-device-sync.json.gz"
LIBRARY = Path(core_library.__file__).with_name(core_sources.library_name())


@pytest.fixture(autouse=True)
def _best_instructions() -> Iterator[None]:
    yield
    for name in (b"plain", b"neon", b"avx2", b"avx512"):
        load_library().perfdoctor_restrict(name)


def test_the_library_is_built_from_these_sources() -> None:
    assert find_problem() == ""
    assert load_library().perfdoctor_sources().decode() == core_sources.hash_sources()


def read_header() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("structure", [layout.Table, layout.Scan, layout.Copy, layout.Nest])
def test_structures_have_the_fields_of_the_header_in_its_order(structure: type[ctypes.Structure]) -> None:
    name = structure.__name__.lower()
    (body,) = re.findall(rf"struct perfdoctor_{name} {{(.*?)\n}};", read_header(), re.DOTALL)
    fields = [each for line in body.split(";") for each in re.findall(r"(\w+)(?=\s*(?:,|$))", line.strip())]
    assert fields == [field for field, *_ in structure._fields_]


def test_codes_are_those_of_the_header() -> None:
    seen = 0
    for names in re.findall(r"enum \w*\s*{(.*?)}", read_header(), re.DOTALL):
        value = -1
        for entry in filter(None, map(str.strip, names.split(","))):
            name, _, number = map(str.strip, entry.partition("="))
            value = int(number) if number else value + 1
            here = name.removeprefix("PERFDOCTOR_")
            assert getattr(layout, {"SLOTS": "MAX_SLOTS"}.get(here, here)) == value, name
            seen += 1
    assert seen > 35
    assert layout.PLACE.itemsize == 16


def test_without_a_file_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="is not installed; pip install perfdoctor again"):
        load_library(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ" + bytes(200), b"#!/bin/sh\n"])
def test_a_file_that_is_no_library_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LIBRARY.name).write_bytes(content)
    with pytest.raises(LibraryError) as raised:
        load_library(tmp_path)
    assert re.fullmatch(r"\S+ cannot be loaded \(.+\); pip install perfdoctor again", str(raised.value))


def test_another_library_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """One that lacks the functions, as an older one does."""
    import _ctypes

    (tmp_path / LIBRARY.name).write_bytes(Path(_ctypes.__file__).read_bytes())
    with pytest.raises(LibraryError, match="cannot be loaded"):
        load_library(tmp_path)


@pytest.mark.parametrize(("sources", "is_refused"), [("0123456789abcdef", True), ("", False)])
def test_a_library_of_other_sources_is_refused_where_there_are_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str, is_refused: bool
) -> None:
    (tmp_path / LIBRARY.name).write_bytes(LIBRARY.read_bytes())
    monkeypatch.setattr(core_library, "hash_sources", lambda: sources)
    if is_refused:
        with pytest.raises(LibraryError, match=r"was built from other sources than these; pip install -e \."):
            load_library(tmp_path)
    else:
        assert load_library(tmp_path).perfdoctor_sources()


@pytest.mark.process
def test_where_the_library_is_missing_check_says_so_and_traces_are_read(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from perfdoctor.trace.scanner import core_library
core_library._FOLDER = Path({str(tmp_path)!r})
from perfdoctor.cli.main import main
sys.argv = ["perfdoctor", *sys.argv[1:]]
sys.exit(main())
"""
    environment = {name: value for name, value in os.environ.items() if name != "PERFDOCTOR_READER"}
    check, analyze = (
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment | {"COLUMNS": "200"},
        )
        for arguments in (["check"], ["analyze", str(SAMPLE)])
    )
    assert "is not installed" in check.stdout
    assert [line for line in check.stdout.splitlines() if line.startswith("reader") and "missing" in line]
    assert analyze.returncode == 0, analyze.stderr
    assert "Traceback" not in check.stderr + analyze.stderr
    assert "PD102" in analyze.stdout


TEXTS = st.binary(max_size=300)


@given(st.lists(TEXTS, max_size=60))
def test_equal_strings_get_equal_ids(texts: list[bytes]) -> None:
    interner = scan.Interner(4, 256)
    ids = []
    for text in texts:
        interner.make_room(len(text))
        ids.append(interner.intern(text))
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    assert ids == [numbers[text] for text in texts]
    assert interner.texts() == list(numbers)


def test_a_table_without_room_refuses() -> None:
    interner = scan.Interner(2, 256)
    assert interner.intern(b"x" * 200) == layout.GROW
    assert interner.intern(b"one") == 0
    assert interner.intern(b"two") == layout.GROW  # at most half of its places are used
    assert interner.intern(b"one") == 0


def names_that_collided() -> list[bytes]:
    """Names whose words times the odd numbers of an earlier hash have one sum: each word has a top bit or lacks it."""
    odd = (1, 3, 1, 3, 3, 3, 3, 3)  # modulo 4
    bits = [each for each in product((0, 1), repeat=8) if sum(map(operator.mul, each, odd)) % 4 == 0]
    blocks = [b"".join(b"kernel_p" if bit else b"kernel_0" for bit in each) for each in bits]
    return [one + other for one in blocks for other in blocks]


def names_with_swapped_words() -> list[bytes]:
    words = [b"kernel_%d" % number for number in range(6)]
    return [b"".join(each) for each in permutations(words)]


@pytest.mark.parametrize("names", [names_that_collided(), names_with_swapped_words()])
def test_no_hash_is_known_beforehand(names: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        monkeypatch.setattr(scan, "_SECRETS", np.frombuffer(os.urandom(64), np.uint64))
        interner = scan.Interner(14, 1 << 20)
        assert [interner.intern(name) for name in names] == list(range(len(names)))
        places = interner._places
        found.append(set(places["hash"][places["id"] > 0].tolist()))
        assert len(found[-1]) == len(names)
    assert not found[0] & found[1]


EVENTS = (
    b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 12.5, "dur": 3.25,'
    b' "args": {"Input Dims": [[1, 2], [], ["]", "\\"["]], "External id": 7}},\n'
    b'{"ph":"X","cat":"kernel","name":"' + b"k" * 90 + b'","pid":0,"tid":7,"ts":1661203463562179.0005,"dur":14,'
    b'"args":{"device":0,"stream":7,"correlation":12345678901,"grid":[1,2,3],"a":{"b":[{"c":[1,{"d":"}"}]}]}}}  ]}'
)


@pytest.mark.parametrize("instructions", ["plain", "avx2", "avx512", "neon"])
def test_every_set_of_instructions_reads_the_same(instructions: str, content) -> None:
    if not load_library().perfdoctor_restrict(instructions.encode()):
        pytest.skip(f"{instructions} is not there")
    assert load_library().perfdoctor_instructions().decode() == instructions
    reference = content(parse(EVENTS, "x"))
    for block in (1, 16, 64, 100, 1 << 20):
        assert content(parse(EVENTS, "x", block=block)) == reference


def test_instructions_that_are_not_known_are_refused() -> None:
    before = load_library().perfdoctor_instructions()
    assert not load_library().perfdoctor_restrict(b"mmx")
    assert load_library().perfdoctor_instructions() == before


def test_a_run_with_unsound_sizes_is_refused() -> None:
    scanner = scan.Scanner(compiled_reader.PLAN)
    text = np.zeros(layout.PAD + 4, np.uint8)
    run = scanner._run_of
    run.text, run.size, run.begin, run.end, run.last = text.ctypes.data, len(text), 0, 4, 4
    for field, value in (("slots", 64), ("common", 200), ("common", 3), ("end", 5), ("begin", -1)):
        sound = getattr(run, field)
        setattr(run, field, value)
        assert load_library().perfdoctor_run(ctypes.byref(run)) == layout.FAULT, field
        setattr(run, field, sound)
