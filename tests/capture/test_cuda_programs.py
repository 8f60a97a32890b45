"""Real programs on a real GPU: what capture sees of them, and rules that fire on a fault and are quiet without it.

All tests need a GPU, and nothing here imitates one. `benchmarks/gpu/run.sh` runs them on a machine that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import perfdoctor  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]

# Eight layers, most of whose products take milliseconds, so that launches run ahead; one value is read a step.
TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader
data = [(torch.randn(4096, 512), torch.randint(10, (4096,))) for _ in range(30)]
model = nn.Sequential(nn.Linear(512, 4096), *(nn.Linear(4096, 4096) for _ in range(6)), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=None, pin_memory=True):
    loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.item()
"""
WINDOWS = {"skip": 4, "base": 6, "warmup": 2, "timing": 5, "evidence": 3}


@pytest.fixture(scope="module")
def recorded(launcher: Any) -> Any:
    """The program above, recorded once."""
    done = launcher.record(TRAIN, **WINDOWS)
    assert done.exit_code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def report(recorded: Any) -> dict[str, Any]:
    """The report on it, as plain data."""
    found: dict[str, Any] = perfdoctor.analyze(recorded.out).to_dict()
    return found


def kernels_of(recorded: Any, trace: str) -> list[dict[str, Any]]:
    return [event for event in recorded.trace(trace)["traceEvents"] if event.get("cat") == "kernel"]


@pytest.mark.parametrize("trace", ["timing", "evidence"])
def test_kernels_are_recorded_and_each_belongs_to_a_launch(recorded: Any, trace: str) -> None:
    kernels = kernels_of(recorded, trace)
    # Eight layers forward, two products each backward, in every step.
    assert (
        sum("gemm" in each["name"] or "cutlass" in each["name"] or "nvjet" in each["name"] for each in kernels)
        >= 3 * 20
    )
    calls = {
        event["args"].get("correlation")
        for event in recorded.trace(trace)["traceEvents"]
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    assert [each["name"] for each in kernels if each["args"]["correlation"] not in calls] == []


def test_the_wait_for_a_value_is_recorded(recorded: Any) -> None:
    names = [event["name"] for event in recorded.trace("timing")["traceEvents"] if event.get("cat") == "cuda_runtime"]
    assert sum("Synchronize" in name for name in names) >= WINDOWS["timing"]
    copies = [event for event in recorded.trace("timing")["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    assert any("DtoH" in event["name"] for event in copies)
    assert any("Pinned -> Device" in event["name"] for event in copies)


def test_shapes_and_exact_lines_are_in_the_evidence_window(recorded: Any) -> None:
    source = (recorded.out.parent / "program1.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "loss.item()" in text)
    assert any(f"program1.py:{line}" in name for name in recorded.names("evidence"))
    assert any("Input Dims" in event.get("args", {}) for event in recorded.trace("evidence")["traceEvents"])


def test_facts_have_the_device_its_memory_and_what_nvml_says(recorded: Any) -> None:
    facts = recorded.facts()
    name = torch.cuda.get_device_name()
    assert facts["devices"][0]["name"] == name
    pytest.importorskip("pynvml")
    nvml = facts["nvml"]
    assert (nvml["status"], nvml["why"]) == ("sampled", None)
    assert nvml["devices"][0]["name"] == name
    assert nvml["devices"][0]["samples"] > 0


def test_the_report_is_of_this_device_and_nothing_failed(report: dict[str, Any]) -> None:
    assert report["traces"][0]["device"] == torch.cuda.get_device_name()
    assert [outcome for outcome in report["outcomes"] if outcome["status"] == "failed"] == []
    assert report["steps"]["count"] == WINDOWS["timing"]


def test_the_account_adds_up(report: dict[str, Any]) -> None:
    (account,) = report["account"]
    assert sum(account["buckets"].values()) == account["window_ns"]
    assert sum(account["detail"].values()) == account["window_ns"]
    assert account["buckets"]["compute"] > 0.2 * account["window_ns"], "large products bind this program"


def test_the_profiler_costs_little_where_the_gpu_binds(report: dict[str, Any]) -> None:
    steps = report["steps"]
    assert 0.7 < steps["recorded_median_ns"] / steps["median_ns"] < 1.5


# Rules: a program with the fault and the same without it.

Step = Callable[[], object]


def make_layers(width: int, depth: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))).to("cuda", dtype)


def train(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def read_a_value_after_each_layer(fixed: bool) -> Step:
    model, x = make_layers(1024, 16), torch.randn(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        hidden, seen = x, []
        for layer in model:
            hidden = layer(hidden)
            mean = hidden.detach().mean()
            seen.append(mean if fixed else mean.item())
        train(hidden.square().mean(), optimizer)

    return step


def copy_from_pageable_memory(fixed: bool) -> Step:
    batch = torch.randn(32, 1 << 20)
    batch = batch.pin_memory() if fixed else batch
    model = nn.Linear(1 << 20, 16, bias=False).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, fused=True)
    return lambda: train(model(batch.to("cuda", non_blocking=fixed)).square().mean(), optimizer)


def multiply_in_float32(fixed: bool) -> Step:
    torch.backends.cuda.matmul.allow_tf32 = fixed
    model, x = make_layers(4096, 4), torch.randn(4096, 4096, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, fused=True)
    return lambda: train(model(x).square().mean(), optimizer)


def convolve_in_float32(fixed: bool) -> Step:
    torch.backends.cudnn.allow_tf32 = fixed
    model = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1, bias=False) for _ in range(6))).to("cuda")
    x = torch.randn(32, 128, 56, 56, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, fused=True)
    return lambda: train(model(x).square().mean(), optimizer)


def attend_by_formula(fixed: bool) -> Step:
    qkv = torch.randn(3, 8, 16, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.SGD([qkv], 1e-4, fused=True)

    def step() -> None:
        q, k, v = qkv.unbind()
        if fixed:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v
        train(mixed.float().square().mean(), optimizer)

    return step


def write_gelu_as_single_ops(fixed: bool) -> Step:
    first, second = (make_layers(4096, 1, torch.bfloat16) for _ in range(2))
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 1e-4, fused=True)

    def step() -> None:
        hidden = first(x)
        if fixed:
            hidden = functional.gelu(hidden, approximate="tanh")
        else:
            hidden = 0.5 * hidden * (1.0 + torch.tanh(0.7978845608 * (hidden + 0.044715 * hidden * hidden * hidden)))
        train(second(hidden).float().mean(), optimizer)

    return step


def update_parameter_by_parameter(fixed: bool) -> Step:
    model, x = make_layers(256, 96), torch.randn(64, 256, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, foreach=False, fused=fixed)
    return lambda: train(model(x).square().mean(), optimizer)


FAULTS: dict[str, Callable[[bool], Step]] = {
    "PD102": read_a_value_after_each_layer,
    "PD105": copy_from_pageable_memory,
    "PD201": multiply_in_float32,
    "PD203": convolve_in_float32,
    "PD205": attend_by_formula,
    "PD301": write_gelu_as_single_ops,
    "PD303": update_parameter_by_parameter,
}


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Any:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    # Without a fault: TF32 is on wherever a test says nothing else.
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before
    torch.cuda.empty_cache()


def loud_rules(step: Step, folder: Path) -> dict[str, str]:
    """The rules that ask for something in a session over twenty steps, with what they say."""
    with perfdoctor.profile(folder / "capture", skip=3, base=5, warmup=2, timing=5, evidence=3) as session:
        for _ in range(20):
            with session.step():
                step()
    return {finding.rule: finding.title for finding in session.report().findings if finding.severity != "info"}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_rule_fires_on_its_fault(rule: str, tmp_path: Path) -> None:
    found = loud_rules(FAULTS[rule](False), tmp_path)
    assert rule in found, found


@pytest.mark.parametrize("rule", FAULTS)
def test_the_rule_is_quiet_without_the_fault(rule: str, tmp_path: Path) -> None:
    found = loud_rules(FAULTS[rule](True), tmp_path)
    assert rule not in found, found
