"""Cases of rules about autograd's state and switches for debugging: PD503, PD507, PD514, PD517, PD518, PD520."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder

MS = 1_000_000
LINE = {"file": "train.py", "line": 12, "function": "main"}


def switch(name: str, steps: int = 10, of_steps: int = 10, step_ns: int | None = None) -> dict[str, Any]:
    """Facts of a switch that was on."""
    return {
        "debug_switches": [{"switch": name, "steps": steps, "of_steps": of_steps, "step_ns": step_ns, "location": LINE}]
    }


def training(checks: int = 0, device: str | None = None) -> TraceBuilder:
    """A step of 10 ms: 4 ms forward, 5 ms backward, and so many checks of gradients for NaN, 100 us each."""
    trace = TraceBuilder(device=device).step(0, 10_000)
    trace.op("aten::addmm", 100, 4000, sequence=7)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 4200, 5000, sequence=7)
    trace.op("AddmmBackward0", 4210, 3000, sequence=7)
    for index in range(checks):
        start = 7300 + 110 * index
        trace.op("aten::isnan", start, 50).op("aten::item", start + 60, 40)
    return trace.range("Optimizer.step#SGD.step", 9400, 400)


def on_gpu() -> TraceBuilder:
    """A step of 1 ms of two kernels: between them the GPU waits 200 us for the second launch."""
    trace = TraceBuilder().step(0, 1000)
    trace.op("aten::mm", 0, 420).kernel("first", 10, 390, launch_us=5)
    return trace.op("aten::mm", 590, 400).kernel("second", 600, 390, launch_us=595)


def on_several_gpus() -> TraceBuilder:
    """A step of 1 ms, half of it an all-reduce that nothing overlaps."""
    trace = TraceBuilder(rank=0, world_size=2).step(0, 1000)
    trace.op("aten::mm", 0, 420).kernel("first", 10, 390, launch_us=5)
    return trace.op("c10d::allreduce_", 400, 20).kernel("ncclDevKernel_AllReduce", 410, 500, launch_us=405)


def passes(*kinds: str, nodes: int = 12, device: str | None = None, module: str = "") -> TraceBuilder:
    """Passes of 1 ms, one after the other in steps of 2 ms: "train" is differentiated, "vain" records a graph only.

    "frozen" records none: its ops only see the number of the node to come. "few" makes three nodes.
    """
    trace, number = TraceBuilder(device=device), 40
    for index, kind in enumerate(kinds):
        start = 2000 * index
        trace.step(start, 2000)
        if module:
            trace.range(f"perfdoctor::module_call @{module} validate", start + 5, 990)
        count = 3 if kind == "few" else nodes
        length = 960 / count
        for node in range(count):
            trace.op("aten::mul", start + 10 + node * length, length - 5, sequence=number + node * (kind != "frozen"))
        if kind == "train":
            for node in reversed(range(count)):
                at = start + 1000 + (count - 1 - node) * 60
                trace.op("autograd::engine::evaluate_function: MulBackward0", at, 50, sequence=number + node)
            trace.range("Optimizer.step#SGD.step", start + 1900, 50)
        number += 0 if kind == "frozen" else count
    return trace


def in_validate(trace: TraceBuilder, *, calls_model: bool = False) -> TraceBuilder:
    """The second pass is called in a function, as a whole or in the forward pass of a model."""
    validate = trace.frame("valid.py(8): validate", 2005, 990)
    if calls_model:
        model = trace.frame("nn.Module: Net_0", 2006, 980, parent=validate)
        layer = trace.frame(
            "nn.Module: Block_1", 2008, 900, parent=trace.frame("net.py(9): forward", 2007, 970, parent=model)
        )
        trace.frame("net.py(3): forward", 2009, 890, parent=layer)
    return trace


def evaluation_on_gpu() -> TraceBuilder:
    """Passes on a GPU, which has nothing to do for the first 500 us of the evaluation."""
    trace = passes("train", "vain", "train", device="NVIDIA A100-SXM4-80GB")
    for start, end in ((10, 2000), (2510, 4000), (4010, 6000)):
        trace.kernel("pointwise", start, end - start, launch_us=start - 10)
    return trace


def in_serve(trace: TraceBuilder) -> TraceBuilder:
    trace.frame("serve.py(3): answer", 5, 990)
    return trace


def in_pipeline(trace: TraceBuilder) -> TraceBuilder:
    trace.frame("/x/site-packages/transformers/pipelines/base.py(1216): __call__", 1996, 1)
    return trace


def waiting_gpu(launches: int, wait_us: float = 60) -> TraceBuilder:
    """An inference of so many ops, each of which makes a node; its kernel of 10 us starts so long after the last."""
    trace, each = TraceBuilder(), 10 + wait_us
    trace.step(0, launches * each + 20)
    for number in range(launches + 1):
        at = number * each if wait_us else 1 + number * 0.1
        trace.op("aten::mul", at, 5 if wait_us else 0.09, sequence=40 + number)
        if number < launches:
            trace.kernel("pointwise", number * each + 10, 10, launch_us=at + 0.02)
    return trace


def graph_network(fills_us: float = 0) -> TraceBuilder:
    """A step of 1 ms: 300 us in index_add, and new tensors that are filled for so long."""
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::index_add", 10, 300)
    if fills_us:
        trace.op("aten::empty", 400, fills_us + 10).op("aten::fill_", 405, fills_us)
    return trace.op("aten::mm", 900, 90)


def indexing_on_gpu(op: str) -> TraceBuilder:
    """A step of 1 ms on a GPU: an op that sums by index launches a sort and a sum of 150 us each, then a product."""
    trace = TraceBuilder().step(0, 1000).op(op, 10, 30)
    trace.kernel("DeviceRadixSortOnesweepKernel", 50, 150, launch_us=12)
    trace.kernel("indexing_backward_kernel", 200, 150, launch_us=20)
    return trace.op("aten::mm", 50, 20).kernel("gemm", 350, 600, launch_us=55)


def training_of_embeddings(us: float) -> TraceBuilder:
    """`training`, whose backward pass has the gradient of an embedding."""
    trace = training()
    trace.op("autograd::engine::evaluate_function: EmbeddingBackward0", 9250, us + 10, thread=2)
    return trace.op("aten::embedding_dense_backward", 9255, us, thread=2)


def compiled(pieces: int, gap_us: float = 100) -> TraceBuilder:
    """A step of 1 ms that calls compiled code in so many pieces of 100 us, with Python in between."""
    trace = TraceBuilder(device=None).step(0, 1000)
    for piece in range(pieces):
        start = 10 + piece * (100 + gap_us)
        trace.op(f"Torch-Compiled Region: {piece}/0", start, pieces * (100 + gap_us) - gap_us - (start - 10))
        trace.op("CompiledFunction", start, 100)
    return trace


def compiled_in_ranges(between_us: float, *, is_nested: bool = True) -> TraceBuilder:
    """A step of 1 ms with two compiled graphs of 100 us: newer versions record ranges.

    The second one belongs to the call of the first one, or it is compiled code of its own.
    """
    trace = TraceBuilder(device=None).step(0, 1000)
    second = 110 + between_us
    trace.range("Torch-Compiled Region: 0/0", 10, 200 + between_us if is_nested else 100)
    trace.range("## Call CompiledFxGraph fa5zxq ##", 10, 100)
    trace.range("Torch-Compiled Region: 1/0", second, 100)
    return trace.range("## Call CompiledFxGraph fb7yrt ##", second, 100)


_BREAKS = {
    "compile": {"graph_breaks": 1, "break_reasons": {"Unsupported Tensor.item() call": 1}, "break_lines": [LINE]}
}


def adversarial(device: str | None = None, backward_us: float = 100) -> TraceBuilder:
    """A step of 1 ms: modules called at lines 13 and 16, and a backward pass at line 17: through the last first."""
    trace = TraceBuilder(device=device).step(0, 1000)
    for line, start, number in ((13, 10, 1), (16, 110, 2)):
        trace.range(f"perfdoctor::module_call @train.py:{line} main", start, 90)
        trace.op("aten::addmm", start + 5, 80, sequence=number)
    trace.range("@train.py:17 main", 200, 2 * backward_us + 2).range("perfdoctor::backward", 201, 2 * backward_us)
    for index, number in enumerate((2, 1)):
        start = 201 + index * backward_us
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", start, backward_us, sequence=number)
        if device is not None:
            trace.kernel("gemm", start + 10, backward_us - 10, launch_us=start + 5)
    return trace.range("Optimizer.step#SGD.step", 900, 50)


def unused(*calls: tuple[int, bool], optimizer: str | None = "Adam", line: int = 17) -> dict[str, Any]:
    """Facts of gradients that nobody used, by the lines that call their modules and whether the input has a graph."""
    return {
        "unused_gradients": [
            {
                "optimizer": optimizer,
                "tensors": 2,
                "parameters": 40,
                "times": 3,
                "passes": [{**LINE, "line": line}],
                "calls": [{**LINE, "line": number, "input_has_graph": has_graph} for number, has_graph in calls],
            }
        ]
    }
