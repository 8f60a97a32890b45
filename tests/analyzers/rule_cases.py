"""What a case of a rule is: traces of one or more ranks, and what the rule must say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from perfdoctor.testing import TraceBuilder

# Real names of kernels: one that uses Tensor Cores, one that does not, one that is no matrix maths, a collective.
TENSOR_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
SGEMM = "ampere_sgemm_128x64_nn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

Ranks: TypeAlias = "TraceBuilder | list[TraceBuilder]"


@dataclass(frozen=True)
class Says:
    """What a finding must say; times in ns a step, None leaves a field unchecked."""

    severity: str
    cost_ns: int
    saving: tuple[int | None, int | None, int | None] | None = None
    location: str | None = None
    title: str = ""
    advice: str = ""
    fix: str = ""
    rank: int | None = None
    confidence: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One case: `says` is empty where the rule must keep quiet."""

    rule: str
    name: str
    build: Callable[[], Ranks]
    says: tuple[Says, ...] = ()
    facts: Mapping[str, Any] | None = None
    via_file: bool = False

    def ranks(self) -> list[TraceBuilder]:
        """The traces."""
        built = self.build()
        return built if isinstance(built, list) else [built]

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"


def step_of(
    *spans: tuple[float, float], device: str | None = "NVIDIA A100-SXM4-80GB", until: float = 1000, **options: Any
) -> TraceBuilder:
    """One step ``[0, until)`` us in which Tensor Core products fill the spans; all are launched at its beginning.

    So that what lies between two spans was no late launch. `options` go to the TraceBuilder.
    """
    trace = TraceBuilder(device=device, **options).step(0, until)
    for row, (start, end) in enumerate(spans):
        trace.kernel(TENSOR_GEMM, start, end - start, launch_us=0.01 * row)
    return trace


def healthy(steps: int = 3) -> TraceBuilder:
    """A well-fed GPU: launches run ahead, copies are pinned, a step ends with a wait that finds the GPU just done."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).range(WORKERS, at, 2)
        trace.memcpy("HtoD", at + 5, 8, launch_us=at + 2, pinned=True)
        for row in range(9):
            trace.op("aten::mm", at + 10 + 20 * row, 15, shapes=[[512, 512], [512, 512]])
            trace.kernel(TENSOR_GEMM, at + 13 + 109 * row, 109, launch_us=at + 10.5 + (19 * row if row else 0))
        trace.range("Optimizer.step#AdamW.step", at + 200, 60)
        trace.call("cudaStreamSynchronize", at + 300, 694)
    return trace
