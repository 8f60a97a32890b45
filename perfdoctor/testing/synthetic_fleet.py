"""SyntheticFleet: the traces of a data-parallel job, with faults planted in some of its ranks."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from perfdoctor.testing.trace_builder import TraceBuilder, collective
from perfdoctor.trace.vocabulary import MULTI_PROCESS_LOADER, dataloader_next_name, optimizer_step_name

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
_BUCKET_ELEMENTS = 64 << 20
# The first bucket hides behind backward; of the last one this much stays exposed, as in any such job.
_BUCKETS = ((2, 1800.0), (_LAYERS, 120.0))  # layers of backward that it waits for, transfer in us
_TENSOR_US = 200.0
_LOADER_US, _LAUNCH_US = 30.0, 8.0
_COMPUTE_STREAM, _COMM_STREAM = 7, 20


@dataclass(frozen=True, slots=True)
class _Faults:
    """What is wrong with one rank."""

    loader_us: float = 0.0
    backward: float = 1.0
    batch: float = 1.0
    link: float = 1.0
    clock_us: float = 0.0
    missing: bool = False


@dataclass(slots=True)
class _Clockwork:
    """One rank while its trace is made: what it is free for, in us of the true time."""

    trace: TraceBuilder
    faults: _Faults
    cpu_us: float = 0.0
    gpu_us: float = 0.0
    comm_us: float = 0.0
    sequence: dict[str, int] = field(default_factory=dict)

    def own(self, at_us: float) -> float:
        """The true time on this rank's clock."""
        return at_us + self.faults.clock_us


class SyntheticFleet:
    """Builds the traces of all ranks of a job: each loads, runs forward and backward, reduces gradients, and updates.

    Ranks meet at their all-reduces, so that a late one makes the others wait as in a real job. Without a fault the
    ranks differ by 1 % of their kernels' time, by chance. The methods plant faults and return the fleet, so that they
    chain. The same calls give the same bytes.

    Example::

        traces = SyntheticFleet(ranks=4).late_loader(2, by_us=3000).builders()

    Args:
        ranks: How many.
        steps: How many each records.
        tensor_parallel: Ranks that also reduce activations among themselves, in groups of this size; 1 for none.
        ranks_per_host: So many ranks write the name of one host; None writes no names.
        sequences: Write process groups and sequence numbers, as recent profilers do.
        seed: Of the chance differences.
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
        self._random = random.Random(seed)
        self._noise_us = 0.0
        self._faults = [_Faults() for _ in range(ranks)]

    def late_loader(self, rank: int, by_us: float) -> Self:
        """Its loader takes so much longer in every step."""
        return self._plant(rank, loader_us=by_us)

    def slow_backward(self, rank: int, factor: float) -> Self:
        """The kernels of its backward pass take so many times as long."""
        return self._plant(rank, backward=factor)

    def uneven_batch(self, rank: int, factor: float) -> Self:
        """Its batches hold so many times the samples, in the recorded shapes, too."""
        return self._plant(rank, batch=factor)

    def slow_link(self, ranks: Sequence[int], factor: float) -> Self:
        """Collectives take so many times as long where one of these ranks takes part."""
        for rank in ranks:
            self._plant(rank, link=factor)
        return self

    def clock_offset(self, rank: int, by_us: float) -> Self:
        """Its clock is ahead by so much."""
        return self._plant(rank, clock_us=by_us)

    def missing(self, rank: int) -> Self:
        """It takes part, but its trace is not there."""
        return self._plant(rank, missing=True)

    def noise(self, by_us: float) -> Self:
        """Each step another rank computes so much longer."""
        self._noise_us = by_us
        return self

    def builders(self) -> list[TraceBuilder]:
        """The traces of the ranks that are not missing, in order."""
        self._random = random.Random(self._seed)
        count = len(self._faults)
        ranks = [
            _Clockwork(TraceBuilder(rank=rank, world_size=count), faults) for rank, faults in enumerate(self._faults)
        ]
        if self._ranks_per_host is not None:
            for number, rank in enumerate(ranks):
                rank.trace.top(host_name=f"node{number // self._ranks_per_host}")
        for step in range(self._steps):
            self._step(ranks, step)
        return [rank.trace for rank in ranks if not rank.faults.missing]

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``rank<R>.json.gz`` for each rank that is not missing; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        there = [rank for rank, faults in enumerate(self._faults) if not faults.missing]
        for rank, trace in zip(there, self.builders(), strict=True):
            trace.write(folder / f"rank{rank}.json.gz")
        return folder

    def _plant(self, rank: int, **fault: float | bool) -> Self:
        self._faults[rank] = replace(self._faults[rank], **fault)  # type: ignore[arg-type]
        return self

    def _step(self, ranks: list[_Clockwork], step: int) -> None:
        began = [rank.cpu_us for rank in ranks]
        for number, rank in enumerate(ranks):
            self._load(rank)
            self._forward(rank, self._noise_us if number == step % len(ranks) else 0.0)
        if self._tensor_parallel > 1:
            for first in range(0, len(ranks), self._tensor_parallel):
                members = list(range(first, min(first + self._tensor_parallel, len(ranks))))
                self._meet(
                    ranks, members, f"tp{first}", "tensor parallel", _TENSOR_US, [ranks[m].gpu_us for m in members]
                )
                for member in members:
                    ranks[member].gpu_us = ranks[member].comm_us
        done = [self._backward(rank) for rank in ranks]
        for layers, transfer_us in _BUCKETS:
            ready = [layer_ends[layers - 1] for layer_ends in done]
            self._meet(ranks, list(range(len(ranks))), "0", "default_pg", transfer_us, ready)
        for begun, rank in zip(began, ranks, strict=True):
            self._update(rank, begun, step)

    def _load(self, rank: _Clockwork) -> None:
        wait_us = _LOADER_US + rank.faults.loader_us
        rank.trace.range(LOADER, rank.own(rank.cpu_us), wait_us)
        rank.cpu_us += wait_us
        rank.gpu_us = max(rank.gpu_us, rank.cpu_us)

    def _forward(self, rank: _Clockwork, longer_us: float) -> None:
        for layer in range(_LAYERS):
            dur_us = self._chance(_FORWARD_US * rank.faults.batch) + (longer_us if layer == 0 else 0.0)
            self._product(rank, "aten::mm", dur_us, thread=1)

    def _backward(self, rank: _Clockwork) -> list[float]:
        """The ends of the layers' kernels."""
        ends = []
        for _ in range(_LAYERS):
            dur_us = self._chance(_BACKWARD_US * rank.faults.batch * rank.faults.backward)
            rank.trace.op(
                "autograd::engine::evaluate_function: MmBackward0", rank.own(rank.cpu_us), _LAUNCH_US, thread=2
            )
            self._product(rank, "aten::mm", dur_us, thread=2)
            ends.append(rank.gpu_us)
        return ends

    def _product(self, rank: _Clockwork, name: str, dur_us: float, thread: int) -> None:
        batch = round(_BATCH * rank.faults.batch)
        at_us = rank.cpu_us + 1
        shapes, types = [[batch, _WIDTH], [_WIDTH, _WIDTH]], ["c10::BFloat16", "c10::BFloat16"]
        rank.trace.op(name, rank.own(at_us), _LAUNCH_US - 2, thread=thread, shapes=shapes, types=types)
        start_us = max(rank.gpu_us, at_us + _LAUNCH_US)
        rank.trace.kernel(GEMM, rank.own(start_us), dur_us, _COMPUTE_STREAM, rank.own(at_us + 0.5), thread=thread)
        rank.gpu_us = start_us + dur_us
        rank.cpu_us += _LAUNCH_US

    def _meet(
        self,
        ranks: list[_Clockwork],
        members: list[int],
        group: str,
        purpose: str,
        transfer_us: float,
        ready_us: list[float],
    ) -> None:
        """One all-reduce: every member starts when it is there, and all end when the last has come and data moved."""
        start = [max(at, ranks[member].comm_us) for member, at in zip(members, ready_us, strict=True)]
        end_us = max(start) + transfer_us * max(ranks[member].faults.link for member in members)
        for member, start_us in zip(members, start, strict=True):
            rank = ranks[member]
            number = rank.sequence[group] = rank.sequence.get(group, -1) + 1
            said = collective(
                "allreduce",
                group=group,
                description=purpose,
                ranks=members,
                in_elements=round(_BUCKET_ELEMENTS * transfer_us / 1000),
                dtype="BFloat16",
                sequence=number,
            )
            launched = rank.own(min(rank.cpu_us, start_us - 1))
            rank.trace.kernel(
                ALL_REDUCE,
                rank.own(start_us),
                end_us - start_us,
                _COMM_STREAM,
                launched,
                thread=2,
                comm=said if self._sequences else None,
            )
            rank.comm_us = end_us
            rank.cpu_us += 1

    def _update(self, rank: _Clockwork, began_us: float, step: int) -> None:
        """The optimizer begins when the gradients are reduced; the step ends with a wait for it."""
        start_us = max(rank.gpu_us, rank.comm_us)
        rank.trace.range(optimizer_step_name("AdamW"), rank.own(rank.cpu_us), 40)
        rank.trace.kernel(OPTIMIZER, rank.own(start_us), _OPTIMIZER_US, _COMPUTE_STREAM, rank.own(rank.cpu_us + 5))
        rank.gpu_us = start_us + _OPTIMIZER_US
        rank.cpu_us += 50
        rank.trace.call("cudaStreamSynchronize", rank.own(rank.cpu_us), max(rank.gpu_us + 3 - rank.cpu_us, 1))
        rank.cpu_us = max(rank.gpu_us + 5, rank.cpu_us + 1)
        rank.trace.step(rank.own(began_us), rank.cpu_us - began_us - 0.5, step)

    def _chance(self, dur_us: float) -> float:
        return round(dur_us * self._random.uniform(0.995, 1.005), 3)
