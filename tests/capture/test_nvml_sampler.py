"""The NVML sampler against a fake module that has the documented functions and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject import machine_facts  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject import recorder as recorder_module  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.nvml_sampler import (  # noqa: E402
    GpuSampler,
    devices_in_use,
    find_other_processes,
    summarize,
    summarize_load,
)
from perfdoctor.capture.session import profile  # noqa: E402

# nvidia-ml-py's names and units: mW, MHz, bytes, a bit mask. Generation of the link is "not supported" here.
FAKE = """
class NVMLError(Exception):
    pass
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
calls = []
class Struct:
    def __init__(self, **values):
        self.__dict__.update(values)
def nvmlInit(): calls.append("init")
def nvmlShutdown(): calls.append("shutdown")
def nvmlSystemGetDriverVersion(): return b"570.1"
def nvmlDeviceGetHandleByUUID(uuid): return {"GPU-aa": 3}[uuid]
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetIndex(handle): return handle
def nvmlDeviceGetName(handle): return "NVIDIA Fake"
def nvmlDeviceGetMaxClockInfo(handle, kind): return 1980
def nvmlDeviceGetClockInfo(handle, kind): return {1: 1500 + len(calls), 2: 2600}[kind]
def nvmlDeviceGetEnforcedPowerLimit(handle): return 700000
def nvmlDeviceGetPowerUsage(handle): return 650500
def nvmlDeviceGetUtilizationRates(handle): return Struct(gpu=97, memory=40)
def nvmlDeviceGetTemperature(handle, sensor): return 71
def nvmlDeviceGetMemoryInfo(handle): return Struct(total=80 * 10**9, used=50 * 10**9, free=30 * 10**9)
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0x04 | 0x40
def nvmlDeviceGetMaxPcieLinkGeneration(handle): raise NVMLError("Not Supported")
def nvmlDeviceGetCurrPcieLinkGeneration(handle): raise NVMLError("Not Supported")
def nvmlDeviceGetMaxPcieLinkWidth(handle): return 16
def nvmlDeviceGetCurrPcieLinkWidth(handle): return 8
def nvmlDeviceGetPowerManagementDefaultLimit(handle): return 800000
def nvmlDeviceGetComputeRunningProcesses(handle): return [Struct(pid=1), Struct(pid=2)]
"""
# This process, its MPS server and one of another job, which takes 30 % of the SMs' time.
SHARED = f"""{FAKE}
import os
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Struct(pid=os.getpid(), usedGpuMemory=5), Struct(pid=1, usedGpuMemory=7)]
def nvmlDeviceGetProcessUtilization(handle, since):
    return [Struct(pid=os.getpid(), timeStamp=9, smUtil=60), Struct(pid=1, timeStamp=8, smUtil=30)]
def nvmlDeviceGetMaxPcieLinkGeneration(handle): return 5
def nvmlDeviceGetCurrPcieLinkGeneration(handle): return 4
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake module, first on sys.path; the value is a function that changes its source."""

    def place(source: str = FAKE) -> None:
        (tmp_path / "modules").mkdir(exist_ok=True)
        (tmp_path / "modules" / "pynvml.py").write_text(source)

    place()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    yield place
    sys.modules.pop("pynvml", None)


def run(sampler: GpuSampler, seconds: float = 0.0) -> dict[str, Any]:
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    return sampler.facts()


@pytest.mark.usefixtures("fake")
def test_samples_are_streamed_and_summarized() -> None:
    lines: list[str] = []
    summary = run(GpuSampler((3,), lines.append, lambda: "timing"), 0.2)
    assert (summary["status"], summary["why"], summary["driver"]) == ("sampled", None, "570.1")
    sample = json.loads(lines[0])
    assert sample["t_ns"] == pytest.approx(time.time_ns(), abs=60e9)
    del sample["t_ns"]
    assert sample == {
        "device": 3,
        "sm_mhz": 1501,
        "memory_mhz": 2600,
        "throttle": ["sw_power_cap", "hw_thermal"],
        "power_w": 650.5,
        "temperature_c": 71,
        "gpu_percent": 97,
        "memory_percent": 40,
        "memory_used_bytes": 50 * 10**9,
        "pcie_generation": None,
        "pcie_width": 8,
        "processes": 2,
        "other_processes": None,  # this process is not among them: they are counted in another namespace
        "other_memory_bytes": None,
        "other_sm_percent": None,
        "window": "timing",
    }
    (device,) = summary["devices"]
    assert 2 <= device["samples"] == len(lines) <= 6  # 20 Hz, on a machine that others use
    assert (device["name"], device["max_sm_mhz"], device["power_limit_w"]) == ("NVIDIA Fake", 1980, 700)
    assert device["power_w"] == {"min": 650.5, "median": 650.5, "max": 650.5}
    assert device["pcie_generation"] is None
    assert device["max_pcie_width"] == 16
    assert device["pcie_width"] == {"min": 8, "max": 8}
    assert device["throttle_share"] == {"sw_power_cap": 1.0, "hw_thermal": 1.0}
    assert (device["default_power_limit_w"], device["other_processes"]) == (800, None)
    (window,) = device["under_load"].values()
    assert window["samples"] == window["busy"] == window["clocked"] == len(lines)
    assert window["reasons"] == {n: {"samples": len(lines), "sm_mhz": 1501} for n in ("hw_thermal", "sw_power_cap")}
    assert (window["linked"], window["pcie_generation"], window["power_w"]) == (0, None, 650.5)
    assert sys.modules["pynvml"].calls == ["init", "shutdown"]
    assert not [thread for thread in threading.enumerate() if thread.name == "perfdoctor-nvml"]


def test_a_missing_library_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    summary = run(GpuSampler((0,), lambda _: None), 0.05)
    assert summary["status"] == "no library"
    assert summary["devices"] == []


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ('def nvmlInit(): raise NVMLError("Driver Not Loaded")', "no driver"),
        ('def nvmlDeviceGetHandleByUUID(uuid): raise NVMLError("Not Found")', "failed"),
    ],
)
def test_a_missing_driver_or_device_is_a_fact(fake: Any, broken: str, status: str) -> None:
    fake(f"{FAKE}\n{broken}\n")
    summary = run(GpuSampler(("GPU-bb",), lambda _: None), 0.05)
    assert summary["status"] == status
    assert summary["why"]


@pytest.mark.usefixtures("sessions")
def test_processes_of_other_jobs_are_counted_without_names(fake: Any) -> None:
    fake(SHARED)
    (device,) = run(GpuSampler((3,), lambda _: None, lambda: "base"), 0.1)["devices"]
    assert device["other_processes"] == {"min": 1, "max": 1}
    assert device["other_memory_bytes"] == {"min": 7, "max": 7}
    assert device["other_sm_percent"] == {"min": 30, "max": 30}
    assert (device["under_load"]["base"]["pcie_generation"], device["max_pcie_generation"]) == (4, 5)


def sample_of(percent: int | None, mhz: int | None, reasons: list[str] | None, generation: int | None = 5) -> Any:
    figures = dict.fromkeys(("power_w", "temperature_c"), 50.0)
    link = {"pcie_generation": generation, "pcie_width": 16}
    return {"gpu_percent": percent, "sm_mhz": mhz, "throttle": reasons, **figures, **link}


def test_idle_samples_say_nothing_of_a_load() -> None:
    idle = [sample_of(percent, 300, ["idle"], 1) for percent in (0, 49, None)]
    assert summarize_load(idle) == {
        "samples": 3,
        **dict.fromkeys(("busy", "clocked", "linked"), 0),
        **dict.fromkeys(("sm_mhz", "power_w", "temperature_c", "pcie_generation", "pcie_width")),
        "reasons": {},
    }


def test_the_load_has_the_mean_clock_of_each_reason_and_the_best_link() -> None:
    busy = [sample_of(90, 1000, ["hw_thermal"], 1), sample_of(90, 2000, []), sample_of(90, None, None, None)]
    summary = summarize_load([*busy, sample_of(0, 300, ["idle"], 1)])
    assert [summary[name] for name in ("samples", "busy", "clocked", "linked")] == [4, 3, 2, 2]
    assert (summary["sm_mhz"], summary["pcie_generation"]) == (1500, 5)
    assert summary["reasons"] == {"hw_thermal": {"samples": 1, "sm_mhz": 1000}}


class Running:
    def __init__(self, pid: int, memory: int | None = None) -> None:
        self.pid = pid
        self.usedGpuMemory = memory


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process in a session of its own, whatever started the tests: process 1 is a stranger's."""
    monkeypatch.setattr(os, "getsid", lambda pid: pid)


@pytest.mark.process
@pytest.mark.usefixtures("sessions")
def test_the_processes_of_the_job_are_no_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        own = [os.getpid(), os.getppid(), child.pid]
        found = find_other_processes([*map(Running, own), Running(1, 5)])
        assert found == (frozenset({1}), 5)
        assert find_other_processes([Running(pid) for pid in own]) == (frozenset(), 0)
        assert find_other_processes([Running(os.getpid()), Running(1)]) == (frozenset({1}), None)
    finally:
        child.communicate(b"\n")


def test_nothing_is_known_of_another_namespace() -> None:
    assert find_other_processes([Running(1, 5)]) is None
    assert find_other_processes([]) is None


def test_missing_figures_are_no_zeros() -> None:
    nothing = dict.fromkeys(("sm_mhz", "memory_mhz", "throttle", "power_w", "temperature_c", "gpu_percent"))
    more = dict.fromkeys(("memory_percent", "memory_used_bytes", "pcie_generation", "pcie_width", "processes"))
    others = dict.fromkeys(("other_processes", "other_memory_bytes", "other_sm_percent"))
    summary = summarize([{**nothing, **more, **others}])
    assert summary.pop("samples") == 1
    assert set(summary.values()) == {None}


class Cuda:
    """torch.cuda of a process that uses the second of two devices."""

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid

    def current_device(self) -> int:
        return 1

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, _: int) -> int:
        return 0

    def get_device_properties(self, _: int) -> Any:
        return SimpleNamespace(name="x") if self.uuid is None else SimpleNamespace(uuid=self.uuid)


@pytest.mark.parametrize(("uuid", "key"), [("aa", "GPU-aa"), ("GPU-aa", "GPU-aa"), ("MIG-1", "MIG-1"), (None, 1)])
def test_devices_are_found_by_uuid(uuid: str | None, key: str | int) -> None:
    assert devices_in_use(Cuda(uuid)) == (key,)


@pytest.mark.usefixtures("fake")
def test_the_recorder_samples_until_all_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture_kit: dict[str, Any]
) -> None:
    monkeypatch.setattr(recorder_module, "cuda_is_initialized", lambda: True)
    monkeypatch.setattr(recorder_module, "devices_in_use", lambda _: ("GPU-aa",))
    with profile(tmp_path / "out", skip=1, base=1, warmup=1, timing=2, evidence=0) as session:
        for number in range(8):
            with session.step():
                time.sleep(0.06)
            alive = [thread for thread in threading.enumerate() if thread.name == "perfdoctor-nvml"]
            assert bool(alive) == (number < 4)
    rank = session.folder / "rank0"
    facts = json.loads((rank / "facts.json").read_text())
    capture_kit["check_facts"](facts)
    summary = facts["nvml"]
    lines = (rank / "nvml.jsonl").read_text().splitlines()
    assert summary["status"] == "sampled"
    assert summary["devices"][0]["samples"] == len(lines) > 2
    assert "timing" in {json.loads(line)["window"] for line in lines}


def test_a_program_without_a_gpu_loads_no_nvml(tmp_path: Path) -> None:
    with profile(tmp_path / "out", skip=0, base=0, warmup=0, timing=2, evidence=0) as session:
        for _ in range(2):
            with session.step():
                pass
    assert json.loads((session.folder / "rank0" / "facts.json").read_text())["nvml"] is None
    assert not (session.folder / "rank0" / "nvml.jsonl").exists()
    assert not machine_facts.cuda_is_initialized()


def exported(folder: Path, lines: list[str]) -> list[dict[str, Any]]:
    """The counters in the annotated trace of a capture with these samples: one step of 1 ms, base time 10**18."""
    from perfdoctor.api import analyze
    from perfdoctor.testing import TraceBuilder

    rank = folder / "rank0"
    rank.mkdir()
    trace = TraceBuilder().step(0, 1000).kernel("k", 10, 900, launch_us=1).header(baseTimeNanoseconds=10**18)
    trace.write(rank / "timing.json")
    (rank / "nvml.jsonl").write_text("\n".join(lines))
    analyze(folder).export_chrome_trace(folder / "out.json")
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    ours = ("GPU busy", "queue of stream 7")
    return [e for e in events if e["ph"] == "C" and e["name"] not in ours]


def line(at_us: float, **figures: Any) -> str:
    return json.dumps({"t_ns": 10**18 + round(1000 * at_us), "device": 0, **figures})


def test_counters_become_tracks_of_the_exported_trace(tmp_path: Path) -> None:
    lines = [
        line(-9000, sm_mhz=1),
        line(-100, sm_mhz=1500, memory_mhz=2600, throttle=["idle"]),
        line(500, sm_mhz=900, memory_mhz=None, throttle=["hw_thermal"], memory_used_bytes=5 * 10**9),
        line(1200, power_w=300.5),
        line(9000, sm_mhz=2),
        '{"t_ns": 1, "cut',
    ]
    found = [(e["name"], e["ts"], e["args"]) for e in exported(tmp_path, lines)]
    assert found == [
        ("GPU clock, MHz", -100, {"SM": 1500, "memory": 2600}),
        ("GPU throttled", -100, {"throttled": 0}),
        ("GPU clock, MHz", 500, {"SM": 900}),
        ("GPU memory, GB", 500, {"used": 5}),
        ("GPU throttled", 500, {"throttled": 1}),
        ("GPU power, W", 1200, {"power": 300.5}),
    ]


def test_no_samples_are_no_tracks(tmp_path: Path) -> None:
    assert exported(tmp_path, []) == []
