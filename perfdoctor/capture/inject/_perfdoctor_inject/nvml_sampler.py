"""Samples clocks, throttling, power, temperature, use, memory, PCIe link and processes of the GPU at 20 Hz.

A thread takes the samples from pynvml (the nvidia-ml-py package), where it can be imported, and only after the program
has initialised CUDA: a program without a GPU never loads NVML. A missing library or driver is a fact, never an error.
NVML reads counters of the driver; it makes no CUDA context and waits for no kernel. A sample costs about 0.1 ms of CPU
time. The throughput of the PCIe link is left out, because NVML measures it by sleeping for 20 ms.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

SAMPLE_INTERVAL_S = 0.05
# Only the list of processes is slow to read: once a second.
SAMPLES_PER_PROCESS_COUNT = 20
# 80 minutes of samples: a longer recording needs no finer record.
MAX_SAMPLES = 100_000
STOP_TIMEOUT_S = 1.0
THROTTLE_REASONS = (
    (0x01, "idle"),
    (0x02, "application_clocks"),
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
)
# Figures with minimum, median and maximum in the summary; the others have minimum and maximum.
MEDIAN_FIGURES = (
    "sm_mhz",
    "memory_mhz",
    "power_w",
    "temperature_c",
    "gpu_percent",
    "memory_percent",
    "memory_used_bytes",
)
EXTREME_FIGURES = ("pcie_generation", "pcie_width", "processes")

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

    def query(self, name: str, *args: Any) -> Any:
        """What a documented function of NVML returns for this device, None when device or driver do not support it."""
        try:
            return getattr(self.nvml, name)(self.handle, *args)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def describe(self) -> dict[str, Any]:
        """The figures that do not change while a program runs."""
        limit_mw = self.query("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "device": self.index,
            "name": to_text(self.query("nvmlDeviceGetName")),
            "max_sm_mhz": self.query("nvmlDeviceGetMaxClockInfo", self.nvml.NVML_CLOCK_SM),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "memory_total_bytes": getattr(self.query("nvmlDeviceGetMemoryInfo"), "total", None),
            "max_pcie_generation": self.query("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_pcie_width": self.query("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def sample(self, number: int) -> Sample:
        """The figures that change, now.

        Args:
            number: Number of the sample; the processes are not counted in every sample.
        """
        power_mw = self.query("nvmlDeviceGetPowerUsage")
        use = self.query("nvmlDeviceGetUtilizationRates")
        if number % SAMPLES_PER_PROCESS_COUNT == 0:
            running = self.query("nvmlDeviceGetComputeRunningProcesses")
            self._processes = None if running is None else len(running)
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
        }

    def _throttle(self) -> list[str] | None:
        """Why the clocks are not at their maximum, None when the driver gives no reasons."""
        bits = self.query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else [name for bit, name in THROTTLE_REASONS if bits & bit]


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


def devices_in_use(cuda: Any) -> tuple[str | int, ...]:
    """The keys by which NVML finds the GPUs that this process uses; torch must have initialised CUDA.

    Args:
        cuda: The module `torch.cuda`.
    """
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

    def __init__(self, keys: tuple[str | int, ...], write: Callable[[str], None]) -> None:
        """Start nothing yet.

        Args:
            keys: What `devices_in_use` returned.
            write: Called in the thread with each sample as a line of JSON.
        """
        self.status = "starting"
        self.why: str | None = None
        self.driver: str | None = None
        self._keys = keys
        self._write = write
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
            "devices": [{**each, **summarize(list(self._samples[each["device"]]))} for each in list(self._devices)],
        }

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
                sample = gpu.sample(number)
                self._samples[gpu.index].append(sample)
                self._write(json.dumps(sample, separators=(",", ":")) + "\n")
            if self._stopped.wait(SAMPLE_INTERVAL_S):
                return
