"""The machine code of the kernel: compiled by numba once a machine, and then loaded from disk without numba.

Importing numba takes 0.4 s and loading what it keeps of these functions 0.3 s more; the object file that its compiler
makes of them is loaded by llvmlite in less than 0.1 s. It lies beside the package's compiled Python, else in the user's
cache folder; where neither can be written, every process compiles anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from perfdoctor.trace import layout, times

_SOURCES: Final = ("machine.py", "words.py", "grammar.py", "events.py")
_NAME_BYTES = 512  # the name of the function stands before the object code, and before both a hash of them
_HASH_BYTES = 32
_lock = threading.Lock()
_loaded: list[Any] = []  # what must live as long as the machine code, and that code as a function


def enter(operation: int, *arguments: int) -> int:
    """Run an operation of the kernel; see `events.enter`. Other threads of Python go on meanwhile."""
    if not _loaded:
        load()
    result, error = ctypes.c_int64(), ctypes.c_void_p()
    padded = (*arguments, *(0,) * (5 - len(arguments)))
    status = _loaded[-1](ctypes.byref(result), ctypes.byref(error), operation, *padded)
    if status:
        raise AssertionError(f"the compiled scanner ended with status {status}")
    return result.value


def load() -> None:
    """Load the machine code, from disk where it is there already."""
    with _lock:
        if not _loaded:
            import llvmlite.binding as llvm

            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            code = _from_disk() or _to_disk(_compile())
            _loaded.extend(_linked(llvm, code))


def is_loaded() -> bool:
    """Whether this process has the machine code already."""
    return bool(_loaded)


def kept_in() -> Path | None:
    """The folder with machine code on disk, most likely for this machine; llvmlite is not imported to find out."""
    return next((folder for folder in _folders() if any(folder.glob(f"kernel-{_of_sources()}-*.bin"))), None)


def _compile() -> bytes:
    """Compile with numba; the name of the function and the object code."""
    import llvmlite.binding as llvm
    from numba import types

    from perfdoctor.trace.kernel.events import enter as dispatcher

    signature = (types.int64,) * 6
    dispatcher.compile(signature)  # type: ignore[attr-defined]
    overload = dispatcher.overloads[signature]  # type: ignore[attr-defined]
    module = llvm.parse_assembly(dispatcher.inspect_llvm(signature))  # type: ignore[attr-defined]
    name = overload.fndesc.llvm_func_name.encode()
    return bytes(name.ljust(_NAME_BYTES)) + bytes(_machine(llvm).emit_object(module))


def _linked(llvm: Any, code: bytes) -> Iterator[Any]:
    """Give the object code a place in memory; what must be kept alive, and last the function."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code[_NAME_BYTES:]))
    engine.finalize_object()
    yield engine
    # A compiled function of numba returns a status, and through pointers its result and an exception.
    pointers = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *(ctypes.c_int64,) * 6)
    yield kind(engine.get_function_address(code[:_NAME_BYTES].decode().rstrip()))


def _machine(llvm: Any) -> Any:
    """The machine to compile for: this one, with all that it can do."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(llvm), opt=3, jit=True
    )


def _features(llvm: Any) -> str:
    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # of a machine that LLVM does not know
        return ""


def _from_disk() -> bytes | None:
    """The code kept for this very machine, if it is there and whole."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            data = (folder / _file_name()).read_bytes()
            if hashlib.sha256(data[_HASH_BYTES:]).digest() == data[:_HASH_BYTES]:
                return data[_HASH_BYTES:]
    return None


def _to_disk(code: bytes) -> bytes:
    """Keep the code in the first folder that can be written; returns it."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder, prefix="kernel-", suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.chmod(temporary, 0o644)  # what one user installs another may load
            os.replace(temporary, folder / _file_name())
            break
    return code


def _folders() -> Iterator[Path]:
    """Where machine code may lie."""
    yield Path(__file__).parent / "__pycache__"
    with contextlib.suppress(ImportError, RuntimeError):
        from platformdirs import user_cache_path

        yield user_cache_path("perfdoctor", appauthor=False)


def _file_name() -> str:
    import llvmlite.binding as llvm

    machine = f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {_features(llvm)}"
    return f"kernel-{_of_sources()}-{hashlib.sha256(machine.encode()).hexdigest()[:16]}.bin"


def _of_sources() -> str:
    """A hash of everything but the machine that decides what the code is."""
    mixed = hashlib.sha256(f"{sys.version} {_version('numba')} {_version('llvmlite')}".encode())
    sources = [Path(__file__).with_name(name) for name in _SOURCES]
    for source in (*sources, Path(layout.__file__), Path(times.__file__)):
        mixed.update(source.read_bytes())
    return mixed.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
