"""k multiplications of each element of an array in one pass over memory: C, compiled where there is a compiler.

torch.compile would fuse them as well, but it compiles each k anew, for seconds, and needs the same compiler.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SECONDS = 60  # for the compiler
# 64 float32 at a time stay in registers between multiplications, and hide how long each of them takes.
_SOURCE = """
void multiply(float *x, long count, long k, float factor, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long start = 0; start < count; start += 64) {
        float block[64];
        for (int i = 0; i < 64; ++i) block[i] = x[start + i];
        for (long each = 0; each < k; ++each)
            for (int i = 0; i < 64; ++i) block[i] *= factor;
        for (int i = 0; i < 64; ++i) x[start + i] = block[i];
    }
}
"""

Multiply = Callable[[Any, int], Callable[[], object]]


def compile_multiply(threads: int) -> Multiply | None:
    """A function that makes calls which multiply all of a float32 tensor k times; None where nothing compiles C."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="perfdoctor-") as folder:
        source, library = Path(folder, "multiply.c"), Path(folder, "multiply.so")
        source.write_text(_SOURCE, encoding="utf-8")
        command = [*compiler.split(), "-O3", "-march=native", "-fPIC", "-shared", str(source), "-o", str(library)]
        for options in (["-fopenmp"], []):  # without OpenMP one thread does it
            try:
                subprocess.run([*command, *options], check=True, capture_output=True, timeout=_SECONDS)
                function = ctypes.CDLL(str(library)).multiply
            except (OSError, subprocess.SubprocessError):
                continue
            function.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_float, ctypes.c_int)
            function.restype = None
            return _maker_of(function, threads)
    return None


def _maker_of(function: Any, threads: int) -> Multiply:
    def make(x: Any, k: int) -> Callable[[], object]:
        count = x.numel() // 64 * 64
        # A factor under 1 would end in denormal numbers, which are slow.
        return lambda: function(x.data_ptr(), count, k, -1.0, threads)

    return make
