"""What is captured of GPUs: what torch says of them, memory, and samples of NVML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfdoctor.facts.part import NOTHING, CapturedPart, Later, OrNull, Written
from perfdoctor.facts.recorded_memory import HostMemoryFacts, OutOfMemoryFacts, StepPeaks
from perfdoctor.value_limits import Share


class SampleRange(CapturedPart):
    """The samples of one figure."""

    min: Written[float] = None
    max: Written[float] = None


class SampleSpread(SampleRange):
    """The samples of one figure, with their median."""

    median: Written[float] = None


class GpuFacts(CapturedPart):
    """A GPU that the program can see."""

    index: Written[int] = None
    name: Written[str] = None
    capability: Written[str] = None
    memory_bytes: Written[int] = None
    multiprocessors: Written[int] = None
    current: Written[bool] = None


class MemoryOfWindow(CapturedPart):
    """Memory at the end of the last step of a window, and its peaks of the run so far.

    Attributes:
        step: Number of the step that follows.
    """

    step: Written[int] = None
    allocated_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    rss_bytes: int | None = None
    rss_peak_bytes: int | None = None


class MemoryFacts(CapturedPart):
    """Memory of the current GPU, of the machine, and of the process.

    Attributes:
        device_bytes: Memory of the current GPU; null before the program has initialised CUDA.
        host_bytes: RAM of the machine.
        available_bytes: RAM that the program could still get: what the machine has left, and at most what its control
            group has left.
        windows: By window, at the end of its last step. Nothing is reset: peaks are those of the run so far.
        rise_after_steps_bytes: By how much the peak of the process in RAM has risen since the last step, when these
            facts were written: of a program that has ended, what it did with its results.
        peaks: The peaks of steps; this and the following only with --memory.
        snapshot: The snapshot of CUDA's allocator with its history of the evidence window, in the folder of the rank.
        out_of_memory: The last request that failed; null where none did.
        pinned_bytes: The most pinned memory that torch had.
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    available_bytes: int | None = None
    windows: Mapping[Literal["skip", "base", "warm", "timing", "evidence", "after"], MemoryOfWindow] = NOTHING
    rise_after_steps_bytes: Later[int | None] = None
    peaks: Later[StepPeaks] = StepPeaks()
    host: Later[HostMemoryFacts] = HostMemoryFacts()
    snapshot: Later[str | None] = None
    out_of_memory: Later[OrNull[OutOfMemoryFacts]] = OutOfMemoryFacts()
    pinned_bytes: Later[int | None] = None


class ThrottleReason(CapturedPart):
    """A reason why clocks were reduced."""

    samples: Written[int] = None
    sm_mhz: Written[float] = None


class GpuUnderLoad(CapturedPart):
    """What NVML said of a window while kernels ran for at least half of the time.

    Attributes:
        samples: All of the window.
        busy: Those under load.
        clocked: Of these with clock and reasons.
        sm_mhz: Mean of those.
        power_w: Mean under load.
        temperature_c: Mean under load.
        reasons: Why clocks were reduced: in how many samples, and the mean clock in these.
        linked: Samples under load with the link's state.
        pcie_generation: The highest of these: an idle link rests in a lower one.
        pcie_width: The widest of these.
    """

    samples: Written[int] = None
    busy: Written[int] = None
    clocked: Written[int] = None
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: Mapping[str, ThrottleReason] = NOTHING
    linked: Written[int] = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class NvmlDevice(CapturedPart):
    """What NVML said of a GPU.

    Attributes:
        throttle_share: Share of the samples in which NVML gave this reason.
        default_power_limit_w: The limit with which the card is delivered; power_limit_w is the one in force.
        other_processes: Processes of other jobs on the device; null where NVML counts in another namespace.
        other_memory_bytes: Device memory that these use.
        other_sm_percent: Share of the SMs' time that these took, in percent.
        under_load: By window, what NVML said while kernels ran for at least half of the time.
    """

    device: int | None = None
    name: str | None = None
    max_sm_mhz: float | None = None
    power_limit_w: float | None = None
    memory_total_bytes: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    samples: Written[int] = None
    sm_mhz: OrNull[SampleSpread] = SampleSpread()
    memory_mhz: OrNull[SampleSpread] = SampleSpread()
    power_w: OrNull[SampleSpread] = SampleSpread()
    temperature_c: OrNull[SampleSpread] = SampleSpread()
    gpu_percent: OrNull[SampleSpread] = SampleSpread()
    memory_percent: OrNull[SampleSpread] = SampleSpread()
    memory_used_bytes: OrNull[SampleSpread] = SampleSpread()
    pcie_generation: OrNull[SampleRange] = SampleRange()
    pcie_width: OrNull[SampleRange] = SampleRange()
    processes: OrNull[SampleRange] = SampleRange()
    throttle_share: OrNull[Mapping[str, Share]] = NOTHING
    default_power_limit_w: Later[float | None] = None
    other_processes: Later[OrNull[SampleRange]] = SampleRange()
    other_memory_bytes: Later[OrNull[SampleRange]] = SampleRange()
    other_sm_percent: Later[OrNull[SampleRange]] = SampleRange()
    under_load: Later[Mapping[str, GpuUnderLoad]] = NOTHING


class NvmlFacts(CapturedPart):
    """What NVML said while the program ran."""

    status: Written[Literal["starting", "sampled", "no library", "no driver", "failed"]] = None
    why: str | None = None
    driver: str | None = None
    period_ns: Written[int] = None
    devices: tuple[NvmlDevice, ...] = ()
