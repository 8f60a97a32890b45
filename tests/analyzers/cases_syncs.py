"""Cases of PD102: for each line of PyTorch that waits for the GPU one that costs, and a twin that is harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
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
        """Steps of 1000 us; in every N-th the CPU waits until 505 us for a kernel that ends at 500, and is launched at
        600 for the next one. 0 blocked: the tensor is on the CPU, and there is no call at all."""
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
PRINTS = ("aten::reshape", "aten::isfinite", "aten::ne", "aten::__and__")
CHECKS = ("aten::linalg_vector_norm", "aten::isnan", "aten::isinf", "aten::logical_or")
UNSCALES = ("aten::_amp_foreach_non_finite_check_and_unscale_",)

# Name of the case: the line, what the title says, what the advice or fix says.
LINES: dict[str, tuple[Line, str, str]] = {
    "if-tensor": (Line(("aten::is_nonzero", *ITEM)), "`if tensor:`", "torch.where"),
    "mask": (Line(("aten::index", "aten::nonzero"), copy="DtoH"), "a boolean mask", "number of hits"),
    "mask-assigned": (Line(("aten::index_put_", "aten::_index_put_impl_", "aten::nonzero")), "a boolean mask", "hits"),
    "masked-select": (Line(("aten::masked_select", *ITEM)), "a boolean mask", "number of hits"),
    "print": (Line(("aten::masked_select", *ITEM), PRINTS), "print(tensor)", "every N steps"),
    "print-reads": (Line(("aten::is_nonzero", *ITEM), (*PRINTS, "aten::ceil", "aten::ne")), "print(tensor)", "finite"),
    "clip": (Line(("aten::is_nonzero", *ITEM), CHECKS), "error_if_nonfinite=True", "Leave it off"),
    "scaler": (Line(ITEM, UNSCALES), "GradScaler.step", "fused optimizer"),
    "unique": (Line(("aten::_unique2",), call="cudaMemcpyAsync", copy="DtoH"), "torch.unique", "different values"),
    "repeat-interleave": (
        Line(("aten::repeat_interleave", "aten::repeat_interleave", *ITEM)), "without output_size", "read from the GPU"
    ),
    "allclose": (Line(("aten::allclose", *ITEM)), "torch.equal or allclose", "answer on the CPU"),
    "cpu": (Line(TO, copy="DtoH"), ".cpu(), .numpy() or .tolist()", "Leave it on the GPU"),
    "to-device-pageable": (Line(TO, copy="HtoD"), ".to(device) from pageable memory", "pinned memory"),
    "to-device-pinned": (Line(TO, copy="HtoD", pinned=True), "A blocking .to(device)", "pinned already"),
    "indices-on-the-cpu": (Line(("aten::index", *TO), copy="HtoD"), ".to(device) from pageable", "pinned memory"),
    "of-another-library": (Line(("torchvision::nms", *TO), copy="DtoH"), "torchvision::nms", "every N steps"),
    "in-backward": (
        Line(("autograd::engine::evaluate_function: Mine", "Mine", *ITEM)), ".item()", "add up tensors"
    ),
    "device": (Line(call="cudaDeviceSynchronize"), "torch.cuda.synchronize()", "Training needs none"),
    "event": (Line(call="cudaEventSynchronize"), "event.synchronize()", "stream wait instead"),
    "stream": (Line(), "stream.synchronize()", "stream wait instead"),
}  # fmt: skip


def _costs(line: Line) -> Callable[[], TraceBuilder]:
    return line.trace


def _twin(line: Line) -> Callable[[], TraceBuilder]:
    """On the CPU the same line waits for nothing; a wait without an op finds the GPU done 5 us later."""
    return (lambda: line.trace(0)) if line.ops else (lambda: line.trace(6))


# A copy ends 4 us after the kernel, so that much less of the gap is left.
PD102: list[RuleCase] = [
    *(
        RuleCase(
            "PD102",
            name,
            _costs(line),
            (ExpectedFinding("high", 106_000 if line.copy else 110_000, title=title, advice=advice),),
        )
        for name, (line, title, advice) in LINES.items()
    ),
    *(RuleCase("PD102", f"{name}-twin", _twin(line)) for name, (line, _, _) in LINES.items()),
    RuleCase(
        "PD102",
        "each-step-of-eight",
        lambda: Line(ITEM).trace(steps=8),
        (
            ExpectedFinding(
                "high",
                110_000,
                title="waits for the GPU once a step",
                evidence={"waits per step": 1.0, "calls of aten::item per step": 1.0},
            ),
        ),
    ),
    RuleCase("PD102", "logged-every-fourth-step", lambda: Line(ITEM).trace(steps=8, every=4)),
]
