"""Machine code kept on disk: compiled by numba once a machine, and then loaded without numba.

Importing numba takes 0.4 s and loading what it keeps of the scanner's functions 0.3 s more; the object file that its
compiler makes of them is loaded by llvmlite in less than 0.1 s. It lies beside the package's compiled Python, else in
the user's cache folder; where neither can be written, every process compiles anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_NAME_BYTES: Final = 512  # the name of the function stands before the object code, and before both a hash of them
_HASH_BYTES: Final = 32


class Native:
    """One function of int64 numbers to one, as machine code.

    Args:
        name: What its file is called.
        sources: The files that decide what the code is.
        arguments: How many numbers the function takes; addresses are numbers, too.
        dispatcher: Imports numba and returns the function, made with `machine.compiled`.
    """

    def __init__(self, name: str, sources: Iterable[Path], arguments: int, dispatcher: Callable[[], Any]) -> None:
        self._name = name
        self._sources = (Path(__file__), *sources)
        self._arguments = arguments
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._loaded: list[Any] = []  # what must live as long as the machine code, and that code as a function

    def __call__(self, *arguments: int) -> int:
        """Run the function; what is left out is 0. Other threads of Python go on meanwhile."""
        self.load()
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        padded = (*arguments, *(0,) * (self._arguments - len(arguments)))
        status = self._loaded[-1](ctypes.byref(result), ctypes.byref(error), *padded)
        if status:
            raise AssertionError(f"the compiled {self._name} ended with status {status}")
        return result.value

    def load(self) -> None:
        """Load the machine code, from disk where it is there already."""
        if self._loaded:
            return
        with self._lock:
            if not self._loaded:
                import llvmlite.binding as llvm

                llvm.initialize_native_target()
                llvm.initialize_native_asmprinter()
                code = self.from_disk() or self.to_disk(self._compile())
                self._loaded.extend(self._linked(llvm, code))

    def is_loaded(self) -> bool:
        """Whether this process has the machine code already."""
        return bool(self._loaded)

    def kept_in(self) -> Path | None:
        """The folder with machine code on disk, most likely for this machine; llvmlite is not imported to find out."""
        pattern = f"{self._name}-{self._of_sources()}-*.bin"
        return next((folder for folder in folders() if any(folder.glob(pattern))), None)

    def from_disk(self) -> bytes | None:
        """The code kept for this very machine, if it is there and whole."""
        for folder in folders():
            with contextlib.suppress(OSError):
                data = (folder / self._file_name()).read_bytes()
                if hashlib.sha256(data[_HASH_BYTES:]).digest() == data[:_HASH_BYTES]:
                    return data[_HASH_BYTES:]
        return None

    def to_disk(self, code: bytes) -> bytes:
        """Keep the code in the first folder that can be written; returns it."""
        for folder in folders():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{self._name}-", suffix=".tmp")
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                os.chmod(temporary, 0o644)  # what one user installs another may load
                os.replace(temporary, folder / self._file_name())
                break
        return code

    def _compile(self) -> bytes:
        """Compile with numba; the name of the function and the object code."""
        import llvmlite.binding as llvm
        from numba import types

        dispatcher = self._dispatcher()
        signature = (types.int64,) * self._arguments
        dispatcher.compile(signature)
        module = llvm.parse_assembly(dispatcher.inspect_llvm(signature))
        name = dispatcher.overloads[signature].fndesc.llvm_func_name.encode()
        return bytes(name.ljust(_NAME_BYTES)) + bytes(_machine(llvm).emit_object(module))

    def _linked(self, llvm: Any, code: bytes) -> Iterator[Any]:
        """Give the object code a place in memory; what must be kept alive, and last the function."""
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
        engine.add_object_file(llvm.ObjectFileRef.from_data(code[_NAME_BYTES:]))
        engine.finalize_object()
        yield engine
        # A compiled function of numba returns a status, and through pointers its result and an exception.
        pointers = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *(ctypes.c_int64,) * self._arguments)
        yield kind(engine.get_function_address(code[:_NAME_BYTES].decode().rstrip()))

    def _file_name(self) -> str:
        import llvmlite.binding as llvm

        machine = f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {_features(llvm)}"
        return f"{self._name}-{self._of_sources()}-{hashlib.sha256(machine.encode()).hexdigest()[:16]}.bin"

    def _of_sources(self) -> str:
        """A hash of everything but the machine that decides what the code is."""
        mixed = hashlib.sha256(f"{sys.version} {_version('numba')} {_version('llvmlite')}".encode())
        for source in self._sources:
            mixed.update(source.read_bytes())
        return mixed.hexdigest()[:16]


def folders() -> Iterator[Path]:
    """Where machine code may lie."""
    yield Path(__file__).parent / "__pycache__"
    with contextlib.suppress(ImportError, RuntimeError):
        from platformdirs import user_cache_path

        yield user_cache_path("perfdoctor", appauthor=False)


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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
