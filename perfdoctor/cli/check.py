"""`perfdoctor check`: is this machine ready to record and to analyse?"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from perfdoctor.errors import GateError
from perfdoctor.reporters.output import emit

OK, MISSING, BROKEN = "ok", "missing", "broken"
_TORCH_TIMEOUT_S = 120  # the first import of a CUDA build from a network disk can take a minute
# Run by a Python of its own: a torch that crashes or hangs must not take us along.
_PROBE = """
import json, torch
from torch import profiler
gpus = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpus else [],
    "kineto": bool(profiler.kineto_available()),
    "activities": sorted(str(a).split(".")[-1] for a in profiler.supported_activities()),
}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: "ok", "missing" or "broken", what was seen, what to do."""

    what: str
    state: str
    seen: str


def check(
    *,
    warm: Annotated[
        bool, typer.Option("--warm", help="Compile the reader of large traces now, not with the first.")
    ] = False,
) -> None:
    """Say whether this machine can record and analyse: GPU, driver, NVML, torch, profiler."""
    from perfdoctor.cli.plain_table import table

    if warm:
        _warm()
    found = list(_checks())
    colours = {OK: "green", MISSING: "yellow", BROKEN: "bold red"}
    emit(table(("what", "state", "seen, and what to do"), [(c.what, c.state, c.seen) for c in found], colours))
    broken = [c.what for c in found if c.state == BROKEN]
    if broken:
        raise GateError(f"{', '.join(broken)}: broken; what to do stands in the table")


def _checks() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", OK, f"{version} at {sys.executable}")
    driver = _driver()
    yield driver
    yield _nvml(has_driver=driver.state == OK)
    yield _counters()
    yield from _torch()
    yield _numba()
    yield _folder(Path.cwd())


def _driver() -> Check:
    """The kernel module of an NVIDIA or AMD GPU."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return Check("GPU driver", OK, text.partition(":")[2].strip() or text)
    except (OSError, IndexError):
        pass
    if os.path.exists("/dev/kfd"):
        return Check("GPU driver", OK, "AMD, /dev/kfd")
    return Check("GPU driver", MISSING, "no NVIDIA or AMD driver: training runs on the CPU; analysing needs no GPU")


def _nvml(*, has_driver: bool) -> Check:
    try:
        import pynvml
    except ImportError:
        return Check("NVML", MISSING, "clocks and power are not recorded; pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        nvidia = has_driver and not os.path.exists("/dev/kfd")
        return Check("NVML", BROKEN if nvidia else MISSING, f"{error}; clocks and power are not recorded")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return Check(
            "NVML", OK, f"{', '.join(names) or 'no device'}; driver {_text(pynvml.nvmlSystemGetDriverVersion())}"
        )
    except pynvml.NVMLError as error:
        return Check("NVML", BROKEN, f"{error}; look at nvidia-smi")
    finally:
        pynvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _counters() -> Check:
    """Whether the driver keeps hardware counters for administrators; tracing kernels does not need them."""
    try:
        params = Path("/proc/driver/nvidia/params").read_text(encoding="utf-8")
    except OSError:
        return Check("CUPTI", MISSING, "no NVIDIA driver: nothing to ask")
    if "RmProfilingAdminOnly: 1" in params:
        return Check("CUPTI", OK, "kernels can be traced; hardware counters are for administrators only")
    return Check("CUPTI", OK, "kernels can be traced, hardware counters too")


def _torch() -> Iterator[Check]:
    facts = _ask_torch()
    if isinstance(facts, Check):
        yield facts
        return
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    yield Check("torch", OK, f"{facts['version']}, built for {build}")
    gpus = facts["gpus"]
    if gpus:
        yield Check("GPU in torch", OK, ", ".join(gpus))
    else:
        why = (
            "this build of torch is for the CPU" if build == "CPU only" else "torch sees no device; look at nvidia-smi"
        )
        yield Check("GPU in torch", MISSING, f"{why}: `perfdoctor run` records the CPU side")
    if facts["kineto"]:
        yield Check("profiler", OK, f"records {', '.join(facts['activities'])}")
    else:
        yield Check("profiler", BROKEN, "torch was built without Kineto: install a torch from pytorch.org")


def _ask_torch() -> dict[str, Any] | Check:
    """What torch says about itself, or the check that failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_TORCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(
            "torch",
            BROKEN,
            f"importing it takes more than {_TORCH_TIMEOUT_S} s; try python -X importtime -c 'import torch'",
        )
    last = next(iter(done.stderr.strip().splitlines()[-1:]), "")
    if done.returncode == 0:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts
    if "No module named 'torch'" in last:
        return Check("torch", MISSING, "not installed here: needed to record, not to analyse")
    reason = last or f"it ended with code {done.returncode}"
    return Check("torch", BROKEN, f"importing it fails: {reason}; reinstall it")


def _warm() -> None:
    """Compile the reader and the replay; `_numba` says how that went."""
    from perfdoctor.savings import longest_path
    from perfdoctor.trace.scanner import scanner_code as native

    with contextlib.suppress(Exception):  # whatever numba cannot do here
        native.load()
        longest_path.compiled.load()


def _numba() -> Check:
    """Whether large traces are read by compiled code, and where that is kept."""
    from importlib.util import find_spec

    from perfdoctor.trace.scanner import scanner_code as native

    kept = native.cached_in()
    if kept is not None:
        return Check("numba", OK, f"the compiled reader is kept in {kept}")
    if find_spec("numba") is None:
        return Check("numba", MISSING, "large traces are read 15 times as slowly; pip install numba")
    if native.is_loaded():
        return Check(
            "numba", OK, "no cache folder can be written: every process that reads a large trace compiles, 5 s"
        )
    return Check("numba", OK, "the first large trace compiles the reader, 5 s; perfdoctor check --warm does it now")


def _folder(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("folder", OK, f"captures can be written to {folder}")
    except OSError as error:
        return Check("folder", MISSING, f"{folder} cannot be written ({error.strerror}): use perfdoctor run --out")
