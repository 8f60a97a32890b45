"""`perfdoctor check`: is this machine ready to record and to analyse?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfdoctor.capture.missing_torch import explain_missing_torch
from perfdoctor.cli import parameters
from perfdoctor.errors import GateError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.output import write_stdout

OK, MISSING, BROKEN = "ok", "missing", "broken"
_TORCH_TIMEOUT_S = 120  # the first import of a CUDA build from a network disk can take a minute
# Run in a Python process of its own: a torch that crashes or hangs must not end this one.
_TORCH_PROBE = """
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


@frozen_dataclass
class Check:
    """The state of one part of the machine: OK, MISSING or BROKEN, with what was seen and what to do."""

    part: str
    state: str
    detail: str


@parameters.command("perfdoctor check")
def check() -> None:
    """Say whether this machine can record and analyse: GPU, driver, NVML, torch, profiler."""
    from perfdoctor.cli.plain_table import format_table

    checks = list(_check_all())
    colours = {OK: "green", MISSING: "yellow", BROKEN: "bold red"}
    rows = [(c.part, c.state, c.detail) for c in checks]
    write_stdout(format_table(("what", "state", "seen, and what to do"), rows, colours))
    broken = [c.part for c in checks if c.state == BROKEN]
    if broken:
        raise GateError(f"{', '.join(broken)}: broken; the table says what to do")


def _check_all() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", OK, f"{version} at {sys.executable}")
    driver = _check_driver()
    yield driver
    yield _check_nvml(has_driver=driver.state == OK)
    yield _check_cupti()
    yield from _check_torch()
    yield _check_reader()
    yield _check_folder(Path.cwd())


def _check_driver() -> Check:
    """The kernel module of an NVIDIA or AMD GPU."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return Check("GPU driver", OK, text.partition(":")[2].strip() or text)
    except (OSError, IndexError):
        pass
    if os.path.exists("/dev/kfd"):
        return Check("GPU driver", OK, "AMD, /dev/kfd")
    return Check("GPU driver", MISSING, "no NVIDIA or AMD driver: training runs on the CPU; analysing needs no GPU")


def _check_nvml(*, has_driver: bool) -> Check:
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
        names = [_decode(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return Check(
            "NVML", OK, f"{', '.join(names) or 'no device'}; driver {_decode(pynvml.nvmlSystemGetDriverVersion())}"
        )
    except pynvml.NVMLError as error:
        return Check("NVML", BROKEN, f"{error}; look at nvidia-smi")
    finally:
        pynvml.nvmlShutdown()


def _decode(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _check_cupti() -> Check:
    """Whether the driver reserves hardware counters for administrators; tracing kernels does not need them."""
    try:
        params = Path("/proc/driver/nvidia/params").read_text(encoding="utf-8")
    except OSError:
        return Check("CUPTI", MISSING, "no NVIDIA driver: nothing to ask")
    if "RmProfilingAdminOnly: 1" in params:
        return Check("CUPTI", OK, "kernels can be traced; hardware counters are for administrators only")
    return Check("CUPTI", OK, "kernels can be traced, hardware counters too")


def _check_torch() -> Iterator[Check]:
    facts = _probe_torch()
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


def _probe_torch() -> dict[str, Any] | Check:
    """What torch reports about itself, or the check that failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TORCH_TIMEOUT_S,
            check=False,
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
        return Check("torch", MISSING, f"needed to record, not to analyse: {explain_missing_torch() or last}")
    reason = last or f"it ended with code {done.returncode}"
    return Check("torch", BROKEN, f"importing it fails: {reason}; reinstall it")


def _check_reader() -> Check:
    """Whether traces are read by the C library, and with which instructions of this processor."""
    from perfdoctor.trace.scanner.core_library import find_problem, load_library

    problem = find_problem()
    if problem:
        return Check("reader", MISSING, f"traces are read 20 times as slowly, in Python: {problem}")
    return Check("reader", OK, f"in C, with {load_library().perfdoctor_instructions().decode()} instructions")


def _check_folder(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("folder", OK, f"captures can be written to {folder}")
    except OSError as error:
        return Check("folder", MISSING, f"{folder} cannot be written ({error.strerror}): use perfdoctor run --out")
