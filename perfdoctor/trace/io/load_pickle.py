"""Load a pickle of plain data without executing anything in it.

A pickle is a program, and may call any function that Python can import. What torch writes needs none of that:
dictionaries, lists, tuples, texts and numbers, each of which stands in the file. So the file is walked first: any other
instruction, and a number of objects or a place in the memo that no such file needs, refuses it before Python's loader
sees it.
"""

from __future__ import annotations

import pickle
import re
from io import BytesIO
from typing import Any, Never

from perfdoctor.errors import TraceError

MAX_BYTES = 1 << 30
_MAX_CONTAINERS = 50_000_000  # dictionaries and lists take 60 bytes each when they are empty
# Instructions whose length is known, many at a time: a walk in Python over each takes a second for 2 MB.
_NUMBER = rb"(?:K.|M..|J.{4}|\x8a(?:\x06.{6}|\x05.{5}|\x01.|\x02..|\x03...|\x04.{4}|\x07.{7}|\x08.{8}|\x09.{9}))"
# A tuple holds two numbers, as the id of a pool does, or two texts, as the name of a group does; that one has no place
# in the memo: the hash of one of tuples of tuples may take for ever.
_GET, _PAIR = rb"(?:h.|j.{4})", rb"\x86(?![qr\x94])"
_PLAIN = re.compile(
    rb"((?:[()\]}N\x88\x89\x94saue]|[q\x80].|"
    + _GET
    + rb"(?:"
    + _GET
    + _PAIR
    + rb"|(?![X\x8c\x8d\x86]))|"
    + _NUMBER
    + rb"(?:"
    + _NUMBER
    + rb"\x86)?|[G\x95].{8})*+)("
    + _GET
    + rb")?",
    re.DOTALL,
)
_END_OF_PAIR = re.compile(_PAIR)
_LENGTH_BYTES = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # of texts
_PUT, _STOP = ord("r"), ord(".")
_NAMES_CODE = frozenset(b"cioRbPQ\x81\x82\x83\x84\x92\x93")


_SNAPSHOT = "give the file that torch.cuda.memory._dump_snapshot writes"


class _CodeError(Exception):
    """A pickle names code."""


class _DamageError(Exception):
    """A pickle is damaged at this byte."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, _: Any) -> Never:
        raise pickle.UnpicklingError("it names an object outside of it")


def load_plain_pickle(data: bytes, path: str, kind: str = "snapshot", instead: str = _SNAPSHOT) -> Any:
    """The value of a pickle of dictionaries, lists, tuples, texts and numbers.

    Args:
        data: The pickle, of protocol 2 or later.
        path: The name of the file, for messages.
        kind: What it should be, for messages.
        instead: What to give if it is none.

    Raises:
        TraceError: It holds anything else, is damaged, or is larger than any such file.
    """
    if len(data) > MAX_BYTES or data.count(b"}") + data.count(b"]") > _MAX_CONTAINERS:
        raise TraceError(
            f"{path}: larger than any {kind} that can be read here (1 GiB); record fewer entries"
            + " (max_entries)" * (instead == _SNAPSHOT)
        )
    try:
        _walk(data)
        return _PlainUnpickler(BytesIO(data)).load()
    except _CodeError:
        raise TraceError(
            f"{path}: a pickle that makes objects by calling Python code, so not loaded, and no {kind}; {instead}"
        ) from None
    except Exception as error:  # whatever a damaged file makes of the loader's stack
        place = error.args[0] if isinstance(error, _DamageError) else len(data)
        raise TraceError(
            f"{path}: a pickle that is cut short or damaged at byte {place}, or no {kind}; {instead}"
        ) from error


def _walk(data: bytes) -> None:
    """Look at each instruction without executing any.

    Raises:
        _CodeError: One of them is not for plain data.
        _DamageError: The file ends before the last, or has one that no such file has.
    """
    position = puts = 0
    items = 0  # texts right before this position, each by itself or from the memo
    while True:
        match = _PLAIN.match(data, position)
        if match is not None:
            position, items = match.end(), (0 if match[1] else items) + bool(match[2])
        if items >= 2 and (pair := _END_OF_PAIR.match(data, position)) is not None:
            position, items = pair.end(), 0
            continue
        code = data[position] if position < len(data) else None
        if code == _STOP:
            return
        if code == _PUT:
            # The memo grows to the largest place that is named: in a real file they are counted up.
            place = int.from_bytes(data[position + 1 : position + 5], "little")
            if place > puts + 256:
                raise _DamageError(position)
            puts, position = puts + 1, position + 5
        elif code in _LENGTH_BYTES:
            begin = position + 1 + _LENGTH_BYTES[code]
            position = min(begin + int.from_bytes(data[position + 1 : begin], "little"), len(data))
            position += 2 * (data[position : position + 1] == b"q")
            items += 1
        elif code in _NAMES_CODE:
            raise _CodeError
        else:
            raise _DamageError(position)
