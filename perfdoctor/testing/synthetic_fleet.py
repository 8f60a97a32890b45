"""SyntheticFleet: the traces of a data-parallel job, with planted faults in some ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.testing.simulated_process import SimulatedProcess
from perfdoctor.testing.trace_builder import TraceBuilder, collective
from perfdoctor.trace.vocabulary import (
    MULTI_PROCESS_LOADER,
    dataloader_next_name,
    optimizer_step_name,
    profiler_step_name,
)

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
OPTIMIZER = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4>>"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = dataloader_next_name(MULTI_PROCESS_LOADER)

_LAYERS = 4
_BATCH, _WIDTH = 64, 4096
_FORWARD_US, _BACKWARD_US, _OPTIMIZER_US = 750.0, 1500.0, 400.0
_ELEMENTS_PER_US = (64 << 20) / 1000
# For each bucket of gradients: the layers of backward before it, and the duration of its transfer. The rest of backward
# hides the first transfer; the last one is exposed, as in any such job.
_BUCKETS = ((2, 1800.0), (2, 120.0))
_TENSOR_PARALLEL_US = 200.0
_LOADER_US, _OP_US, _OPTIMIZER_CPU_US = 30.0, 3.0, 40.0
# Scales the jitter of a simulated process: its kernels then vary by 0.5 % to either side.
_JITTER = 1 / 12


@frozen_dataclass
class _Faults:
    """The faults of one rank; the defaults are none."""

    loader_us: float = 0.0
    backward_factor: float = 1.0
    batch_factor: float = 1.0
    link_factor: float = 1.0
    clock_us: float = 0.0
    missing: bool = False


@frozen_dataclass
class _Rank:
    """One rank during the simulation."""

    process: SimulatedProcess
    faults: _Faults


class SyntheticFleet:
    """The traces of all ranks of a job that loads batches, runs forward and backward, reduces gradients, and updates.

    Ranks meet at their all-reduces, so that a late rank makes the others wait as in a real job. Without faults kernel
    times differ between ranks by up to 1 % at random. The methods that plant faults return the fleet, so that they
    chain. The same calls give the same bytes.

    Example::

        traces = SyntheticFleet(ranks=4).late_loader(2, by_us=3000).builders()

    Args:
        ranks: Number of ranks of the job.
        steps: Number of steps in each trace.
        tensor_parallel: Size of the groups of ranks that also reduce activations; 1 for none.
        ranks_per_host: Number of ranks whose traces name the same host; None writes no host names.
        sequences: Whether process groups and sequence numbers are recorded, as recent profilers do.
        seed: Seed of the random differences.
    """

    def __init__(
        self,
        ranks: int = 4,
        steps: int = 6,
        tensor_parallel: int = 1,
        ranks_per_host: int | None = None,
        sequences: bool = True,
        seed: int = 0,
    ) -> None:
        self._steps = steps
        self._tensor_parallel = tensor_parallel
        self._ranks_per_host = ranks_per_host
        self._sequences = sequences
        self._seed = seed
        self._noise_us = 0.0
        self._faults = [_Faults() for _ in range(ranks)]
        self._collective_counts: Counter[str] = Counter()

    def late_loader(self, rank: int, by_us: float) -> Self:
        """Make the DataLoader of a rank take `by_us` longer in every step."""
        return self._plant(rank, loader_us=by_us)

    def slow_backward(self, rank: int, factor: float) -> Self:
        """Make the kernels of a rank's backward pass take `factor` times as long."""
        return self._plant(rank, backward_factor=factor)

    def uneven_batch(self, rank: int, factor: float) -> Self:
        """Give a rank batches with `factor` times the samples, in its kernel times and its recorded shapes."""
        return self._plant(rank, batch_factor=factor)

    def slow_link(self, ranks: Sequence[int], factor: float) -> Self:
        """Make collectives take `factor` times as long when one of these ranks takes part."""
        for rank in ranks:
            self._plant(rank, link_factor=factor)
        return self

    def clock_offset(self, rank: int, by_us: float) -> Self:
        """Set the clock of a rank ahead by `by_us`."""
        return self._plant(rank, clock_us=by_us)

    def missing(self, rank: int) -> Self:
        """Leave the trace of a rank out, although the rank takes part in the job."""
        return self._plant(rank, missing=True)

    def noise(self, by_us: float) -> Self:
        """Make another rank in each step compute `by_us` longer."""
        self._noise_us = by_us
        return self

    def builders(self) -> list[TraceBuilder]:
        """The traces of all ranks that are not missing, in order."""
        count = len(self._faults)
        seeds = range(self._seed * count, (self._seed + 1) * count)
        ranks = [
            _Rank(SimulatedProcess(seed, record_stacks=False, jitter=_JITTER), faults)
            for seed, faults in zip(seeds, self._faults, strict=True)
        ]
        self._collective_counts.clear()
        for step in range(self._steps):
            self._run_step(ranks, step)
        return [self._build(number, rank) for number, rank in enumerate(ranks) if not rank.faults.missing]

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``rank<R>.json.gz`` for each rank that is not missing; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        recorded = [rank for rank, faults in enumerate(self._faults) if not faults.missing]
        for rank, trace in zip(recorded, self.builders(), strict=True):
            trace.write(folder / f"rank{rank}.json.gz")
        return folder

    def _plant(self, rank: int, **fault: float | bool) -> Self:
        self._faults[rank] = replace(self._faults[rank], **fault)  # type: ignore[arg-type]
        return self

    def _build(self, number: int, rank: _Rank) -> TraceBuilder:
        builder = TraceBuilder(rank=number, world_size=len(self._faults))
        if self._ranks_per_host is not None:
            builder.header(host_name=f"node{number // self._ranks_per_host}")
        return rank.process.write(builder, clock_offset_ns=round(rank.faults.clock_us * 1000))

    def _run_step(self, ranks: list[_Rank], number: int) -> None:
        """One step of all ranks. They run up to each collective together, because its end depends on all arrivals."""
        everyone = range(len(ranks))
        with ExitStack() as steps:
            for rank in ranks:
                steps.enter_context(rank.process.annotation(profiler_step_name(number)))
            for index, rank in enumerate(ranks):
                _load_batch(rank)
                _run_forward(rank, self._noise_us if index == number % len(ranks) else 0.0)
            if self._tensor_parallel > 1:
                self._reduce_activations(ranks)
            with ExitStack() as autograd_threads:
                for rank in ranks:
                    autograd_threads.enter_context(rank.process.autograd_thread())
                for layers, transfer_us in _BUCKETS:
                    for rank in ranks:
                        _run_backward(rank, layers)
                    self._all_reduce(ranks, everyone, "0", "default_pg", transfer_us)
            for rank in ranks:
                _update_weights(rank)

    def _reduce_activations(self, ranks: list[_Rank]) -> None:
        for first in range(0, len(ranks), self._tensor_parallel):
            members = range(first, min(first + self._tensor_parallel, len(ranks)))
            self._all_reduce(ranks, members, f"tp{first}", "tensor parallel", _TENSOR_PARALLEL_US)
            for member in members:
                ranks[member].process.wait_for_collectives()

    def _all_reduce(
        self, ranks: list[_Rank], members: Sequence[int], group: str, purpose: str, transfer_us: float
    ) -> None:
        """One all-reduce: each member starts when it arrives, and ends when the last one has and the data has moved."""
        comm = collective(
            "allreduce",
            group=group,
            description=purpose,
            ranks=members,
            in_elements=round(_ELEMENTS_PER_US * transfer_us),
            dtype="BFloat16",
            sequence=self._collective_counts[group],
        )
        self._collective_counts[group] += 1
        arrivals_ns = [
            ranks[member].process.launch_collective(ALL_REDUCE, comm if self._sequences else None) for member in members
        ]
        transfer_us *= max(ranks[member].faults.link_factor for member in members)
        for member in members:
            ranks[member].process.end_collective(max(arrivals_ns) + round(transfer_us * 1000))


def _load_batch(rank: _Rank) -> None:
    with rank.process.annotation(LOADER):
        rank.process.run_cpu(_LOADER_US + rank.faults.loader_us, spread=0)


def _run_forward(rank: _Rank, extra_us: float) -> None:
    for layer in range(_LAYERS):
        _multiply(rank, _FORWARD_US * rank.faults.batch_factor + (extra_us if layer == 0 else 0.0))


def _run_backward(rank: _Rank, layers: int) -> None:
    for _ in range(layers):
        with rank.process.op("autograd::engine::evaluate_function: MmBackward0", _OP_US):
            _multiply(rank, _BACKWARD_US * rank.faults.batch_factor * rank.faults.backward_factor)


def _multiply(rank: _Rank, us: float) -> None:
    """A matrix product with the shapes of the rank's batch."""
    shapes = [[round(_BATCH * rank.faults.batch_factor), _WIDTH], [_WIDTH, _WIDTH]]
    with rank.process.op("aten::mm", _OP_US, shapes, "c10::BFloat16"):
        rank.process.kernel(GEMM, us)


def _update_weights(rank: _Rank) -> None:
    """The optimizer starts when the gradients are reduced; the CPU waits for it."""
    rank.process.wait_for_collectives()
    with rank.process.annotation(optimizer_step_name("AdamW")):
        rank.process.run_cpu(_OPTIMIZER_CPU_US)
        rank.process.kernel(OPTIMIZER, _OPTIMIZER_US)
    rank.process.synchronize()
