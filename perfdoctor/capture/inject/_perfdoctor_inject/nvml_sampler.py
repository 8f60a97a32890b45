"""Samples clocks, throttling, power, temperature, use, memory, PCIe link and processes of the GPU at 20 Hz.

A thread takes the samples from pynvml (the nvidia-ml-py package), where it can be imported, and only after the program
has initialised CUDA: a program without a GPU never loads NVML. A missing library or driver is a fact, never an error.
NVML reads counters of the driver; it makes no CUDA context and waits for no kernel. A sample costs about 0.1 ms of CPU
time. The throughput of the PCIe link is left out, because NVML measures it by sleeping for 20 ms.

Of the processes on a GPU this one, its ancestors, all descendants of its parent (the ranks that one launcher started,
and their helpers), and all processes of its session are of this job, others are not. The server of NVIDIA's MPS,
through which processes share a GPU on purpose, is nobody's. Only numbers are recorded, no names.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any, NamedTuple

from .proc_files import read_process, read_text

_MPS_SERVER = "nvidia-cuda-mps"
# Deeper trees of processes are no launcher's; it also ends a circle, should the kernel ever show one.
_MAX_ANCESTORS = 64


class OtherProcesses(NamedTuple):
    """The processes of others on a GPU.

    Attributes:
        pids: Their ids.
        memory_bytes: GPU memory that they use; None where the driver does not say.
    """

    pids: frozenset[int]
    memory_bytes: int | None


def find_other_processes(running: Iterable[Any]) -> OtherProcesses | None:
    """The processes of others among those that NVML names.

    None where this process is not among them: then NVML counts in another namespace (a container's host), and its ids
    say nothing here.
    """
    memory_bytes = {int(each.pid): getattr(each, "usedGpuMemory", None) for each in running}
    if os.getpid() not in memory_bytes:
        return None
    own = _own_family()
    others = [pid for pid in memory_bytes if not _is_of_job(pid, own) and not _is_mps_server(pid)]
    sizes = [memory_bytes[pid] for pid in others]
    known = [size for size in sizes if isinstance(size, int)]
    return OtherProcesses(frozenset(others), sum(known) if len(known) == len(sizes) else None)


def _own_family() -> frozenset[int]:
    """This process and its ancestors, without init, of which everybody descends."""
    return frozenset(_ancestors(os.getpid()))


def _is_of_job(pid: int, own: frozenset[int]) -> bool:
    """Whether a process is of this job; one that has ended meanwhile, or that cannot be looked at, is of nobody."""
    if pid in own:
        return True
    try:
        if os.getsid(pid) == os.getsid(0):
            return True
    except OSError:
        return not os.path.exists(f"/proc/{pid}")
    parent = os.getppid()
    return parent > 1 and parent in _ancestors(pid)


def _ancestors(pid: int) -> list[int]:
    """A process and its ancestors below init, by /proc; the process alone where that cannot be read."""
    found = [pid]
    for _ in range(_MAX_ANCESTORS):
        fields = read_process(found[-1])
        if fields is None or int(fields[1]) <= 1:
            break
        found.append(int(fields[1]))
    return found


def _is_mps_server(pid: int) -> bool:
    return (read_text(f"/proc/{pid}/comm") or "").startswith(_MPS_SERVER)


SAMPLE_INTERVAL_S = 0.05
# Only the list of processes is slow to read: once a second.
SAMPLES_PER_PROCESS_COUNT = 20
# 80 minutes of samples: a longer recording needs no finer record.
MAX_SAMPLES = 100_000
STOP_TIMEOUT_S = 1.0
# The windows whose steps a report is about; "warm" are the steps between them.
RECORDED_WINDOWS = ("base", "warm", "timing", "evidence")
# By the bits of NVML, from the lowest.
THROTTLE_REASONS = (
    *("idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks"),
)
# Figures with minimum, median and maximum in the summary; the others have minimum and maximum.
MEDIAN_FIGURES = (
    *("sm_mhz", "memory_mhz", "power_w", "temperature_c"),
    *("gpu_percent", "memory_percent", "memory_used_bytes"),
)
EXTREME_FIGURES = (
    *("pcie_generation", "pcie_width", "processes"),
    *("other_processes", "other_memory_bytes", "other_sm_percent"),
)
# Percentage of the time in which kernels ran, from which on a sample is one under load: clocks and link rest below.
BUSY_PERCENT = 50

Sample = dict[str, Any]


def to_text(value: Any) -> Any:
    """The value as text where it is bytes, which old versions of pynvml return."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Gpu:
    """One device: its description and its samples. A figure that the driver does not support is None."""

    def __init__(self, nvml: Any, key: str | int) -> None:
        """Find the device.

        Args:
            nvml: The module pynvml, initialised.
            key: UUID of the device, or its index where the UUID is not known.
        """
        self.nvml = nvml
        by_uuid = isinstance(key, str)
        self.handle = nvml.nvmlDeviceGetHandleByUUID(key) if by_uuid else nvml.nvmlDeviceGetHandleByIndex(key)
        self.index = self.query("nvmlDeviceGetIndex")
        self._processes: int | None = None
        self._others: OtherProcesses | None = None
        self._other_sm_percent: int | None = None
        self._last_use_us = 0

    def query(self, name: str, *args: Any) -> Any:
        """What a documented function of NVML returns for this device, None when device or driver do not support it."""
        try:
            return getattr(self.nvml, name)(self.handle, *args)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def describe(self) -> dict[str, Any]:
        """The figures that do not change while a program runs."""
        limit_mw = self.query("nvmlDeviceGetEnforcedPowerLimit")
        default_mw = self.query("nvmlDeviceGetPowerManagementDefaultLimit")
        return {
            "device": self.index,
            "name": to_text(self.query("nvmlDeviceGetName")),
            "max_sm_mhz": self.query("nvmlDeviceGetMaxClockInfo", self.nvml.NVML_CLOCK_SM),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "default_power_limit_w": None if default_mw is None else default_mw / 1000,
            "memory_total_bytes": getattr(self.query("nvmlDeviceGetMemoryInfo"), "total", None),
            "max_pcie_generation": self.query("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_pcie_width": self.query("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def sample(self, number: int) -> Sample:
        """The figures that change, now.

        The processes are not counted in every one, by its `number`.
        """
        power_mw = self.query("nvmlDeviceGetPowerUsage")
        use = self.query("nvmlDeviceGetUtilizationRates")
        if number % SAMPLES_PER_PROCESS_COUNT == 0:
            running = self.query("nvmlDeviceGetComputeRunningProcesses")
            self._processes = None if running is None else len(running)
            self._others = None if running is None else find_other_processes(running)
            self._other_sm_percent = self._read_other_use()
        others = self._others
        return {
            "t_ns": time.time_ns(),
            "device": self.index,
            "sm_mhz": self.query("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            "memory_mhz": self.query("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            "throttle": self._throttle(),
            "power_w": None if power_mw is None else power_mw / 1000,
            "temperature_c": self.query("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU),
            "gpu_percent": getattr(use, "gpu", None),
            "memory_percent": getattr(use, "memory", None),
            "memory_used_bytes": getattr(self.query("nvmlDeviceGetMemoryInfo"), "used", None),
            "pcie_generation": self.query("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self.query("nvmlDeviceGetCurrPcieLinkWidth"),
            "processes": self._processes,
            "other_processes": None if others is None else len(others.pids),
            "other_memory_bytes": None if others is None else others.memory_bytes,
            "other_sm_percent": self._other_sm_percent,
        }

    def _read_other_use(self) -> int | None:
        """Percentage of the SMs' time that processes of others took since the last look; None if unknown."""
        if self._others is None or not self._others.pids:
            return None
        uses = self.query("nvmlDeviceGetProcessUtilization", self._last_use_us)
        if not uses:
            return None
        self._last_use_us = max(use.timeStamp for use in uses)
        highest: Counter[int] = Counter()
        for use in uses:
            highest[use.pid] = max(highest[use.pid], use.smUtil)
        return min(sum(highest[pid] for pid in self._others.pids), 100)

    def _throttle(self) -> list[str] | None:
        """Why the clocks are not at their maximum, None when the driver gives no reasons."""
        bits = self.query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else [name for bit, name in enumerate(THROTTLE_REASONS) if bits >> bit & 1]


def summarize(samples: list[Sample]) -> dict[str, Any]:
    """The spread of one device's figures, and the share of samples in which NVML gave each throttle reason."""
    summary: dict[str, Any] = {"samples": len(samples)}
    for name in (*MEDIAN_FIGURES, *EXTREME_FIGURES):
        values = [sample[name] for sample in samples if sample[name] is not None]
        if not values:
            summary[name] = None
        elif name in MEDIAN_FIGURES:
            summary[name] = {"min": min(values), "median": median(values), "max": max(values)}
        else:
            summary[name] = {"min": min(values), "max": max(values)}
    known = [sample["throttle"] for sample in samples if sample["throttle"] is not None]
    counts = Counter(reason for reasons in known for reason in reasons)
    summary["throttle_share"] = {name: round(n / len(known), 4) for name, n in counts.items()} if known else None
    return summary


def summarize_load(samples: list[Sample]) -> dict[str, Any]:
    """What one device did in the samples of a window that were taken under load: clocks and link rest otherwise."""
    busy = [sample for sample in samples if (sample["gpu_percent"] or 0) >= BUSY_PERCENT]
    timed = [sample for sample in busy if sample["throttle"] is not None and sample["sm_mhz"] is not None]
    reasons = sorted({reason for sample in timed for reason in sample["throttle"]})
    clocks = {name: [sample["sm_mhz"] for sample in timed if name in sample["throttle"]] for name in reasons}
    links = [
        (s["pcie_generation"], s["pcie_width"]) for s in busy if None not in (s["pcie_generation"], s["pcie_width"])
    ]
    return {
        "samples": len(samples),
        "busy": len(busy),
        "clocked": len(timed),
        "sm_mhz": round(fmean(sample["sm_mhz"] for sample in timed), 1) if timed else None,
        "power_w": _mean([sample["power_w"] for sample in busy if sample["power_w"] is not None]),
        "temperature_c": _mean([sample["temperature_c"] for sample in busy if sample["temperature_c"] is not None]),
        "reasons": {name: {"samples": len(mhz), "sm_mhz": round(fmean(mhz), 1)} for name, mhz in clocks.items()},
        "linked": len(links),
        "pcie_generation": max((generation for generation, _ in links), default=None),
        "pcie_width": max((width for _, width in links), default=None),
    }


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 1) if values else None


def devices_in_use(cuda: Any) -> tuple[str | int, ...]:
    """The keys by which NVML finds the GPUs that this process uses; torch must have initialised CUDA."""
    current = cuda.current_device()
    used = [index for index in range(cuda.device_count()) if index == current or cuda.memory_reserved(index)]
    return tuple(nvml_key(cuda, index) for index in used)


def nvml_key(cuda: Any, index: int) -> str | int:
    """UUID of a device, else its index; CUDA and NVML number devices alike unless something hides or reorders them."""
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return index
    return str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class GpuSampler:
    """The thread that samples, from `start` to `stop`."""

    def __init__(
        self,
        keys: tuple[str | int, ...],
        write: Callable[[str], None],
        read_window: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            keys: What `devices_in_use` returned.
            write: Called in the thread with each sample as a line of JSON.
            read_window: Returns the window that the program is in, as steps.jsonl names it.
        """
        self.status = "starting"
        self.why: str | None = None
        self.driver: str | None = None
        self._keys = keys
        self._write = write
        self._read_window = read_window
        self._stopped = threading.Event()
        self._devices: list[dict[str, Any]] = []
        self._samples: dict[Any, list[Sample]] = {}
        self._thread = threading.Thread(target=self._run, name="perfdoctor-nvml", daemon=True)

    def start(self) -> None:
        """Start the thread. NVML is loaded in the thread, so that a driver that hangs blocks nothing else."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait a moment for its last sample."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT_S)

    def facts(self) -> dict[str, Any]:
        """The summary as it stands in facts.json."""
        return {
            "status": self.status,
            "why": self.why,
            "driver": self.driver,
            "period_ns": round(SAMPLE_INTERVAL_S * 1e9),
            "devices": [self._summarize_device(each) for each in list(self._devices)],
        }

    def _summarize_device(self, device: dict[str, Any]) -> dict[str, Any]:
        samples = list(self._samples[device["device"]])
        by_window = {name: [each for each in samples if each["window"] == name] for name in RECORDED_WINDOWS}
        loads = {name: summarize_load(of_window) for name, of_window in by_window.items() if of_window}
        return {**device, **summarize(samples), "under_load": loads}

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            self.status, self.why = "no library", str(error)
            return
        try:
            pynvml.nvmlInit()
        except Exception as error:
            self.status, self.why = "no driver", str(error)
            return
        try:
            self._sample_all(pynvml)
        except Exception as error:
            self.status, self.why = "failed", repr(error)
        finally:
            pynvml.nvmlShutdown()

    def _sample_all(self, pynvml: Any) -> None:
        self.driver = to_text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [Gpu(pynvml, key) for key in self._keys]
        for gpu in gpus:
            self._samples[gpu.index] = []
            self._devices.append(gpu.describe())
        self.status = "sampled"
        for number in range(MAX_SAMPLES):
            for gpu in gpus:
                sample = {**gpu.sample(number), "window": self._read_window()}
                self._samples[gpu.index].append(sample)
                self._write(json.dumps(sample, separators=(",", ":")) + "\n")
            if self._stopped.wait(SAMPLE_INTERVAL_S):
                return
