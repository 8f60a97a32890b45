"""Which lines are the user's: the code of torch, of libraries and of perfdoctor is recognised by its folder."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import traceback
from types import CodeType, FrameType
from typing import Any

import torch

from .tracebacks import OWN_FOLDER

TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
# Libraries lie in further folders in an environment that shares another one's, or beside those of the user alone.
_PACKAGE_FOLDERS = [each for each in sys.path if os.path.basename(each) in ("site-packages", "dist-packages")]
_PYTHON_FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARY_FOLDERS = tuple({os.path.abspath(each) + os.sep for each in (*_PYTHON_FOLDERS, *_PACKAGE_FOLDERS)})
PERFDOCTOR_FOLDER = os.path.abspath(os.path.join(OWN_FOLDER, *[os.pardir] * 3)) + os.sep
FOREIGN_PREFIXES = (TORCH_FOLDER, PERFDOCTOR_FOLDER, *LIBRARY_FOLDERS, "<frozen")
# What stands around torch's code in a stack and is nobody's line: `skip_file` adds the files of changes.
_skipped_prefixes: tuple[str, ...] = (TORCH_FOLDER, OWN_FOLDER, "<frozen")

Location = dict[str, Any]


def skip_file(file: str) -> None:
    """Let no line of this file be taken for the user's: it holds a change that a trial applies."""
    global _skipped_prefixes
    _skipped_prefixes = (*_skipped_prefixes, os.path.abspath(file))


def user_location(frame: FrameType | None) -> Location | None:
    """The innermost line of the user's code; without any, the innermost line of a library other than torch.

    File, line and function; None when the whole stack is torch's.
    """
    outside_torch: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_skipped_prefixes):
            outside_torch = outside_torch or frame
            if not name.startswith(LIBRARY_FOLDERS):
                outside_torch = frame
                break
        frame = frame.f_back
    return None if outside_torch is None else _locate(outside_torch.f_code, outside_torch.f_lineno)


def _locate(code: CodeType, line: int) -> Location:
    return {"file": name_file(code.co_filename), "line": line, "function": code.co_name}


def error_location(error: BaseException) -> Location | None:
    """The innermost line of the user's code that an error has passed, else of a library other than torch."""
    lines = list(traceback.walk_tb(error.__traceback__))
    for is_found in (is_user_file, lambda file: not file.startswith(_skipped_prefixes)):
        for frame, line in reversed(lines):
            if is_found(frame.f_code.co_filename):
                return _locate(frame.f_code, line)
    return None


def constructor_location(frame: FrameType | None, made: Any) -> Location | None:
    """The user's line that makes an object, outside of the constructors of its class and of the classes above it.

    The search begins at `frame`, within or outside these constructors.
    """
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
        if frame.f_locals.get(frame.f_code.co_varnames[0]) is not made:
            break
        frame = frame.f_back
    return user_location(frame)


def code_location(function: Any) -> Location | None:
    """Where a function, a method or the `__call__` of an object is written; None for what is torch's or not Python's.

    A `functools.partial` is written where its function is.
    """
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None and function is not None and not isinstance(function, type):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    if code is None or code.co_filename.startswith(_skipped_prefixes):
        return None
    return _locate(code, code.co_firstlineno)


def user_line(frame: FrameType | None) -> str | None:
    """`@file:line function` of the innermost frame of the user's code, else of a library other than torch.

    This runs for every torch call of the evidence window, so that the room of each file is found once.
    """
    outside_torch: FrameType | None = None
    while frame is not None:
        room = _find_room(frame.f_code.co_filename)
        if room == _USER:
            break
        if room == _LIBRARY and outside_torch is None:
            outside_torch = frame
        frame = frame.f_back
    frame = frame or outside_torch
    return None if frame is None else f"@{name_file(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def name_file(file: str) -> str:
    """The name of a file for the user: In[5] for the code of a notebook's cell, which has a file name of no file.

    linecache then has the cell's lines under that name as well, for the report that is made in the same notebook.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return file
    try:
        found = ipython.get_ipython().compile.format_code_name(file)
        if found is None:
            return file
        if linecache.cache.get(found[1]) is not linecache.cache[file]:
            linecache.cache[found[1]] = linecache.cache[file]
        return str(found[1])
    except (AttributeError, TypeError, KeyError, IndexError):  # no notebook runs, or IPython is older than 8
        return file


_TORCH, _LIBRARY, _USER = 1, 2, 3


@functools.cache
def _find_room(file: str) -> int:
    if file.startswith((TORCH_FOLDER, OWN_FOLDER)):
        return _TORCH
    # "<string>" is what dataclasses generate; of `python -c` there is no other frame, which is found all the same.
    return _LIBRARY if file.startswith((*LIBRARY_FOLDERS, "<frozen", "<string>")) else _USER


def is_user_file(file: str) -> bool:
    """Whether a file, by the name in its code, is the user's; each is looked at once."""
    return _find_room(file) == _USER


def is_foreign_file(file: str) -> bool:
    """Whether a file, named as the profiler names it, belongs to a library or to perfdoctor."""
    return absolute_path(file).startswith(FOREIGN_PREFIXES)


@functools.lru_cache(maxsize=4096)
def absolute_path(file: str) -> str:
    """The full path of a file that the profiler names without the folder of sys.path in which Python found it."""
    if os.path.isabs(file) or file.startswith("<"):
        return file
    for folder in (*sys.path, os.path.dirname(os.path.dirname(TORCH_FOLDER))):
        path = os.path.abspath(os.path.join(folder, file))
        if os.path.exists(path):
            return path
    return file
