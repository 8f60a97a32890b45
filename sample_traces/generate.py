"""Writes the generated sample traces: one for each diagnosis, one of a program without a fault, and that of the demo.

    python sample_traces/generate.py            # all of them, into this folder; the demo's into perfdoctor/demo
    python sample_traces/generate.py /tmp/x     # elsewhere

Each is the same small training program with one property changed, three for the demo. The same version of this script
writes the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import gpu_kernels as k
from workloads import ResNet, Transformer

from perfdoctor.testing import SimulatedProcess, TraceBuilder

HERE = Path(__file__).resolve().parent
# What `perfdoctor demo` analyses is part of the package, and stands nowhere else.
DEMO = HERE.parent / "perfdoctor" / "demo" / "demo.json.gz"
_LOADER = "enumerate(DataLoader)#{kind}DataLoaderIter.__next__"
_FIRST_STEP = 10  # the profiler was started after a few steps of warming up


@dataclass(frozen=True, slots=True)
class Program:
    """A training program; the defaults have no fault.

    Attributes:
        gpu: The device.
        dtype: Type of weights and activations.
        tokens: Tokens a step of a transformer; 0 trains a ResNet.
        load_us: Time in which the training loop loads each batch itself; 0 when worker processes load it.
        logs_loss: Whether every step reads the loss and the norm of the gradients and writes them to a log.
        python_us: Python work on the CPU between batch and forward.
        varies_batches: Whether batches vary in size, so that the allocator has to ask the driver for memory.
        stacks: Whether Python functions are recorded.
        steps: Recorded steps.
        ranks: Processes of the job; gradients are reduced when there are several.
        all_reduce_us: Time of one collective over all gradients.
        one_bucket: Whether all gradients are reduced at once after backward.
    """

    gpu: k.Gpu = k.A100
    dtype: str = k.BF16
    tokens: int = 8192
    load_us: float = 0
    logs_loss: bool = False
    python_us: float = 0
    varies_batches: bool = False
    stacks: bool = True
    steps: int = 6
    ranks: int = 1
    all_reduce_us: float = 600
    one_bucket: bool = False


PROGRAMS: Mapping[str, Program] = {
    "healthy": Program(gpu=k.H100, tokens=24576),
    "dataloader-stall": Program(load_us=21_000),
    "host-device-sync": Program(logs_loss=True),
    "gpu-idle": Program(python_us=17_000),
    "launch-bound": Program(tokens=512, stacks=False),
    "allocator-churn": Program(varies_batches=True),
    "gemm-without-tensor-cores": Program(dtype=k.FP32, tokens=4096),
    "convolution-without-tensor-cores": Program(gpu=k.V100, dtype=k.FP32, tokens=0, steps=5),
    "exposed-communication": Program(ranks=16, all_reduce_us=6500, one_bucket=True),
    "demo": Program(dtype=k.FP32, tokens=2048, load_us=21_000, logs_loss=True),
}
STRAGGLER = Program(gpu=k.H100, tokens=16384, ranks=4, steps=4)
_LATE_RANK, _LATE_TOKENS = 2, 22528


def main() -> None:
    """Write all traces into the folder given, or into this one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, text in generate_samples():
        path = DEMO if name == DEMO.name and folder == HERE else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0))
        print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


def generate_samples() -> Iterator[tuple[str, bytes]]:
    """The file names and the JSON texts of all generated traces; a recording has taken the place of some."""
    recorded = read_recorded()
    for seed, (name, program) in enumerate(PROGRAMS.items()):
        if name in recorded:
            continue
        process = SimulatedProcess(seed, record_stacks=program.stacks)
        simulate_training(process, program)
        yield f"{name}.json.gz", _trace_text(process, program, 0 if program.ranks > 1 else None)
    for rank, (process, program) in enumerate(simulate_straggler()):
        yield f"straggler/rank{rank}.json.gz", _trace_text(process, program, rank)


def read_recorded() -> frozenset[str]:
    """The names of samples that were recorded on a GPU (recorded.json, which benchmarks/gpu/take_samples.py writes)."""
    path = HERE / "recorded.json"
    return frozenset(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else frozenset()


def simulate_straggler() -> list[tuple[SimulatedProcess, Program]]:
    """Four ranks, one of which has longer batches.

    A collective ends when the last rank has come to it, and everything after it depends on that. So all ranks are
    simulated again and again with the ends that the last simulation gave, until the ends stay the same.
    """
    programs = [
        replace(STRAGGLER, tokens=_LATE_TOKENS) if rank == _LATE_RANK else STRAGGLER for rank in range(STRAGGLER.ranks)
    ]
    ends_ns: list[int] = []
    while True:
        processes = [SimulatedProcess(100 + rank, ends_ns) for rank in range(len(programs))]
        for process, program in zip(processes, programs, strict=True):
            simulate_training(process, program)
        transfer_ns = round(_bucket_us(STRAGGLER) * 1000)
        starts_ns = zip(*(process.collective_starts_ns for process in processes), strict=True)
        last_ends_ns, ends_ns = ends_ns, [max(starts) + transfer_ns for starts in starts_ns]
        if ends_ns == last_ends_ns:
            return list(zip(processes, programs, strict=True))


def simulate_training(process: SimulatedProcess, program: Program) -> None:
    """Run the steps of a program in a simulated process."""
    network = _make_network(process, program)
    with process.frame("train.py(83): <module>", "train.py(58): main"):
        for number in range(program.steps):
            with process.annotation(f"ProfilerStep#{_FIRST_STEP + number}"):
                _load_batch(process, program)
                if program.python_us:
                    with process.frame("masking.py(17): mask_tokens"):
                        process.run_cpu(program.python_us)
                with process.frame("train.py(31): train_step"):
                    _train_step(process, program, network)
        with process.frame("torch/profiler/profiler.py(741): stop"):
            process.synchronize("cudaDeviceSynchronize")


def _make_network(process: SimulatedProcess, program: Program) -> Transformer | ResNet:
    if not program.tokens:
        return ResNet(process, program.gpu, program.dtype)
    network = Transformer(process, program.gpu, program.dtype, tokens=program.tokens)
    if program.varies_batches:
        network.before_block = lambda layer: _allocate(process) if layer == 1 else None
    if program.ranks > 1 and not program.one_bucket:
        network.gradients_ready = lambda: _all_reduce(process, _bucket_us(program))
    return network


def _bucket_us(program: Program) -> float:
    """Time of the collective of one of three buckets: two of two blocks each and one of the embedding."""
    return program.all_reduce_us / 3


def _load_batch(process: SimulatedProcess, program: Program) -> None:
    """Take the next batch from the DataLoader."""
    kind = "_SingleProcess" if program.load_us else "_MultiProcessing"
    with process.frame("torch/utils/data/dataloader.py(733): __next__"), process.annotation(_LOADER.format(kind=kind)):
        if not program.load_us:
            process.run_cpu(90)
            return
        items = 16
        for _ in range(items):
            with process.frame("dataset.py(24): __getitem__", "dataset.py(11): tokenize"):
                process.run_cpu(program.load_us / items)
                process.ops("aten::empty")
        with process.frame("torch/utils/data/_utils/collate.py(155): default_collate"), process.op("aten::stack", 20.0):
            process.ops("aten::cat", us=60.0)


def _train_step(process: SimulatedProcess, program: Program, network: Transformer | ResNet) -> None:
    input_bytes = 8 * network.tokens if isinstance(network, Transformer) else 4 * network.images * 3 * 224**2
    for size in (input_bytes, 8 * 64):
        with process.op("aten::to", 6.0), process.op("aten::_to_copy", 6.0), process.op("aten::copy_", 8.0):
            process.copy("HtoD", size)
    network.forward()
    if isinstance(network, Transformer):
        network.loss(network.tokens, network.vocabulary, "model.py(88): loss")
    else:
        network.loss(network.images, 1000, "losses.py(9): classification")
    if program.logs_loss:
        _log_value(process, "metrics.py(22): log_loss", 900)
    with process.annotation("Optimizer.zero_grad#Optimizer.zero_grad"):
        process.run_cpu(25)
    with (
        process.frame("torch/_tensor.py(570): backward", "torch/autograd/__init__.py(242): backward"),
        process.autograd_thread(),
    ):
        network.backward()
        if program.one_bucket:
            _all_reduce(process, program.all_reduce_us)
    if program.ranks > 1:
        process.wait_for_collectives()
    if program.logs_loss:
        with process.op("aten::_foreach_norm", 30.0):
            process.kernel(k.FOREACH_NORM.format(t="float"), 60)
        _log_value(process, "metrics.py(31): log_gradient_norm", 700)
    network.step()


def _log_value(process: SimulatedProcess, frame: str, log_us: float) -> None:
    """`.item()`, and a line in a log."""
    with process.frame(frame):
        with process.op("aten::item", 3.0), process.op("aten::_local_scalar_dense", 4.0):
            process.copy("DtoH", 4)
            process.synchronize()
        process.run_cpu(log_us)


def _allocate(process: SimulatedProcess) -> None:
    """The caching allocator finds no block and no free memory: it frees its cached blocks and asks the driver again."""
    with process.op("aten::empty", 20.0):
        process.call("cudaMalloc", 300)
        process.call("cudaFree", 200, until_ns=process.gpu_done_ns())
        for _ in range(7):
            process.call("cudaFree", 280)
        process.call("cudaMalloc", 900)


def _all_reduce(process: SimulatedProcess, us: float) -> None:
    """DistributedDataParallel reduces a bucket of gradients."""
    with (
        process.op("c10d::allreduce_", 15.0),
        process.annotation("nccl:all_reduce"),
        process.op("record_param_comms", 10.0),
    ):
        process.collective(k.ALL_REDUCE.format(t="bf16"), us)


def _trace_text(process: SimulatedProcess, program: Program, rank: int | None) -> bytes:
    gpu = program.gpu
    world = program.ranks if rank is not None else None
    builder = TraceBuilder(gpu.name, gpu.capability, gpu.sm_count, gpu.memory_bytes, rank, world)
    builder.header(record_shapes=1, with_stack=int(program.stacks), madeBy="perfdoctor sample_traces/generate.py")
    return process.write(builder).to_bytes()


if __name__ == "__main__":
    main()
