"""Cases of PD519: models that infer in training mode."""

from __future__ import annotations

from collections.abc import Callable

from perfdoctor.testing import TraceBuilder

_SHAPE = [8, 64, 56, 56]


def model(
    norms: int = 0,
    dropouts: int = 0,
    device: str | None = None,
    norm: Callable[[TraceBuilder, float], object] | None = None,
    drop: Callable[[TraceBuilder, float], object] | None = None,
) -> TraceBuilder:
    """A pass of 1 ms: ten products of 20 us, then norms of 50 us, then dropouts of 50 us, each 60 us after the last."""
    trace = TraceBuilder(device=device).step(0, 1000)
    for index in range(10):
        trace.op("aten::mm", 1 + 22 * index, 20)
        if device:
            trace.kernel("gemm", 5 + 22 * index, 20, launch_us=2 + 22 * index)
    for index in range(norms + dropouts):
        add = norm if index < norms else drop
        assert add is not None
        add(trace, 230 + 60 * index)
    return trace


def batch_norm(*, trains: bool, keeps: bool = True, wrapped: str = "") -> Callable[[TraceBuilder, float], object]:
    """A batch norm on the CPU whose arguments were recorded."""
    running = [64] if keeps else []

    def add(trace: TraceBuilder, at: float) -> None:
        values = ["", "", "", "", "", str(trains), "0.1", "1e-05", "True"]
        shapes: list[object] = [_SHAPE, [64], [64], running, running, [], [], [], []]
        types = ["float", "float", "float", *(["float"] * 2 if keeps else ["", ""]), *["Scalar"] * 4]
        if wrapped:
            trace.op(wrapped, at - 1, 53)
        trace.op("aten::batch_norm", at, 50, shapes=shapes, types=types, concrete=values)
        trace.op("aten::native_batch_norm", at + 1, 48, shapes=shapes[:8], types=types[:8], concrete=values[:8])

    return add


def norm_on_gpu(kernels: tuple[str, ...], *, counts: bool = True, adds: str = "") -> Callable[..., object]:
    """A batch norm on a GPU of which no arguments were recorded, each of its kernels 10 us."""

    def add(trace: TraceBuilder, at: float) -> None:
        if counts:
            trace.op("aten::add_", at - 8, 6).kernel("add_long", at - 4, 2, launch_us=at - 7)
        if adds:
            trace.op("aten::instance_norm", at - 1, 45)
        trace.op("aten::batch_norm", at, 40).op("aten::cudnn_batch_norm", at + 1, 38)
        for index, name in enumerate(kernels):
            trace.kernel(name, at + 6 + 12 * index, 10, launch_us=at + 2 + 12 * index)

    return add


def dropout(
    inner: str = "aten::native_dropout", outer: str = "aten::dropout", value: str = ""
) -> Callable[..., object]:
    """A dropout on the CPU, whose inner op draws; without one it passes its input on."""

    def add(trace: TraceBuilder, at: float) -> None:
        trace.op(outer, at, 50)
        recorded = [["", "0.1", value]] if value else [None]
        if inner:
            for concrete in recorded:
                shapes: list[object] | None = [_SHAPE, [], []] if concrete else None
                types = ["float", "Scalar", "Scalar"] if concrete else None
                trace.op(inner, at + 1, 48, shapes=shapes, types=types, concrete=concrete)

    return add


def dropout_on_gpu(trace: TraceBuilder, at: float) -> None:
    """A dropout on a GPU, of one kernel of 30 us."""
    trace.op("aten::dropout", at, 20).op("aten::native_dropout", at + 1, 18)
    trace.kernel("fused_dropout_kernel_vec", at + 5, 30, launch_us=at + 3)


NATIVE = ("batch_norm_collect_statistics_kernel", "batch_norm_transform_input_kernel")
CUDNN = ("cudnn::bn_fw_tr_1C11_singleread",)
A100 = "NVIDIA A100-SXM4-80GB"
