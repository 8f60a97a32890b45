"""Cases of the rules about what NVML says: PD601 to PD604."""

from __future__ import annotations

from typing import Any

from rule_cases import TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


def computing(steps: int = 2) -> TraceBuilder:
    """Steps of 1 ms in which products fill 0.8 ms."""
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3")
    for step in range(steps):
        trace.step(1000 * step, 1000).op("aten::mm", 1000 * step + 5, 20)
        trace.kernel(TENSOR_GEMM, 1000 * step + 100, 800, launch_us=1000 * step + 10)
    return trace


def copying(direction: str = "HtoD") -> TraceBuilder:
    """Steps of 1 ms: 0.4 ms of a copy that nothing overlaps, then 0.6 ms of products."""
    trace = TraceBuilder(device="NVIDIA H100 80GB HBM3")
    for at in (0, 1000):
        trace.step(at, 1000).memcpy(direction, at + 10, 400, 20_000_000, launch_us=at + 5, pinned=True)
        trace.kernel(TENSOR_GEMM, at + 410, 590, launch_us=at + 8)
    return trace


def load(**figures: Any) -> dict[str, Any]:
    """What NVML said in a window: 20 samples under load at the maximal clock, the link at its best."""
    whole = {"samples": 20, "busy": 20, "clocked": 20, "sm_mhz": 1980.0, "power_w": 400.0, "temperature_c": 60.0}
    return {**whole, "reasons": {}, "linked": 20, "pcie_generation": 5, "pcie_width": 16, **figures}


def sampled(*windows: dict[str, Any], **device: Any) -> dict[str, Any]:
    """Facts of a program with one GPU, by what NVML said in each window."""
    labels = ("timing", "base", "evidence")
    constant = {
        "device": 0,
        "max_sm_mhz": 1980,
        "power_limit_w": 700.0,
        "default_power_limit_w": 700.0,
        "memory_total_bytes": 80_000_000_000,
        "max_pcie_generation": 5,
        "max_pcie_width": 16,
    }
    under_load = dict(zip(labels, windows, strict=False))
    return {"nvml": {"devices": [{**constant, "under_load": under_load, **device}]}}


def reduced(reason: str, mhz: float = 990.0, samples: int = 20, **figures: Any) -> dict[str, Any]:
    """A window in which a reason reduced the clock in so many of 20 samples."""
    return load(sm_mhz=mhz, reasons={reason: {"samples": samples, "sm_mhz": mhz}}, **figures)


def two_gpus(window: dict[str, Any]) -> dict[str, Any]:
    facts = sampled(window)
    return {"nvml": {"devices": facts["nvml"]["devices"] * 2}}


# The clock is halved all the time: of 800 us of products a step 400 us could go.
_HALF = (0, None, 400_000)
PD601 = [
    RuleCase(
        "PD601",
        "hot",
        computing,
        (
            ExpectedFinding(
                "medium",
                400_000,
                _HALF,
                title="reduced to 990 of 1,980 MHz in 100% of the time under load: the GPU is too hot",
                advice="Cool it",
                evidence={"samples under load": 20, "temperature under load": 88},
            ),
        ),
        sampled(reduced("hw_thermal", temperature_c=88.2)),
    ),
    RuleCase(  # 10 of 20 samples
        "PD601",
        "hot-half-of-the-time",
        computing,
        (ExpectedFinding("medium", 200_000, (0, None, 200_000), title="50% of the time"),),
        sampled(reduced("sw_thermal", samples=10)),
    ),
    RuleCase(
        "PD601",
        "power-brake",
        computing,
        (ExpectedFinding("medium", 400_000, _HALF, title="power brake", advice="power cables"),),
        sampled(reduced("hw_slowdown")),
    ),
    RuleCase(
        "PD601",
        "clocks-that-somebody-set",
        computing,
        (ExpectedFinding("medium", 400_000, _HALF, title="application clocks are set", fix="--reset-gpu-clocks"),),
        sampled(reduced("application_clocks")),
    ),
    RuleCase(  # 8 and 8 samples are enough together
        "PD601",
        "two-short-windows",
        computing,
        (ExpectedFinding("medium", 400_000, _HALF, evidence={"samples under load": 16}),),
        sampled(*(reduced("hw_thermal", samples=8, clocked=8, busy=8),) * 2),
    ),
    RuleCase(
        "PD601",
        "a-slowdown-beside-its-cause",
        computing,
        (ExpectedFinding("medium", 400_000, _HALF, title="too hot"),),
        sampled(
            load(sm_mhz=990.0, reasons={n: {"samples": 20, "sm_mhz": 990.0} for n in ("hw_slowdown", "hw_thermal")})
        ),
    ),
    RuleCase("PD601", "idle-at-low-clocks", computing, facts=sampled(load(busy=0, clocked=0, sm_mhz=None))),
    RuleCase("PD601", "one-hot-sample", computing, facts=sampled(reduced("hw_thermal", samples=1))),
    RuleCase("PD601", "few-samples", computing, facts=sampled(reduced("hw_thermal", samples=4, clocked=4, busy=4))),
    RuleCase("PD601", "hardly-reduced", computing, facts=sampled(reduced("sw_thermal", 1950.0))),
    RuleCase("PD601", "the-power-limit", computing, facts=sampled(reduced("sw_power_cap"))),
    RuleCase("PD601", "nothing-computes", lambda: step_of((0, 1)), facts=sampled(reduced("hw_thermal"))),
]

_X8 = load(pcie_width=8)
PD602 = [
    RuleCase(  # half of the lanes: of 400 us of copies 200 could go
        "PD602",
        "half-of-the-lanes",
        copying,
        (
            ExpectedFinding(
                "medium",
                200_000,
                (0, None, 200_000),
                title="runs as generation 5 x8 under load, and could run as generation 5 x16",
                evidence={"link under load": 31.5, "link at its best": 63.0},
            ),
        ),
        sampled(_X8),
    ),
    RuleCase(
        "PD602",
        "an-older-generation-to-the-host",
        lambda: copying("DtoH"),
        (ExpectedFinding("medium", 299_949, (0, None, 299_949), title="generation 3 x16"),),
        sampled(load(pcie_generation=3)),
    ),
    RuleCase(
        "PD602",
        "two-windows",
        copying,
        (ExpectedFinding("medium", 200_000, evidence={"samples under load": 40}),),
        sampled(_X8, _X8),
    ),
    RuleCase(
        "PD602",
        "half-of-the-lanes-of-an-older-generation",
        copying,
        (ExpectedFinding("medium", 349_975, title="generation 3 x8"),),
        sampled(load(pcie_generation=3, pcie_width=8)),
    ),
    RuleCase(
        "PD602",
        "both-directions",
        lambda: copying().memcpy("DtoH", 2010, 400, 20_000_000, pinned=True).step(2000, 1000),
        (ExpectedFinding("medium", 200_000),),
        sampled(_X8),
    ),
    RuleCase(
        "PD602", "a-quarter-of-the-lanes", copying, (ExpectedFinding("medium", 300_000),), sampled(load(pcie_width=4))
    ),
    RuleCase("PD602", "at-its-best", copying, facts=sampled(load())),
    RuleCase("PD602", "at-its-best-once", copying, facts=sampled(_X8, load(linked=1))),
    RuleCase("PD602", "idle-in-a-low-generation", copying, facts=sampled(load(busy=0, linked=0, pcie_generation=None))),
    RuleCase("PD602", "nothing-is-copied", computing, facts=sampled(_X8)),
    RuleCase("PD602", "copies-on-the-device", lambda: copying("DtoD"), facts=sampled(_X8)),
    RuleCase("PD602", "two-gpus", copying, facts=two_gpus(_X8)),
]


def shared(count: int = 1, min_count: int | None = None, memory: float = 0.0, use: int | None = None) -> dict[str, Any]:
    size = memory * 80_000_000_000
    return sampled(
        load(),
        other_processes={"min": count if min_count is None else min_count, "max": count},
        other_memory_bytes={"min": 0, "max": round(size)},
        other_sm_percent=None if use is None else {"min": 0, "max": use},
    )


PD603 = [
    RuleCase(
        "PD603",
        "another-training",
        computing,
        (
            ExpectedFinding(
                "info",
                0,
                (None, None, None),
                title="1 process of other jobs is on the GPU: it takes up to 60% of its time and holds 25% of its mem",
                fix="nvidia-smi",
            ),
        ),
        shared(memory=0.25, use=60),
    ),
    RuleCase(
        "PD603",
        "two-that-hold-memory",
        computing,
        (ExpectedFinding("info", 0, title="2 processes of other jobs are on the GPU: they hold 50% of its memory"),),
        shared(2, memory=0.5, use=0),
    ),
    RuleCase(
        "PD603",
        "use-unknown",
        computing,
        (ExpectedFinding("info", 0, title="holds 10%", evidence={"most of the SMs' time that they took": None}),),
        shared(memory=0.1),
    ),
    RuleCase(
        "PD603",
        "use-without-memory",
        computing,
        (ExpectedFinding("info", 0, title="it takes up to 7% of its time and holds 0% of its memory"),),
        shared(use=7),
    ),
    RuleCase(
        "PD603",
        "one-that-stays-and-one-that-goes",
        computing,
        (ExpectedFinding("info", 0, title="1 process of other jobs"),),
        shared(2, min_count=1, memory=0.2, use=30),
    ),
    RuleCase("PD603", "alone", computing, facts=shared(0)),
    RuleCase("PD603", "one-that-came-and-went", computing, facts=shared(1, min_count=0, memory=0.3, use=90)),
    RuleCase("PD603", "an-idle-notebook", computing, facts=shared(1, memory=0.01, use=0)),
    RuleCase(
        "PD603", "another-namespace", computing, facts=sampled(load(), other_processes=None, processes={"max": 3})
    ),
    RuleCase("PD603", "an-older-capture", computing, facts=sampled(load(), processes={"min": 4, "max": 4})),
]

_CAPPED = reduced("sw_power_cap", 1386.0)
PD604 = [
    RuleCase(
        "PD604",
        "the-card's-own-limit",
        computing,
        (
            ExpectedFinding(
                "info", 0, (None, None, None), title="The power limit of 700 W sets the clock", advice="own"
            ),
        ),
        sampled(_CAPPED),
    ),
    RuleCase(  # at 700 W at most 1,732 MHz: a fifth of 800 us
        "PD604",
        "a-lowered-limit",
        computing,
        (
            ExpectedFinding(
                "medium",
                160_000,
                (0, None, 160_000),
                title="lowered to 560 of 700 W and sets the clock: 1,386 of 1,980 MHz",
                fix="--power-limit=700",
                evidence={"power limit in force": 560.0, "of these at the power limit": 100},
            ),
        ),
        sampled(_CAPPED, power_limit_w=560.0),
    ),
    RuleCase(  # at the maximal clock 0.7 of the time
        "PD604",
        "no-more-than-the-maximal-clock",
        computing,
        (ExpectedFinding("medium", 240_000, (0, None, 240_000)),),
        sampled(_CAPPED, power_limit_w=350.0),
    ),
    RuleCase(
        "PD604",
        "default-unknown",
        computing,
        (ExpectedFinding("info", 0, evidence={"default power limit": None}),),
        sampled(_CAPPED, default_power_limit_w=None),
    ),
    RuleCase("PD604", "two-gpus-at-their-own-limit", computing, (), two_gpus(_CAPPED)),
    RuleCase(
        "PD604",
        "half-of-the-time-at-a-lowered-limit",
        computing,
        (ExpectedFinding("medium", 80_000, (0, None, 80_000)),),
        sampled(reduced("sw_power_cap", 1386.0, samples=10), power_limit_w=560.0),
    ),
    RuleCase("PD604", "nothing-computes", lambda: step_of((0, 1)), facts=sampled(_CAPPED, power_limit_w=560.0)),
    RuleCase("PD604", "at-the-maximal-clock", computing, facts=sampled(reduced("sw_power_cap", 1950.0))),
    RuleCase("PD604", "peaks-only", computing, facts=sampled(reduced("sw_power_cap", 1386.0, samples=6))),
    RuleCase("PD604", "idle-at-low-clocks", computing, facts=sampled(load(busy=0, clocked=0, reasons={}))),
]
