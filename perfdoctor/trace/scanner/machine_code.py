"""Machine code kept on disk: compiled by numba once a machine, and then loaded without numba.

Importing numba takes 0.4 s and loading what it keeps of the scanner's functions 0.3 s more; the object file that its
compiler makes of them is loaded in a millisecond by `object_code`, or by llvmlite in 25. It lies beside the package's
compiled Python, else in the user's cache folder; where neither can be written, every process compiles anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib.util import find_spec, source_hash
from pathlib import Path
from typing import Any, Final

from perfdoctor.trace.scanner import object_code

_NAME_BYTES: Final = 512  # the name of the function stands before the object code, and before both a hash of them
_HASH_BYTES: Final = 8
_KIND_OF_PROCESSOR: Final = re.compile(rb"(?m)^(?:vendor_id|cpu family|model|stepping|flags)\s*:.*")  # x86


class Native:
    """One function of int64 numbers to one, as machine code.

    Args:
        name: What its file is called.
        sources: The files that decide what the code is.
        arguments: How many numbers the function takes; addresses are numbers, too.
        dispatcher: Imports numba and returns the function, made with `intrinsics.compiled`.
    """

    def __init__(self, name: str, sources: Iterable[Path], arguments: int, dispatcher: Callable[[], Any]) -> None:
        self._name = name
        self._sources = (Path(__file__), Path(object_code.__file__), *sources)
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
                self._loaded.extend(self._function(self.from_disk() or self.to_disk(self._compile())))

    def is_loaded(self) -> bool:
        """Whether this process has the machine code already."""
        return bool(self._loaded)

    def cached_in(self) -> Path | None:
        """The folder with machine code on disk, most likely for this machine: to be sure would need llvmlite."""
        pattern = f"{self._name}-{self._of_sources}-*.bin"
        return next((folder for folder in folders() if any(folder.glob(pattern))), None)

    def from_disk(self) -> bytes | None:
        """The code that is on disk for this very machine; None where there is none, or the file is damaged."""
        for folder in folders():
            with contextlib.suppress(OSError):
                data = (folder / self._file_name()).read_bytes()
                if source_hash(data[_HASH_BYTES:]) == data[:_HASH_BYTES]:
                    return data[_HASH_BYTES:]
        return None

    def to_disk(self, code: bytes) -> bytes:
        """Keep the code in the first folder that can be written; returns it."""
        import tempfile

        for folder in folders():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{self._name}-", suffix=".tmp")
                with os.fdopen(handle, "wb") as file:
                    file.write(source_hash(code) + code)
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
        code = bytes(_machine(llvm, reloc="pic", codemodel="small").emit_object(module))
        if object_code.function_in(code, name) is None:
            code = bytes(_machine(llvm, jit=True).emit_object(module))
        return bytes(name.ljust(_NAME_BYTES)) + code

    def _function(self, code: bytes) -> Iterator[Any]:
        """Load object code into memory; yields the object that keeps it there, and then the function."""
        name, code = code[:_NAME_BYTES].rstrip(), code[_NAME_BYTES:]
        owner, address = object_code.function_in(code, name) or _linked(code, name)
        yield owner
        # A compiled function of numba returns a status, and through pointers its result and an exception.
        pointers = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
        yield ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *(ctypes.c_int64,) * self._arguments)(address)

    def _file_name(self) -> str:
        return f"{self._name}-{self._of_sources}-{source_hash(_processor()).hex()}.bin"

    @cached_property
    def _of_sources(self) -> str:
        """A hash of everything but the machine that decides what the code is."""
        versions = sys.version.encode(), _version("numba"), _version("llvmlite")
        return source_hash(b"".join((*versions, *(source.read_bytes() for source in self._sources)))).hex()


def folders() -> Iterator[Path]:
    """The folders in which machine code may lie."""
    yield Path(__file__).parent / "__pycache__"
    with contextlib.suppress(ImportError, RuntimeError):
        from platformdirs import user_cache_path

        yield user_cache_path("perfdoctor", appauthor=False)


def _linked(code: bytes, name: bytes) -> tuple[Any, int]:
    """Load object code with LLVM; returns the object that keeps it in memory, and the address of a function."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm, jit=True))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address(name.decode())


def _machine(llvm: Any, **options: Any) -> Any:
    """The machine to compile for: this one, with all that it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(llvm), opt=3, **options
    )


def _processor() -> bytes:
    """The kind of processor: the code may not run on others."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        # Of the first processor only: there may be hundreds, and the system writes up one after the other when asked.
        lines = _KIND_OF_PROCESSOR.findall(file.read(1 << 13).partition(b"\n\n")[0])
        if lines and lines[-1].startswith(b"flags"):
            return b"\n".join((sys.platform.encode(), *lines))
    import llvmlite.binding as llvm

    return f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {_features(llvm)}".encode()


def _features(llvm: Any) -> str:
    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # of a machine that LLVM does not know
        return ""


def _version(package: str) -> bytes:
    """The file that says which version of a package is here; to ask its metadata takes ten times as long."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return b""
    version_file = Path(spec.origin).with_name("_version.py")
    if version_file.exists():
        return version_file.read_bytes()
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package).encode()
    except PackageNotFoundError:
        return b""
