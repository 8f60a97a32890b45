"""Cases of rules about autograd's state and switches for debugging: PD503, PD507, PD514, PD517, PD518, PD520."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD503 = [
    RuleCase(
        "PD503",
        "stacks-and-checks",
        lambda: training(checks=10),
        (
            ExpectedFinding(
                "medium",
                4 * MS,
                (0, 4 * MS, 4 * MS),
                location="train.py:12",
                title="Anomaly detection is on: 40% of the step",
                fix="set_detect_anomaly(False)",
                evidence={"checks for NaN per step": 1_000_000, "gradients checked per step": 10},
            ),
        ),
        switch("anomaly detection", step_ns=3 * MS),
    ),
    RuleCase(
        "PD503",
        "checks-alone-in-a-trace-without-facts",
        lambda: training(checks=10),
        (ExpectedFinding("medium", MS, (0, None, MS), title="10% of the step and more"),),
    ),
    RuleCase(
        "PD503",
        "gradcheck-in-every-step",
        training,
        (ExpectedFinding("medium", 2 * MS, location="train.py:12", title="gradcheck", fix="in a test"),),
        switch("gradcheck", step_ns=2 * MS),
    ),
    RuleCase(
        "PD503",
        "launches-block",
        on_gpu,
        (ExpectedFinding("medium", 210_000, (0, None, 210_000), fix="unset CUDA_LAUNCH_BLOCKING"),),
        {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}},
    ),
    RuleCase(
        "PD503",
        "collectives-are-checked",
        on_several_gpus,
        (ExpectedFinding("info", 0, title="TORCH_DISTRIBUTED_DEBUG=DETAIL"),),
        {"environment": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "world_size": 2},
    ),
    RuleCase(  # nodes are many, and no gradient was checked: gradients are accumulated in this step
        "PD503",
        "stacks-alone-under-lightning",
        lambda: training().range("[pl][module]net.Net: backbone", 50, 4100),
        (
            ExpectedFinding(
                "medium",
                2 * MS,
                (0, 2 * MS, 2 * MS),
                location="train.py:12",
                title="Anomaly detection is on: 20% of the step",
                fix="Trainer(..., detect_anomaly=False)   # elsewhere",
                evidence={"checks for NaN per step": 0},
            ),
        ),
        switch("anomaly detection", 9, 10, step_ns=2 * MS),
    ),
    RuleCase("PD503", "nothing-on", training),
    RuleCase(
        "PD503", "anomaly-detection-in-one-step-of-ten", training, facts=switch("anomaly detection", 1, 10, 3 * MS)
    ),
    RuleCase("PD503", "gradcheck-in-the-first-step", training, facts=switch("gradcheck", 1, 10, 2 * MS)),
    RuleCase("PD503", "launches-do-not-block", on_gpu, facts={"environment": {"CUDA_LAUNCH_BLOCKING": "0"}}),
    RuleCase(
        "PD503",
        "one-rank-alone",
        training,
        facts={"environment": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "world_size": 1},
    ),
    RuleCase(  # the program itself looks for NaN in its loss
        "PD503", "isnan-of-the-program", lambda: training().op("aten::isnan", 9300, 50).op("aten::item", 9360, 30)
    ),
]


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


PD507 = [
    RuleCase(
        "PD507",
        "evaluation-between-training-steps",
        lambda: passes("train", "vain", "train", module="train.py:54"),
        (
            ExpectedFinding(
                "low",
                312_000,
                location="train.py:54",
                title="Forward passes that take 16% of the step",
                fix="torch.no_grad()",
                evidence={"such passes in the trace": 1, "nodes of the graph in each": 12},
            ),
        ),
    ),
    RuleCase(
        "PD507",
        "two-evaluations",
        lambda: passes("train", "vain", "train", "vain", "train"),
        (ExpectedFinding("medium", 374_400, evidence={"such passes in the trace": 2}),),
    ),
    RuleCase(  # its graphs are one run of numbers: 4.955 ms of five steps of 2 ms
        "PD507",
        "an-evaluation-of-three-batches",
        lambda: passes("train", "vain", "vain", "vain", "train"),
        (
            ExpectedFinding(
                "medium",
                561_600,
                title="take 50% of the step",
                evidence={
                    "such passes in the trace": 1,
                    "nodes of the graph in each": 36,
                    "time of these passes per step": 991_000,
                },
            ),
        ),
    ),
    RuleCase(
        "PD507",
        "an-evaluation-beside-compiling",
        lambda: passes("train", "vain", "train").op("aot_collect_metadata (dynamo_timed)", 1990, 9),
        (ExpectedFinding("low", 312_000, evidence={"such passes in the trace": 1}),),
    ),
    RuleCase(
        "PD507",
        "a-pass-that-the-compiler-traces",
        lambda: passes("train", "vain", "train").op("aot_collect_metadata (dynamo_timed)", 2000, 990),
    ),
    RuleCase(
        "PD507",
        "ten-nodes-called-in-a-frame",
        lambda: in_validate(passes("train", "vain", "train", nodes=10)),
        (ExpectedFinding("low", 313_333, location="valid.py:8", evidence={"nodes of the graph in each": 10}),),
    ),
    RuleCase(
        "PD507",
        "a-model-called-in-a-frame",
        lambda: in_validate(passes("train", "vain", "train"), calls_model=True),
        (ExpectedFinding("low", 312_000, location="valid.py:8"),),
    ),
    RuleCase("PD507", "frozen-in-a-frame", lambda: in_validate(passes("train", "frozen", "train"), calls_model=True)),
    RuleCase(  # the GPU waits 500 us for the launch; 12 nodes take 3 us each at most
        "PD507",
        "on-a-gpu",
        evaluation_on_gpu,
        (ExpectedFinding("info", 12_000, (0, None, 12_000), fix="torch.no_grad()"),),
    ),
    RuleCase(  # the pass without a graph before it is none of it
        "PD507",
        "one-of-two-evaluations-under-no-grad",
        lambda: passes("train", "frozen", "vain", "train"),
        (ExpectedFinding("low", 234_000, evidence={"time of these passes per step": 238_750}),),
    ),
    RuleCase("PD507", "training-alone", lambda: passes("train", "train", "train")),
    RuleCase("PD507", "under-no-grad", lambda: passes("train", "frozen", "train")),
    RuleCase("PD507", "a-metric-of-three-nodes", lambda: passes("train", "few", "train")),
    RuleCase("PD507", "the-last-pass-may-yet-be-used", lambda: passes("train", "train", "vain")),
    RuleCase("PD507", "the-first-pass-was-cut", lambda: passes("vain", "train", "train")),
    RuleCase("PD507", "no-training-at-all", lambda: passes("vain", "vain", "vain")),
]


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


PD518 = [
    RuleCase(
        "PD518",
        "embeddings-with-a-graph",
        lambda: passes("vain", "vain", module="embed.py:9"),
        (
            ExpectedFinding(  # 12 nodes in each of two passes, the last of which is none
                "info", 34_500, location="embed.py:9", title="nodes of autograd's graph", fix="inference_mode"
            ),
        ),
    ),
    RuleCase(
        "PD518",
        "no-backward-pass-in-facts-either",
        lambda: passes("vain", "vain"),
        (ExpectedFinding("info", 34_500),),
        {"base_backwards": [0, 0]},
    ),
    RuleCase(  # of the last number nobody knows whether it is a node
        "PD518",
        "one-pass-called-in-a-frame",
        lambda: in_serve(passes("vain")),
        (
            ExpectedFinding(
                "info",
                33_000,
                location="serve.py:3",
                title="11 nodes of autograd's graph are made in a step",
                evidence={"time of these passes per step": 875_000},
            ),
        ),
    ),
    RuleCase(
        "PD518",
        "in-a-pipeline-of-hugging-face",
        lambda: in_pipeline(passes("vain", "vain")),
        (ExpectedFinding("info", 34_500, fix="torch.inference_mode(): pipeline(...)"),),
    ),
    RuleCase(
        "PD518",
        "one-of-two-passes",
        lambda: passes("frozen", "vain", nodes=24),
        (ExpectedFinding("info", 34_500, evidence={"nodes of the graph per step": 12}),),
    ),
    RuleCase(  # a GPU that waits for each of 40 small launches: 3 us of bookkeeping a node at most, not the waits
        "PD518",
        "small-ops-before-a-waiting-gpu",
        lambda: waiting_gpu(launches=40),
        (ExpectedFinding("low", 120_000, (0, None, 120_000), fix="inference_mode"),),
    ),
    RuleCase(
        "PD518",
        "waits-of-200-us",
        lambda: waiting_gpu(launches=80, wait_us=200),
        (ExpectedFinding("info", 240_000, (0, None, 240_000)),),
    ),
    RuleCase(  # 3 us a node are nothing beside waits of 4 seconds
        "PD518", "a-first-pass-that-waits-for-seconds", lambda: waiting_gpu(launches=40, wait_us=100_000)
    ),
    RuleCase(  # the CPU is ahead: nothing waits for its bookkeeping
        "PD518", "a-busy-gpu", lambda: waiting_gpu(launches=40, wait_us=0)
    ),
    RuleCase("PD518", "no-graph", lambda: passes("frozen", "frozen")),
    RuleCase("PD518", "a-training", lambda: passes("train", "vain", "train")),
    RuleCase(  # the profiler recorded the forward part alone
        "PD518", "differentiated-outside-of-the-trace", lambda: passes("vain"), facts={"base_backwards": [1, 1]}
    ),
]


PD518 += [
    RuleCase("PD518", "metrics-of-three-nodes", lambda: passes("few", "frozen", "few")),
    RuleCase(  # the passes of a generator of data, and what trains on it elsewhere
        "PD518", "an-optimizer-steps", lambda: passes("vain", "vain").range("Optimizer.step#SGD.step", 3900, 50)
    ),
]


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


PD514 = [
    RuleCase(
        "PD514",
        "sums-by-index",
        graph_network,
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 300_000),
                location="train.py:12",
                title="30% of the step",
                fix="use_deterministic_algorithms(False)",
            ),
        ),
        switch("deterministic algorithms"),
    ),
    RuleCase(
        "PD514",
        "fills-most-of-all",
        lambda: graph_network(400),
        (ExpectedFinding("medium", 700_000, location="train.py:12", fix="fill_uninitialized_memory = False"),),
        switch("deterministic algorithms"),
    ),
    RuleCase(
        "PD514",
        "by-the-flag-of-the-window",
        graph_network,
        (ExpectedFinding("medium", 300_000),),
        {"flags_by_window": {"timing": {"deterministic_algorithms": True}}},
    ),
    RuleCase(
        "PD514",
        "kernels-of-a-gpu",
        lambda: indexing_on_gpu("aten::index_put_"),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 300_000),
                location="train.py:12",
                title="30% of the step",
                evidence={"sums by index per step": 300_000, "fills of new tensors per step": 0},
            ),
        ),
        switch("deterministic algorithms", 9, 10),
    ),
    RuleCase(
        "PD514",
        "under-lightning",
        lambda: training_of_embeddings(600).range("[pl][module]net.Net: items", 10, 300),
        (
            ExpectedFinding(
                "low", 600_000, location="train.py:12", title="6% of the step", fix="Trainer(..., deterministic=False)"
            ),
        ),
        switch("deterministic algorithms"),
    ),
    RuleCase(  # fills of 60 us beside 300 us of sums
        "PD514",
        "sums-above-fills",
        lambda: graph_network(60),
        (
            ExpectedFinding(
                "medium",
                360_000,
                location="train.py:12",
                fix="use_deterministic_algorithms(False)",
                evidence={"fills of new tensors per step": 60_000},
            ),
        ),
        switch("deterministic algorithms"),
    ),
    RuleCase("PD514", "flag-off", graph_network),
    RuleCase("PD514", "in-one-step-of-ten", graph_network, facts=switch("deterministic algorithms", 1, 10)),
    RuleCase("PD514", "nothing-that-is-slower", training, facts=switch("deterministic algorithms")),
    RuleCase(
        "PD514",
        "fills-of-the-program",
        lambda: TraceBuilder(device=None).step(0, 1000).op("aten::full", 10, 420).op("aten::fill_", 15, 400),
        facts=switch("deterministic algorithms"),
    ),
    RuleCase(
        "PD514",
        "four-hundredths-of-the-step",
        lambda: training_of_embeddings(400),
        facts=switch("deterministic algorithms"),
    ),
    RuleCase(
        "PD514",
        "off-in-the-window",
        graph_network,
        facts={"flags_by_window": {"timing": {"deterministic_algorithms": False}}},
    ),
]


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

PD517 = [
    RuleCase(
        "PD517",
        "two-pieces",
        lambda: compiled(2),
        (
            ExpectedFinding(
                "medium",
                100_000,
                (0, None, 100_000),
                location="train.py:12",
                title="Python takes 10% of the step",
                fix="fullgraph=True",
                evidence={"most common reason": "Unsupported Tensor.item() call"},
            ),
        ),
        _BREAKS,
    ),
    RuleCase(
        "PD517",
        "three-pieces-and-no-line",
        lambda: compiled(3),
        (ExpectedFinding("medium", 200_000),),
        {"compile": {"graph_breaks": 2}},
    ),
    RuleCase(
        "PD517",
        "several-lines-and-reasons",
        lambda: compiled(2),
        (
            ExpectedFinding(
                "medium",
                100_000,
                location="train.py:12",
                advice="They are train.py:12, model.py:30.",
                evidence={"most common reason": "print", "graph breaks of the whole run": 4},
            ),
        ),
        {
            "compile": {
                "graph_breaks": 4,
                "break_reasons": {"data-dependent branch": 1, "print": 3},
                "break_lines": [LINE, {"file": "model.py", "line": 30, "function": "forward"}],
            }
        },
    ),
    RuleCase(  # guards are no work: of 100 us between the pieces they take 60
        "PD517",
        "guards-in-between",
        lambda: compiled(2).op("TorchDynamo Cache Lookup", 120, 60),
        (ExpectedFinding("medium", 100_000, (0, None, 100_000), location="train.py:12"),),
        _BREAKS,
    ),
    RuleCase(
        "PD517",
        "recorded-as-ranges",
        lambda: compiled_in_ranges(between_us=200),
        (ExpectedFinding("medium", 200_000, (0, None, 200_000), location="train.py:12", title="20% of the step"),),
        _BREAKS,
    ),
    RuleCase(  # nested regions prove a break without any facts
        "PD517",
        "known-from-the-recording-alone",
        lambda: compiled(4),
        (ExpectedFinding("medium", 300_000, (0, None, 300_000), title="into 4 pieces a call: Python takes 30%"),),
    ),
    RuleCase("PD517", "compiled-layer-by-layer", lambda: compiled_in_ranges(200, is_nested=False)),
    RuleCase("PD517", "one-piece", lambda: compiled(1), facts=_BREAKS),
    RuleCase("PD517", "no-breaks", lambda: compiled(2), facts={"compile": {"graph_breaks": 0}}),
    RuleCase("PD517", "hardly-any-time-between", lambda: compiled(2, gap_us=2), facts=_BREAKS),
    RuleCase("PD517", "compiled-one-by-one", lambda: compiled_in_ranges(200, is_nested=False), facts=_BREAKS),
    RuleCase("PD517", "an-op-between-the-pieces", lambda: compiled(2).op("aten::nonzero", 112, 96), facts=_BREAKS),
]


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


PD520 = [
    RuleCase(
        "PD520",
        "on-through-the-generator",
        adversarial,
        (
            ExpectedFinding(
                "medium",
                100_000,
                (0, 100_000, 100_000),
                location="train.py:17",
                title="goes on through the module called at train.py:13",
                fix="detach()",
                evidence={"of the backward passes": 50.0},
            ),
        ),
        unused((13, False)),
    ),
    RuleCase(
        "PD520",
        "weights-of-the-discriminator",
        adversarial,
        (
            ExpectedFinding(
                "medium",
                50_000,
                (0, 50_000, 50_000),
                location="train.py:17",
                title="weights of the module called at train.py:16",
                fix="requires_grad_(False)",
            ),
        ),
        unused((16, True)),
    ),
    RuleCase(
        "PD520",
        "on-a-gpu",
        lambda: adversarial("NVIDIA A100-SXM4-80GB"),
        (ExpectedFinding("info", 90_000, location="train.py:17", title="train.py:13"),),  # the CPU never waits for it
        unused((13, False)),
    ),
    RuleCase(
        "PD520",
        "a-part-that-no-optimizer-has",
        adversarial,
        (
            ExpectedFinding(
                "medium", 200_000, (0, None, 200_000), location="train.py:17", title="2 tensors", fix="p in trained"
            ),
        ),
        unused(optimizer=None),
    ),
    RuleCase(
        "PD520",
        "a-teacher-with-gradients",
        adversarial,
        (ExpectedFinding("medium", 100_000, location="train.py:17", title="train.py:13", fix="with torch.no_grad()"),),
        unused((13, False), optimizer=None),
    ),
    RuleCase(
        "PD520",
        "a-perceptual-loss",
        adversarial,
        (ExpectedFinding("medium", 50_000, location="train.py:17", title="train.py:16", fix="for parameter in"),),
        unused((16, True), optimizer=None),
    ),
    RuleCase(  # two calls of the same module, one of them in this pass
        "PD520",
        "called-twice",
        adversarial,
        (ExpectedFinding("medium", 100_000, location="train.py:17", title="train.py:13"),),
        unused((40, True), (13, False)),
    ),
    RuleCase("PD520", "nothing-was-dropped", adversarial, facts={"unused_gradients": []}),
    RuleCase(
        "PD520", "a-short-teacher", lambda: adversarial(backward_us=20), facts=unused((13, False), optimizer=None)
    ),
    RuleCase(
        "PD520", "a-short-frozen-half", lambda: adversarial(backward_us=50), facts=unused((16, True), optimizer=None)
    ),
    RuleCase("PD520", "no-facts", adversarial),
    RuleCase("PD520", "short-passes", lambda: adversarial(backward_us=20), facts=unused((13, False))),
    RuleCase("PD520", "a-short-half", lambda: adversarial(backward_us=50), facts=unused((16, True))),
    RuleCase("PD520", "no-backward-pass", lambda: TraceBuilder(device=None).step(0, 1000), facts=unused((13, False))),
]
