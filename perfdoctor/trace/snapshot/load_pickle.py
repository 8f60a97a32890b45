"""Load a pickle of plain data without executing anything in it.

A pickle is a program, and may call any function that Python can import. A snapshot needs none of that: dictionaries,
lists, tuples, texts and numbers, each of which stands in the file. So the file is walked first: any other instruction,
and a number of objects or a place in the memo that no such file needs, refuses it before Python's loader sees it.
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
# A tuple holds two numbers, as the id of a pool does: the hash of one of tuples of tuples may take for ever.
_PLAIN = re.compile(
    rb"(?:[()\]}N\x88\x89\x94saue]|[hq\x80].|j.{4}|" + _NUMBER + rb"(?:" + _NUMBER + rb"\x86)?|[G\x95].{8})*+",
    re.DOTALL,
)
_LENGTH_BYTES = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # of texts
_PUT, _STOP = ord("r"), ord(".")
_NAMES_CODE = frozenset(b"cioRbPQ\x81\x82\x83\x84\x92\x93")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, _: Any) -> Never:
        raise pickle.UnpicklingError("it names an object outside of it")


def load_plain_pickle(data: bytes, path: str) -> Any:
    """The value of a pickle of dictionaries, lists, tuples, texts and numbers.

    Args:
        data: The pickle, of protocol 2 or later.
        path: The name of the file, for messages.

    Raises:
        TraceError: It holds anything else, is damaged, or is larger than any snapshot.
    """
    if len(data) > MAX_BYTES or data.count(b"}") + data.count(b"]") > _MAX_CONTAINERS:
        raise TraceError(
            f"{path}: larger than any snapshot that can be read here (1 GiB); record fewer entries (max_entries)"
        )
    _walk(data, path)
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except Exception as error:  # whatever a damaged file makes of the loader's stack
        raise _damaged_error(path, len(data)) from error


def _walk(data: bytes, path: str) -> None:
    """Look at each instruction without executing any.

    Raises:
        TraceError: One of them is not for plain data, or the file ends before the last.
    """
    position, puts = 0, 0
    while True:
        match = _PLAIN.match(data, position)
        position = match.end() if match else position
        code = data[position] if position < len(data) else None
        if code == _STOP:
            return
        if code == _PUT:
            # The memo grows to the largest place that is named: in a real file they are counted up.
            place = int.from_bytes(data[position + 1 : position + 5], "little")
            if place > puts + 256:
                raise _damaged_error(path, position)
            puts, position = puts + 1, position + 5
        elif code in _LENGTH_BYTES:
            begin = position + 1 + _LENGTH_BYTES[code]
            position = min(begin + int.from_bytes(data[position + 1 : begin], "little"), len(data))
        elif code in _NAMES_CODE:
            raise TraceError(
                f"{path}: a pickle that makes objects by calling Python code, so not loaded, and no snapshot; "
                "give the file that torch.cuda.memory._dump_snapshot writes"
            )
        else:
            raise _damaged_error(path, position)


def _damaged_error(path: str, position: int) -> TraceError:
    return TraceError(
        f"{path}: a pickle that is cut short or damaged at byte {position}, or no snapshot; "
        "give the file that torch.cuda.memory._dump_snapshot writes"
    )
