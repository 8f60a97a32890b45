"""Law 1: the device is where the work ran, not what the file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import analyze_once, read_once
from recordings import SHARED, list_recordings, name_recording

import perfdoctor
from perfdoctor.analysis.context import where_it_ran
from perfdoctor.analysis.context.where_it_ran import DeviceKind
from perfdoctor.analyzers.pd106_tensor_made_on_host import TensorMadeOnHost
from perfdoctor.rank import Rank
from perfdoctor.reporters.verdict import verdict_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import KERNEL, Trace
from perfdoctor.trace.tables.split_ranks import split_ranks

# Where the work of recordings without kernels ran, from their raw JSON: memory events of Device Type 0, mkldnn_* and
# _slow_conv2d ops, normal_ of 3.6 s; cuda_profiler_range, nccl: and runtime calls for the others.
TRUTHS: dict[str, DeviceKind] = {
    "recordings/t4-andrewlala-cpu.json.gz": "cpu",
    "recordings/rtx4060-default.json.gz": "cpu",
    "recordings/cpu-kernelforge-chrome.json.gz": "cpu",
    "recordings/mac-pinn.json.gz": "cpu",
    "traces/cpu-only-rank34.json.gz": "cpu",
    "traces/a100-cupti-counters.json.gz": "gpu_not_recorded",
    "traces/no-distributed-info.json.gz": "gpu_not_recorded",
    "nsight/uvmtorch.sqlite": "gpu_not_recorded",
}


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.iterdir() if ".json" in each.name)


def ranks_of(path: Path) -> list[Rank]:
    return [Rank(trace) for file in files_of(path) for trace in split_ranks(read_once(file))]


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_the_device_of_a_recording_is_where_its_work_ran(path: Path) -> None:
    """Kernels that are in the file make a GPU program; where there are none, the truth was read from the raw events."""
    truth = TRUTHS.get(name_recording(path), "gpu")
    for rank in ranks_of(path):
        kernels = bool((rank.raw_trace.gpu.kind == KERNEL).any())
        assert kernels == (truth == "gpu")
        assert rank.device_kind == truth


@pytest.mark.corpus
@pytest.mark.parametrize("name", TRUTHS)
def test_a_report_says_where_the_work_ran(name: str) -> None:
    report = analyze_once(SHARED / name)
    (trace,) = report.traces
    said = verdict_of(report)
    assert ("on the CPU" in said) == (TRUTHS[name] == "cpu")
    assert ("ProfilerActivity.CUDA" in said) == (TRUTHS[name] == "gpu_not_recorded")
    assert TRUTHS[name] != "cpu" or trace.device is None or f"the machine has {article(trace.device)}" in said


def article(device: str) -> str:
    return f"{'an' if device.startswith('NVIDIA') else 'a'} {device}"


# --- generated programs -------------------------------------------------------------------------------------------


class Op(NamedTuple):
    """An op of a generated program, and how long it takes."""

    name: str
    dur_us: int


HEAVY = st.sampled_from(("aten::addmm", "aten::mkldnn_convolution", "aten::bmm", "aten::native_batch_norm"))
LIGHT = st.sampled_from(("aten::add", "aten::relu_", "aten::view", "aten::empty", "aten::t", "aten::mul"))
CPU_MODELS = st.lists(
    st.one_of(st.builds(Op, HEAVY, st.integers(500, 20_000)), st.builds(Op, LIGHT, st.integers(2, 40))),
    min_size=12,
    max_size=60,
).filter(lambda ops: sum(op.dur_us >= 500 for op in ops) >= 3)
GPU_MODELS = st.lists(st.builds(Op, st.one_of(HEAVY, LIGHT), st.integers(5, 60)), min_size=12, max_size=60)
STRAY_CALLS = st.lists(
    st.sampled_from(("cudaGetDeviceCount", "cudaDeviceSynchronize", "cudaGetDeviceProperties_v2")), max_size=3
)


def cpu_model(ops: list[Op], stray: list[str], copies: int = 0) -> TraceBuilder:
    """A program that computes on the CPU of a machine with an A100: runtime calls and copies, no kernel."""
    trace, at = TraceBuilder(), 0.0
    for op in ops:
        trace.op(op.name, at, op.dur_us)
        at += op.dur_us + 3
    for _ in range(copies):
        trace.op("aten::to", at, 30).op("aten::copy_", at + 2, 25).call("cudaMemcpyAsync", at + 5, 15)
        at += 40
    for name in stray:
        trace.call(name, at, 5)
        at += 6
    return trace


def gpu_model(ops: list[Op], wait_us: int = 0, cold_us: int = 0, *, calls: bool = True) -> TraceBuilder:
    """A program whose kernels were not recorded: each op launches one, the first loads modules, the last one waits."""
    trace, at = TraceBuilder(), 0.0
    for number, op in enumerate(ops):
        dur_us = op.dur_us + (0 if number else cold_us)
        name = "aten::addmm" if op.name == "aten::mkldnn_convolution" else op.name
        trace.op(name, at, dur_us)
        if calls:
            trace.call("cudaLaunchKernel", at + 1, dur_us - 2)
        at += dur_us + 5
    trace.op("aten::item", at, wait_us + 10).op("aten::_local_scalar_dense", at + 1, wait_us + 8)
    if calls:
        trace.call("cudaStreamSynchronize", at + 2, wait_us + 5)
    return trace


@given(CPU_MODELS, STRAY_CALLS, st.integers(0, 10))
def test_a_cpu_model_in_a_file_with_a_gpus_name_is_a_cpu_program(ops: list[Op], stray: list[str], copies: int) -> None:
    rank = Rank(cpu_model(ops, [*stray, "cudaGetDeviceCount"], copies).trace())
    assert rank.device_kind == "cpu"
    account = rank.account
    ops_ns = sum(op.dur_us for op in ops if op.dur_us >= 500) * 1000
    assert account.detail["compute"] + account.detail["bandwidth"] >= ops_ns


@given(GPU_MODELS, st.integers(0, 50_000), st.sampled_from((0, 2_000_000)), st.booleans())
def test_a_gpu_program_without_recorded_kernels_is_no_cpu_program(
    ops: list[Op], wait_us: int, cold_us: int, calls: bool
) -> None:
    rank = Rank(gpu_model(ops, wait_us, cold_us, calls=calls).trace())
    assert rank.device_kind == "gpu_not_recorded"
    assert rank.account.detail["compute"] == 0


@given(CPU_MODELS, st.integers(1, 20))
def test_a_few_small_kernels_make_no_gpu_program(ops: list[Op], kernels: int) -> None:
    trace, heavy_us = cpu_model(ops, []), sum(op.dur_us for op in ops if op.dur_us >= 500)
    end = sum(op.dur_us + 3 for op in ops)
    for number in range(kernels):
        at = end + 10 * number
        trace.op("aten::add_", at, 8).kernel("vectorized_elementwise_kernel", at + 5, 1, launch_us=at + 1)
    expected = "cpu" if kernels <= 0.05 * heavy_us else "gpu"
    assert Rank(trace.trace()).device_kind == expected


@given(st.sampled_from(("aten::cdist", "aten::addmm")), st.integers(60_000, 3_000_000))
def test_a_gpu_that_has_all_layers_waits_for_the_cpu_however_long(op: str, dur_us: int) -> None:
    """A step with layers of 2 ms on the GPU, and an op of many times that on the CPU: a layer, or none."""
    trace = TraceBuilder()
    trace.op("aten::mm", 0, 20).kernel("ampere_fp16_s16816gemm_fp16_128x128", 15, 2000, launch_us=10)
    trace.op(op, 3000, dur_us)
    assert Rank(trace.trace()).device_kind == ("cpu" if op == "aten::addmm" else "gpu")


@given(GPU_MODELS, st.integers(3, 30), st.integers(200, 20_000))
def test_the_part_of_a_gpu_program_that_computes_on_the_cpu_is_found(ops: list[Op], layers: int, layer_us: int) -> None:
    """Layers that launch nothing before a pass on the GPU whose ops have the same names."""
    trace, at = TraceBuilder(), 0.0
    for _ in range(layers):
        trace.op("aten::addmm", at, layer_us)
        at += layer_us + 5
    for name in ["aten::addmm"] * layers + [op.name for op in ops if op.name != "aten::mkldnn_convolution"]:
        trace.op(name, at, 15).kernel("volta_sgemm_128x64_nn", at + 10, layer_us, launch_us=at + 5)
        at += layer_us + 20
    rank = Rank(trace.trace())
    assert rank.device_kind == "gpu"
    assert rank.where_it_ran.cpu_ns == layers * layer_us * 1000


def large_kernels() -> TraceBuilder:
    """Ops that compute on the CPU for 60 ms, and kernels of 20 ms."""
    trace = TraceBuilder()
    for number in range(20):
        trace.op("aten::uniform_", number * 3000, 3000).kernel("sgemm", number * 3000, 1000)
    return trace


def busy_beside() -> TraceBuilder:
    """A thread that prepares data on the CPU beside the one that launches."""
    trace = gpu_model([Op("aten::add", 20)] * 50)
    for number in range(20):
        trace.op("aten::uniform_", number * 60, 60, thread=2)
    return trace


def full_queue() -> TraceBuilder:
    """No calls were recorded, and the queue of launches is full: each op waits for a kernel as long as any other."""
    trace = TraceBuilder()
    for number in range(100):
        trace.op(("aten::addmm", "aten::add", "aten::relu", "aten::mul")[number % 4], number * 520, 500)
    return trace


def cudnn() -> TraceBuilder:
    """CPU activities alone, of convolutions by cuDNN that wait for the queue."""
    trace = TraceBuilder()
    for number in range(100):
        trace.op("aten::cudnn_convolution", number * 600, 500).op("aten::relu", number * 600 + 510, 20)
    return trace


def only_waits() -> TraceBuilder:
    """CUDA was recorded, and the program waits for work that was launched before the recording."""
    trace = TraceBuilder()
    trace.call("cudaDeviceSynchronize", 100, 90_000)
    for number in range(12):
        trace.op("aten::add", number * 5, 4)
    return trace


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (large_kernels, "gpu"),
        (busy_beside, "gpu_not_recorded"),
        (full_queue, "gpu_not_recorded"),
        (cudnn, "gpu_not_recorded"),
        (only_waits, "gpu_not_recorded"),
        (lambda: TraceBuilder().op("aten::mm", 0, 20), "gpu_not_recorded"),
        (lambda: TraceBuilder(device=None).op("aten::mm", 0, 20), "cpu"),
        (lambda: TraceBuilder(device=None).op("aten::mm", 0, 20).range("nccl:all_reduce", 30, 5), "gpu_not_recorded"),
        # aten::gru asks whether cuDNN could be used, on a CPU as well.
        (lambda: TraceBuilder(device=None).op("aten::cudnn_is_acceptable", 0, 2).op("aten::addmm", 5, 900), "cpu"),
        (lambda: TraceBuilder(device=None).op("aten::_cudnn_rnn", 0, 900), "gpu_not_recorded"),
        (lambda: TraceBuilder().op("aten::mkldnn_convolution", 0, 900), "cpu"),
        (lambda: TraceBuilder().op("aten::_scaled_dot_product_flash_attention_for_cpu", 0, 900), "cpu"),
    ],
)
def test_the_device_of_special_programs(program: object, kind: DeviceKind) -> None:
    assert callable(program)
    assert Rank(program().trace()).device_kind == kind


def test_loading_says_nothing_of_the_device() -> None:
    """A loader in the main process transforms images on the CPU, whatever the model runs on."""
    trace, at = TraceBuilder(), 0
    for _ in range(5):
        trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 90_000)
        trace.op("aten::div", at + 10, 80_000)
        trace.op("aten::addmm", at + 90_010, 30).call("cudaLaunchKernel", at + 90_015, 10)
        at += 91_000
    assert Rank(trace.trace()).device_kind == "gpu_not_recorded"


# --- tensors made on the CPU ------------------------------------------------------------------------------------------

FACTORIES = (
    "aten::randn",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::arange",
    "aten::randint",
    "aten::linspace",
)
VALUES = ("aten::lift_fresh", "aten::empty", "aten::index_select", "aten::stack")


def copied(maker: str, made_us: int, times: int, *, in_loader: bool = False) -> TraceBuilder:
    """A program on the CPU whose loop makes a tensor and copies it to the GPU of the machine, between its layers."""
    trace, at = TraceBuilder(), 0
    for _ in range(times):
        trace.op("aten::addmm", at, 2000).op(maker, at + 2010, made_us)
        if in_loader:
            trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 2005, made_us + 10)
        at += 2020 + made_us
        trace.op("aten::to", at, 300).op("aten::copy_", at + 5, 290).call("cudaMemcpyAsync", at + 10, 280)
        at += 310
    return trace


@given(st.sampled_from(FACTORIES), st.integers(300, 20_000), st.integers(3, 8))
def test_what_a_cpu_program_makes_and_copies_is_found(maker: str, made_us: int, times: int) -> None:
    rank = Rank(copied(maker, made_us, times).trace())
    (found,) = TensorMadeOnHost().analyze_rank(rank)
    assert rank.device_kind == "cpu"
    assert found.cost_ns == pytest.approx((made_us + 300) * 1000 * (1 if rank.steps.count else times), rel=0.01)


@given(st.sampled_from(VALUES), st.integers(300, 20_000), st.sampled_from(FACTORIES))
def test_values_and_batches_that_a_cpu_program_copies_are_its_own(values: str, made_us: int, factory: str) -> None:
    for trace in (copied(values, made_us, 4), copied(factory, made_us, 4, in_loader=True)):
        assert not list(TensorMadeOnHost().analyze_rank(Rank(trace.trace())))


# --- servers ----------------------------------------------------------------------------------------------------------

SERVERS = (
    "vllm/v1/engine/async_llm.py(391): output_handler",
    "uvicorn/server.py(69): run",
    "fastapi/routing.py(2): app",
)


def server(frame: str, requests: int, device: str | None) -> TraceBuilder:
    """A process that waits for requests, and hands them to the process of a model."""
    trace = TraceBuilder(device=device)
    trace.frame(frame, 0, 50_000 * requests)
    for number in range(requests):
        at = 50_000 * number
        trace.frame("selectors.py(451): select", at + 10, 47_000)
        trace.op("aten::empty", at + 48_000, 5).op("aten::to", at + 48_010, 12)
    return trace


@given(st.sampled_from(SERVERS), st.integers(1, 30), st.sampled_from((None, "NVIDIA H100 80GB HBM3")))
def test_a_process_that_only_serves_runs_no_model(frame: str, requests: int, device: str | None) -> None:
    rank = Rank(server(frame, requests, device).trace())
    assert rank.device_kind == "cpu"
    assert rank.context.is_server_host
    assert rank.context.phase == "unknown"


@pytest.mark.parametrize(
    "runs_model",
    [
        lambda trace: trace.frame("nn.Module: LlamaForCausalLM_0", 48_100, 1500),
        lambda trace: trace.frame("vllm/v1/worker/gpu_model_runner.py(1200): execute_model", 48_100, 1500),
        lambda trace: trace.call("cudaGraphLaunch", 48_100, 900),
        lambda trace: trace.kernel("gemm", 48_100, 900, launch_us=48_050),
        lambda trace: trace.op("aten::addmm", 10, 30_000),
    ],
    ids=["modules", "runner", "graph", "kernel", "layers"],
)
def test_a_server_that_runs_its_model_is_no_host_alone(runs_model: Callable[[TraceBuilder], object]) -> None:
    trace = server(SERVERS[0], 3, None)
    runs_model(trace)
    assert not Rank(trace.trace()).context.is_server_host


def test_the_host_side_of_a_server_is_called_so(tmp_path: Path) -> None:
    path = server(SERVERS[0], 8, "NVIDIA H100 80GB HBM3").write(tmp_path / "trace.json")
    said = verdict_of(perfdoctor.analyze(path))
    assert said.startswith("The host side of a server (vLLM), recorded for ")
    assert "ProfilerActivity" not in said


# --- switching the law off ----------------------------------------------------------------------------------------


def by_the_name_in_the_file(trace: Trace, *_: object) -> DeviceKind:
    """What the device was taken for before: what the file names."""
    if len(trace.gpu):
        return "gpu"
    return "gpu_not_recorded" if len(trace.calls) or trace.device.name is not None else "cpu"


def test_without_the_law_a_cpu_model_is_taken_for_a_gpu_program(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = cpu_model([Op("aten::addmm", 5000), Op("aten::add", 10)] * 10, ["cudaGetDeviceCount"]).trace()
    assert Rank(trace).device_kind == "cpu"
    monkeypatch.setattr(where_it_ran, "_judge", by_the_name_in_the_file)
    assert Rank(trace).device_kind == "gpu_not_recorded"


def test_ops_of_the_cpu_are_those_without_launches() -> None:
    trace = gpu_model([Op("aten::add", 40)] * 20)
    trace.op("aten::normal_", 100_000, 500_000)
    rank = Rank(trace.trace())
    names = {rank.trace.strings[code] for code in np.unique(rank.trace.ops.name[rank.where_it_ran.cpu_ops])}
    assert names == {"aten::normal_"}
    assert rank.where_it_ran.cpu_ns == 500_000_000
