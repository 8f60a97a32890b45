"""Cases of the rule about syncs: PD102.

For each line of PyTorch that waits for the GPU there is a case that costs time, and a twin that is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rule_cases import POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


@dataclass(frozen=True)
class Line:
    """A line as the profiler shows it.

    Attributes:
        ops: The ops around the waiting call, from the outermost.
        before: Ops of the same line right before, in order.
        call: The call that waits.
        copy: A copy that belongs to the call, as for `TraceBuilder.memcpy`.
        pinned: Whether the copy's memory is pinned.
    """

    ops: Sequence[str] = ()
    before: Sequence[str] = ()
    call: str = "cudaStreamSynchronize"
    copy: str = ""
    pinned: bool = False

    def trace(self, blocked_us: float = 395, *, steps: int = 1, every: int = 1) -> TraceBuilder:
        """Steps of 1000 us; in every N-th the CPU waits until 505 us for a kernel that ends at 500.

        The next kernel is launched at 600. With 0 us blocked the tensor is on the CPU: there is no call at all.
        """
        trace = TraceBuilder()
        for number in range(steps):
            at, waits = 1000 * number, number % every == 0
            trace.step(at, 1000).kernel(TENSOR_GEMM, at + 10, 490, launch_us=at + 5)
            for row, op in enumerate(self.before):
                trace.op(op, at + 20 + 2 * row, 1)
            for depth, op in enumerate(self.ops):
                trace.op(op, at + 100 + depth, 410 - 2 * depth)
            if waits and blocked_us:
                self._wait(trace, at, blocked_us)
            launched = at + 600 if waits else at + 550
            start = at + 610 if waits and blocked_us else at + 501
            trace.kernel(TENSOR_GEMM, start, at + 1000 - start, launch_us=launched if start > launched else at + 30)
        return trace

    def _wait(self, trace: TraceBuilder, at: float, blocked_us: float) -> None:
        correlation = trace.call(self.call, at + 505 - blocked_us, blocked_us)
        if self.copy and "Memcpy" not in self.call:
            # PyTorch submits the copy and waits for the stream.
            correlation = trace.call("cudaMemcpyAsync", at + 504 - blocked_us, 0.5)
        if self.copy:
            trace.memcpy(self.copy, at + 500, 4, correlation=correlation, pinned=self.pinned)


ITEM = ("aten::item", "aten::_local_scalar_dense")
TO = ("aten::to", "aten::_to_copy", "aten::copy_")
PRINT = ("aten::reshape", "aten::isfinite", "aten::ne", "aten::__and__")
CHECK = ("aten::linalg_vector_norm", "aten::isnan", "aten::isinf", "aten::logical_or")
UNSCALE = ("aten::_amp_foreach_non_finite_check_and_unscale_",)

# Name of the case: the line, what the title says, what the advice or fix says.
LINES: dict[str, tuple[Line, str, str]] = {
    "if-tensor": (Line(("aten::is_nonzero", *ITEM)), "`if tensor:`", "torch.where"),
    "mask": (Line(("aten::index", "aten::nonzero"), copy="DtoH"), "Indexing with a boolean mask", "number of hits"),
    "mask-assigned": (Line(("aten::index_put_", "aten::_index_put_impl_", "aten::nonzero")), "a boolean mask", "hits"),
    "masked-select": (Line(("aten::masked_select", *ITEM)), "Indexing with a boolean mask", "number of hits"),
    "print": (Line(("aten::masked_select", *ITEM), PRINT), "print(tensor)", "every N steps"),
    "print-reads": (Line(("aten::is_nonzero", *ITEM), (*PRINT, "aten::ceil", "aten::ne")), "print(tensor)", "finite"),
    "clip": (Line(("aten::is_nonzero", *ITEM), CHECK), "error_if_nonfinite=True", "Leave error_if_nonfinite off"),
    "scaler": (Line(ITEM, UNSCALE), "GradScaler.step", "fused Adam"),
    "unique": (Line(("aten::_unique2",), call="cudaMemcpyAsync", copy="DtoH"), "torch.unique", "different ones"),
    "repeat-interleave": (
        Line(("aten::repeat_interleave", "aten::repeat_interleave", *ITEM)), "without output_size", "read from the GPU"
    ),
    "allclose": (Line(("aten::allclose", *ITEM)), "torch.equal or allclose", "answer on the CPU"),
    "cpu": (Line(TO, copy="DtoH"), ".cpu(), .numpy() or .tolist()", "Leave the result on the GPU"),
    "to-device-pageable": (Line(TO, copy="HtoD"), ".to(device) from pageable memory", "pinned memory"),
    "to-device-pinned": (Line(TO, copy="HtoD", pinned=True), "A blocking .to(device)", "pinned already"),
    "indices-on-the-cpu": (Line(("aten::index", *TO), copy="HtoD"), ".to(device) from pageable", "pinned memory"),
    "of-another-library": (Line(("torchvision::nms", *TO), copy="DtoH"), "torchvision::nms", "every N steps"),
    "in-backward": (
        Line(("autograd::engine::evaluate_function: Mine", "Mine", *ITEM)), ".item()", "add up tensors"
    ),
    "device": (Line(call="cudaDeviceSynchronize"), "torch.cuda.synchronize()", "Remove the synchronize"),
    "event": (Line(call="cudaEventSynchronize"), "event.synchronize()", "stream wait instead"),
    "stream": (Line(), "stream.synchronize()", "stream wait instead"),
}  # fmt: skip


def _twin(line: Line) -> Callable[[], TraceBuilder]:
    """On the CPU the same line waits for nothing; a wait without an op finds the GPU done 5 us later."""
    return (lambda: line.trace(0)) if line.ops else (lambda: line.trace(6))


def sync_wait(
    *ops: str, call: str = "cudaStreamSynchronize", blocked_us: float = 395, copy: str = "", steps: int = 1
) -> TraceBuilder:
    """The CPU waits until 505 us for a kernel that ends at 500; the next one is launched at 600 and starts at 610."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).kernel(TENSOR_GEMM, at + 10, 490, launch_us=at + 5)
        for depth, op in enumerate(ops):
            trace.op(op, at + 100 + depth, 410 - 2 * depth)
        correlation = trace.call(call, at + 505 - blocked_us, blocked_us)
        if copy:
            trace.memcpy(copy, at + 500, 4, correlation=correlation)
        trace.kernel(TENSOR_GEMM, at + 610, 390, launch_us=at + 600)
    return trace


def item_in_a_frame() -> TraceBuilder:
    trace = sync_wait("aten::item", "aten::_local_scalar_dense")
    outer = trace.frame("train.py(3): main", 0, 1000)
    inner = trace.frame("train.py(12): train_step", 50, 900, parent=outer)
    trace.frame("/opt/site-packages/torch/_tensor.py(9): wrapped", 99, 415, parent=inner)
    return trace


def two_waiting_ops() -> TraceBuilder:
    trace = step_of((0, 200))
    trace.op("aten::item", 50, 155)
    trace.call("cudaStreamSynchronize", 55, 148)
    trace.kernel(TENSOR_GEMM, 300, 300, launch_us=290)
    trace.op("aten::nonzero", 400, 210)
    trace.call("cudaStreamSynchronize", 405, 200)
    return trace.kernel(TENSOR_GEMM, 640, 360, launch_us=630)


def hip_wait() -> TraceBuilder:
    trace = TraceBuilder(device="AMD Instinct MI300X", capability=(9, 4)).step(0, 1000)
    trace.kernel(TENSOR_GEMM, 10, 490, correlation=trace.call("hipLaunchKernel", 5))
    trace.call("hipDeviceSynchronize", 110, 395)
    return trace.kernel(TENSOR_GEMM, 610, 390, correlation=trace.call("hipLaunchKernel", 600))


def item_on_a_cpu_tensor() -> TraceBuilder:
    trace = step_of((0, 500)).op("aten::item", 100, 410).op("aten::_local_scalar_dense", 101, 408)
    return trace.kernel(TENSOR_GEMM, 610, 390, launch_us=600)


def sync_that_waits_for_nothing() -> TraceBuilder:
    trace = step_of((0, 900))
    trace.call("cudaDeviceSynchronize", 950, 2)
    return trace.step(1000, 1000).kernel(TENSOR_GEMM, 1020, 980, launch_us=1010)


def sync_of_one_stream_while_another_works() -> TraceBuilder:
    trace = step_of((0, 500)).kernel(POINTWISE, 5, 990, stream=9, launch_us=4)
    trace.call("cudaStreamSynchronize", 110, 395)
    return trace.kernel(TENSOR_GEMM, 610, 390, launch_us=600)


def slow_copies_on_the_device() -> TraceBuilder:
    """A copy within the device returns at once; that its submission took 80 us made the GPU wait, but was no wait."""
    trace = step_of((0, 100))
    for row in range(5):
        at = 120 + 150 * row
        trace.memcpy("DtoD", at + 75, 4, correlation=trace.call("cudaMemcpyAsync", at, 80))
    return trace.kernel(TENSOR_GEMM, 900, 100, launch_us=890)


def asynchronous_copy() -> TraceBuilder:
    trace = step_of((0, 500))
    trace.memcpy("HtoD", 500, 80, correlation=trace.call("cudaMemcpyAsync", 480, 6), pinned=True)
    return trace.kernel(TENSOR_GEMM, 640, 360, launch_us=630)


def launched_before_the_wait() -> TraceBuilder:
    trace = step_of((0, 500), (540, 1000))
    trace.call("cudaStreamSynchronize", 110, 395)
    return trace


PD102: list[RuleCase] = [
    *(
        RuleCase(  # a copy ends 4 us after the kernel, so that much less of the gap is left
            "PD102",
            name,
            line.trace,
            (ExpectedFinding("medium", 106_000 if line.copy else 110_000, title=title, advice=advice),),
        )
        for name, (line, title, advice) in LINES.items()
    ),
    *(RuleCase("PD102", f"{name}-twin", _twin(line)) for name, (line, _, _) in LINES.items()),
]
