"""Writes the generated sample traces: one for each diagnosis, and one of a program that has no fault.

    python sample_traces/generate.py            # all of them, into this folder
    python sample_traces/generate.py /tmp/x     # elsewhere

Each is the same small training program with one thing changed. The same version of this script writes the same bytes.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import gpu_kernels as k
from simulation import Machine
from workloads import ResNet, Transformer

from perfdoctor.testing import TraceBuilder

HERE = Path(__file__).resolve().parent
_LOADER = "enumerate(DataLoader)#{kind}DataLoaderIter.__next__"
_FIRST_STEP = 10  # the profiler was started after a few steps of warming up


@dataclass(frozen=True, slots=True)
class Program:
    """A training program; the defaults are those of one that runs well.

    Attributes:
        gpu: What it runs on.
        dtype: Of weights and activations.
        tokens: Of a transformer, a step; 0 trains a ResNet.
        load_us: What the loop spends on loading each batch itself; 0 has worker processes do it.
        reads_loss: Reads the loss and the norm of the gradients in every step, and writes them to a log.
        pause_us: Python work on the CPU between batch and forward.
        new_sizes: Batches vary in size, so that the allocator has to go to the driver.
        stacks: Whether Python functions were recorded.
        steps: Recorded steps.
        ranks: Processes of the job; more than one reduces gradients.
        reduce_us: Of one collective for all gradients.
        one_bucket: Reduces all gradients at once when backward is over.
    """

    gpu: k.Gpu = k.A100
    dtype: str = k.BF16
    tokens: int = 8192
    load_us: float = 0
    reads_loss: bool = False
    pause_us: float = 0
    new_sizes: bool = False
    stacks: bool = True
    steps: int = 6
    ranks: int = 1
    reduce_us: float = 600
    one_bucket: bool = False


PROGRAMS: Mapping[str, Program] = {
    "healthy": Program(gpu=k.H100, tokens=24576),
    "dataloader-stall": Program(load_us=21_000),
    "host-device-sync": Program(reads_loss=True),
    "gpu-idle": Program(pause_us=17_000),
    "launch-bound": Program(tokens=512, stacks=False),
    "allocator-churn": Program(new_sizes=True),
    "gemm-without-tensor-cores": Program(dtype=k.FP32, tokens=4096),
    "convolution-without-tensor-cores": Program(gpu=k.V100, dtype=k.FP32, tokens=0, steps=5),
    "exposed-communication": Program(ranks=16, reduce_us=6500, one_bucket=True),
}
STRAGGLER = Program(gpu=k.H100, tokens=16384, ranks=4, steps=4)
_LATE_RANK, _LATE_TOKENS = 2, 22528


def main() -> None:
    """Write all traces into the folder given, or into this one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, text in generate():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0))
        print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


def generate() -> Iterator[tuple[str, bytes]]:
    """The file names and the JSON texts of all generated traces."""
    for seed, (name, program) in enumerate(PROGRAMS.items()):
        machine = Machine(seed, stacks=program.stacks)
        train(machine, program)
        yield f"{name}.json.gz", _text(machine, program, 0 if program.ranks > 1 else None)
    for rank, (machine, program) in enumerate(straggler()):
        yield f"straggler/rank{rank}.json.gz", _text(machine, program, rank)


def straggler() -> list[tuple[Machine, Program]]:
    """Four ranks, one of which has longer batches.

    A collective ends when the last rank has come to it, and what follows depends on that: so all ranks are played
    through again with the ends that the last time gave, until nothing changes.
    """
    programs = [
        replace(STRAGGLER, tokens=_LATE_TOKENS) if rank == _LATE_RANK else STRAGGLER for rank in range(STRAGGLER.ranks)
    ]
    meetings: list[int] = []
    while True:
        machines = [Machine(100 + rank, meetings) for rank in range(len(programs))]
        for machine, program in zip(machines, programs, strict=True):
            train(machine, program)
        transfer = round(_bucket_us(STRAGGLER) * 1000)
        met = [max(starts) + transfer for starts in zip(*(machine.joined for machine in machines), strict=True)]
        if met == meetings:
            return list(zip(machines, programs, strict=True))
        meetings = met


def train(machine: Machine, program: Program) -> None:
    """Play the program's steps through."""
    network = _network(machine, program)
    with machine.frame("train.py(83): <module>", "train.py(58): main"):
        for number in range(program.steps):
            with machine.annotation(f"ProfilerStep#{_FIRST_STEP + number}"):
                _load(machine, program)
                if program.pause_us:
                    with machine.frame("masking.py(17): mask_tokens"):
                        machine.work(program.pause_us)
                with machine.frame("train.py(31): train_step"):
                    _train_step(machine, program, network)
        with machine.frame("torch/profiler/profiler.py(741): stop"):
            machine.synchronize("cudaDeviceSynchronize")


def _network(machine: Machine, program: Program) -> Transformer | ResNet:
    if not program.tokens:
        return ResNet(machine, program.gpu, program.dtype)
    network = Transformer(machine, program.gpu, program.dtype, tokens=program.tokens)
    if program.new_sizes:
        network.before_block = lambda layer: _allocate(machine) if layer == 1 else None
    if program.ranks > 1 and not program.one_bucket:
        network.gradients_ready = lambda: _all_reduce(machine, _bucket_us(program))
    return network


def _bucket_us(program: Program) -> float:
    """Of three buckets: two of two blocks each and one of the embedding."""
    return program.reduce_us / 3


def _load(machine: Machine, program: Program) -> None:
    """Take the next batch from the DataLoader."""
    kind = "_SingleProcess" if program.load_us else "_MultiProcessing"
    with (
        machine.frame("torch/utils/data/dataloader.py(733): __next__"),
        machine.annotation(_LOADER.format(kind=kind)),
    ):
        if not program.load_us:
            machine.work(90)
            return
        items = 16
        for _ in range(items):
            with machine.frame("dataset.py(24): __getitem__", "dataset.py(11): tokenize"):
                machine.work(program.load_us / items)
                machine.ops("aten::empty")
        with machine.frame("torch/utils/data/_utils/collate.py(155): default_collate"), machine.op("aten::stack", 20.0):
            machine.ops("aten::cat", us=60.0)


def _train_step(machine: Machine, program: Program, network: Transformer | ResNet) -> None:
    input_bytes = 8 * network.tokens if isinstance(network, Transformer) else 4 * network.images * 3 * 224**2
    for size in (input_bytes, 8 * 64):
        with machine.op("aten::to", 6.0), machine.op("aten::_to_copy", 6.0), machine.op("aten::copy_", 8.0):
            machine.copy("HtoD", size)
    network.forward()
    if isinstance(network, Transformer):
        network.loss(network.tokens, network.vocabulary, "model.py(88): loss")
    else:
        network.loss(network.images, 1000, "losses.py(9): classification")
    if program.reads_loss:
        _read(machine, "metrics.py(22): log_loss", 900)
    with machine.annotation("Optimizer.zero_grad#Optimizer.zero_grad"):
        machine.work(25)
    with (
        machine.frame("torch/_tensor.py(570): backward", "torch/autograd/__init__.py(242): backward"),
        machine.autograd_thread(),
    ):
        network.backward()
        if program.one_bucket:
            _all_reduce(machine, program.reduce_us)
    if program.ranks > 1:
        machine.wait_for_collectives()
    if program.reads_loss:
        with machine.op("aten::_foreach_norm", 30.0):
            machine.kernel(k.FOREACH_NORM.format(t="float"), 60)
        _read(machine, "metrics.py(31): log_gradient_norm", 700)
    network.step()


def _read(machine: Machine, place: str, log_us: float) -> None:
    """`.item()`, and a line in a log."""
    with machine.frame(place):
        with machine.op("aten::item", 3.0), machine.op("aten::_local_scalar_dense", 4.0):
            machine.copy("DtoH", 4)
            machine.synchronize()
        machine.work(log_us)


def _allocate(machine: Machine) -> None:
    """What the caching allocator does when no block fits and memory is full: free what it keeps, and ask again."""
    with machine.op("aten::empty", 20.0):
        machine.call("cudaMalloc", 300)
        machine.call("cudaFree", 200, until=machine.drained())
        for _ in range(7):
            machine.call("cudaFree", 280)
        machine.call("cudaMalloc", 900)


def _all_reduce(machine: Machine, us: float) -> None:
    """DistributedDataParallel reduces a bucket of gradients."""
    with (
        machine.op("c10d::allreduce_", 15.0),
        machine.annotation("nccl:all_reduce"),
        machine.op("record_param_comms", 10.0),
    ):
        machine.collective(k.ALL_REDUCE.format(t="bf16"), us)


def _text(machine: Machine, program: Program, rank: int | None) -> bytes:
    gpu = program.gpu
    world = program.ranks if rank is not None else None
    builder = TraceBuilder(gpu.name, gpu.capability, gpu.sm_count, gpu.memory_bytes, rank, world)
    builder.top(record_shapes=1, with_stack=int(program.stacks), madeBy="perfdoctor sample_traces/generate.py")
    return machine.write(builder).to_bytes()


if __name__ == "__main__":
    main()
