"""Clocks, throttling, power, temperature, use, memory, PCIe link and processes of the GPU, at 20 Hz in a thread.

Through pynvml (the nvidia-ml-py package) when it can be imported, and only once the program has initialised CUDA: a
program without a GPU never loads NVML. A missing library or driver is a fact, never an error. NVML reads counters of
the driver; it makes no CUDA context and waits for no kernel. A sample costs about 0.1 ms of CPU time; the throughput of
the PCIe link is left out, because NVML measures it by sleeping for 20 ms.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

PERIOD_S = 0.05
# The list of processes is the one slow question: once a second.
PROCESSES_EVERY = 20
# 80 minutes: windows of longer steps than that need no finer record.
MOST_SAMPLES = 100_000
STOP_S = 1.0
REASONS = (
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
# Figures of which the summary tells the least, the median and the most.
SPREAD = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "gpu_percent", "memory_percent", "memory_used_bytes")
EXTREMES = ("pcie_generation", "pcie_width", "processes")

Sample = dict[str, Any]


def text(value: Any) -> Any:
    """Old versions of the package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Gpu:
    """One device: what never changes, and a sample of what does. What the driver does not support is None."""

    def __init__(self, nvml: Any, key: str | int) -> None:
        """Find the device.

        Args:
            nvml: The initialised module.
            key: UUID, or the device's index where the UUID is not known.
        """
        self.nvml = nvml
        by_uuid = isinstance(key, str)
        self.handle = nvml.nvmlDeviceGetHandleByUUID(key) if by_uuid else nvml.nvmlDeviceGetHandleByIndex(key)
        self.index = self.ask("nvmlDeviceGetIndex")
        self._processes: int | None = None

    def ask(self, name: str, *args: Any) -> Any:
        """The answer of one documented function, None when the device or this driver has none."""
        try:
            return getattr(self.nvml, name)(self.handle, *args)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def description(self) -> dict[str, Any]:
        """What does not change while a program runs."""
        limit_mw = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "device": self.index,
            "name": text(self.ask("nvmlDeviceGetName")),
            "max_sm_mhz": self.ask("nvmlDeviceGetMaxClockInfo", self.nvml.NVML_CLOCK_SM),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "memory_total_bytes": getattr(self.ask("nvmlDeviceGetMemoryInfo"), "total", None),
            "max_pcie_generation": self.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_pcie_width": self.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def sample(self, number: int) -> Sample:
        """Everything that changes, at this moment."""
        power_mw = self.ask("nvmlDeviceGetPowerUsage")
        use = self.ask("nvmlDeviceGetUtilizationRates")
        if number % PROCESSES_EVERY == 0:
            running = self.ask("nvmlDeviceGetComputeRunningProcesses")
            self._processes = None if running is None else len(running)
        return {
            "t_ns": time.time_ns(),
            "device": self.index,
            "sm_mhz": self.ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            "memory_mhz": self.ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            "throttle": self._throttle(),
            "power_w": None if power_mw is None else power_mw / 1000,
            "temperature_c": self.ask("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU),
            "gpu_percent": getattr(use, "gpu", None),
            "memory_percent": getattr(use, "memory", None),
            "memory_used_bytes": getattr(self.ask("nvmlDeviceGetMemoryInfo"), "used", None),
            "pcie_generation": self.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self.ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "processes": self._processes,
        }

    def _throttle(self) -> list[str] | None:
        """Why the clocks are not at their highest; None when the driver does not say."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else [name for bit, name in REASONS if bits & bit]


def summarize(samples: list[Sample]) -> dict[str, Any]:
    """Of one device: spread of the figures, and the share of samples in which each throttle reason was given."""
    told: dict[str, Any] = {"samples": len(samples)}
    for name in (*SPREAD, *EXTREMES):
        values = [sample[name] for sample in samples if sample[name] is not None]
        if not values:
            told[name] = None
        elif name in SPREAD:
            told[name] = {"min": min(values), "median": median(values), "max": max(values)}
        else:
            told[name] = {"min": min(values), "max": max(values)}
    known = [sample["throttle"] for sample in samples if sample["throttle"] is not None]
    counts = Counter(reason for reasons in known for reason in reasons)
    told["throttle_share"] = {name: round(n / len(known), 4) for name, n in counts.items()} if known else None
    return told


def devices_in_use(cuda: Any) -> tuple[str | int, ...]:
    """The GPUs that this process works on, as NVML finds them; asks torch, which has initialised CUDA.

    Args:
        cuda: The module torch.cuda.
    """
    current = cuda.current_device()
    used = [index for index in range(cuda.device_count()) if index == current or cuda.memory_reserved(index)]
    return tuple(nvml_key(cuda, index) for index in used)


def nvml_key(cuda: Any, index: int) -> str | int:
    """UUID of a device; CUDA's numbers are NVML's only where nothing hides or reorders devices."""
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return index
    return str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class Sampler:
    """The thread, from `start` to `stop`; `write` gets each sample as a line."""

    def __init__(self, keys: tuple[str | int, ...], write: Callable[[str], None]) -> None:
        self.status = "starting"
        self.why: str | None = None
        self.driver: str | None = None
        self._keys = keys
        self._write = write
        self._ended = threading.Event()
        self._devices: list[dict[str, Any]] = []
        self._samples: dict[Any, list[Sample]] = {}
        self._thread = threading.Thread(target=self._run, name="perfdoctor-nvml", daemon=True)

    def start(self) -> None:
        """Begin; NVML itself is loaded in the thread, so that a driver that hangs holds up nobody."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait a moment for the last sample."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def facts(self) -> dict[str, Any]:
        """As it stands in facts.json."""
        return {
            "status": self.status,
            "why": self.why,
            "driver": self.driver,
            "period_ns": round(PERIOD_S * 1e9),
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
        self.driver = text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [Gpu(pynvml, key) for key in self._keys]
        for gpu in gpus:
            self._samples[gpu.index] = []
            self._devices.append(gpu.description())
        self.status = "sampled"
        for number in range(MOST_SAMPLES):
            for gpu in gpus:
                sample = gpu.sample(number)
                self._samples[gpu.index].append(sample)
                self._write(json.dumps(sample, separators=(",", ":")) + "\n")
            if self._ended.wait(PERIOD_S):
                return
