"""Cases of PD116, models left on the CPU, and of PD106 in programs that compute on the CPU."""

from __future__ import annotations

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

T4 = "Tesla T4"


def passes(
    *names: str, device: str | None = T4, us: float = 1000, frame: str | None = None, steps: int = 0
) -> TraceBuilder:
    """Twelve ops of `us` each, with the names in turn, and three short ones in the 10 us after each."""
    trace = TraceBuilder(device=device)
    for number in range(12):
        trace.op(names[number % len(names)], (us + 10) * number, us)
        for short in range(3):
            trace.op("aten::add", (us + 10) * number + us + 1 + 3 * short, 2)
    if frame:
        trace.frame(frame, 0, 12 * (us + 10))
    for step in range(steps):
        trace.step(step * 12 * (us + 10) / steps, 12 * (us + 10) / steps)
    return trace


def made_and_copied(maker: str, *, made_us: float = 900, device: str | None = T4, copied: bool = True) -> TraceBuilder:
    """Twelve times an op of `made_us` and a copy of 200 us to the GPU."""
    trace = TraceBuilder(device=device)
    for number in range(12):
        at = number * (made_us + 220)
        trace.op(maker, at, made_us)
        if maker == "aten::randn":
            trace.op("aten::normal_", at + 5, made_us - 10)
        if copied:
            trace.op("aten::to", at + made_us + 5, 205).op("aten::copy_", at + made_us + 6, 202)
            trace.call("cudaMemcpyAsync", at + made_us + 7, 200)
    return trace


def on_gpu() -> TraceBuilder:
    trace = TraceBuilder(device=T4)
    for number in range(12):
        trace.op("aten::mm", number * 1000, 50)
        trace.kernel("volta_sgemm_128x64_nn", number * 1000 + 20, 950, launch_us=number * 1000 + 10)
    return trace


def split_model(*, layer: str = "aten::addmm", busy: bool = False, first_layers: int = 4) -> TraceBuilder:
    """Four steps: some layers of 1 ms each on the CPU, a copy to the GPU, and four layers of 1 ms there.

    The GPU is `busy` meanwhile with the step before.
    """
    trace, length = TraceBuilder(device=T4), first_layers * 1000 + 4200
    if busy:
        trace.kernel("volta_sgemm_128x64_nn", 0, first_layers * 1000, launch_us=-10)
    for step in range(4):
        at = step * length
        trace.step(at, length)
        for number in range(first_layers):
            trace.op(layer, at + 1000 * number, 990)
        at += first_layers * 1000
        trace.op("aten::copy_", at, 40).memcpy(
            "HtoD", at + 20, 30, correlation=trace.call("cudaMemcpyAsync", at + 5, 10)
        )
        for number in range(4):
            trace.op("aten::addmm", at + 50 + 20 * number, 15)
            launched = trace.call("cudaLaunchKernel", at + 55 + 20 * number, 5)
            end = (length if busy else 4000) - 50
            trace.kernel("volta_sgemm_128x64_nn", at + 70 + end // 4 * number, end // 4, correlation=launched)
    return trace


PD116 = [
    # 16 ops of 0.99 ms, of which the launch of each is left.
    RuleCase(
        "PD116",
        "the-first-layers-alone",
        lambda: split_model(),
        (
            ExpectedFinding(
                "medium",
                3_960_000,
                (0, None, 3_920_000),
                title="A part of the model computes on the CPU, and the machine has a GPU (Tesla T4)",
                fix='model.to("cuda")',
            ),
        ),
    ),
    RuleCase(
        "PD116",
        "convolutions-before-the-gpu",
        lambda: split_model(layer="aten::mkldnn_convolution", first_layers=2),
        (ExpectedFinding("medium", 1_980_000, (0, None, 1_960_000), title="A part of the model"),),
    ),
    RuleCase("PD116", "layers-that-wait-for-the-gpu", lambda: split_model(busy=True)),
    RuleCase("PD116", "preprocessing-alone", lambda: split_model(layer="aten::div")),
    RuleCase(
        "PD116",
        "convolutions",
        lambda: passes("aten::mkldnn_convolution", "aten::native_batch_norm", frame="model.py(7): forward"),
        (
            ExpectedFinding(
                "medium",
                12_000_000,
                (0, None, 11_880_000),
                location="model.py:7",
                title="The model computes on the CPU, and the machine has a GPU (Tesla T4)",
                fix='model.to("cuda")',
                evidence={"layer that takes longest": "mkldnn_convolution"},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD116",
        "steps",
        lambda: passes("aten::addmm", "aten::gelu", steps=3),
        (ExpectedFinding("medium", 4_000_000, (0, None, 3_960_000)),),
    ),
    RuleCase(
        "PD116",
        "amd",
        lambda: passes("aten::mm", device="AMD Instinct MI300X"),
        (ExpectedFinding("medium", 12_000_000, title="(AMD Instinct MI300X)"),),
    ),
    RuleCase(
        "PD116",
        "attention-and-what-lies-between",
        lambda: passes("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::bmm", "aten::_softmax"),
        (ExpectedFinding("medium", 12_000_000),),
    ),
    RuleCase(
        "PD116",
        "tensors-made-there-as-well",
        lambda: passes("aten::addmm", "aten::addmm", "aten::normal_"),
        (ExpectedFinding("medium", 8_000_000, (0, None, 7_920_000)),),
    ),
    RuleCase(
        "PD116",
        "compiled-for-the-cpu",
        lambda: passes("mkldnn::_linear_pointwise"),
        (ExpectedFinding("medium", 12_000_000, evidence={"layer that takes longest": "mkldnn::_linear_pointwise"}),),
    ),
    RuleCase("PD116", "no-gpu-in-the-machine", lambda: passes("aten::mkldnn_convolution", device=None)),
    RuleCase("PD116", "no-layers", lambda: passes("aten::sort", "aten::index_select")),
    RuleCase("PD116", "only-makes-tensors", lambda: passes("aten::normal_", "aten::randperm")),
    RuleCase("PD116", "few-layers-beside-sorting", lambda: passes(*["aten::sort"] * 11, "aten::mm")),
    RuleCase("PD116", "on-the-gpu", on_gpu),
    RuleCase("PD116", "healthy", build_healthy_trace),
]

PD106 = [
    RuleCase(
        "PD106",
        "cpu-random-numbers",
        lambda: made_and_copied("aten::randn"),
        (
            ExpectedFinding(
                "medium",
                1_105_000,
                (0, None, 1_105_000),
                title="Tensors are made on the CPU and copied to the GPU: 1 a step",
                fix="torch.randn(..., device=",
                evidence={"made by": "aten::randn"},
            ),
        ),
    ),
    RuleCase(
        "PD106",
        "cpu-zeros",
        lambda: made_and_copied("aten::zeros"),
        (ExpectedFinding("medium", 12 * 1_105_000, fix="torch.zeros(..., device="),),
    ),
    RuleCase("PD106", "cpu-made-and-kept", lambda: made_and_copied("aten::randn", copied=False)),
    RuleCase("PD106", "cpu-computed-and-copied", lambda: made_and_copied("aten::sort")),
]
