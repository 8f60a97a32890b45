"""Cases of the rules about serving engines, PD801 and PD803, and of PD402 on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_programs import FRAMES, RANGES, SGLANG, TENSORRT_LLM, Pass, serve

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

SGLANG_DECODE = "step[DECODE bs=4]"
GENERATION = "[Executor] _forward_step 6: 0 ctx reqs, 0 ctx tokens, {size} gen reqs"
TENSORRT_LLM_DECODE = GENERATION.format(size=4)


def decode(passes: int = 5, label: str = "", **host_us: float) -> list[Pass]:
    """Passes of 10 ms that decode; of five, four have a gap behind them: of 1000 us a gap, 800 us a pass."""
    return [Pass(label=label, host_us=host_us)] * passes


def batches(
    sizes: Sequence[int],
    captured: int = 8,
    label: str = "",
    gpu_us: float = 2000,
    frames: Mapping[str, str] = FRAMES,
    stacks: bool = True,
    overlapped: bool = False,
) -> TraceBuilder:
    """An engine that captured graphs up to a batch: above it a kernel of 20 us is launched every 60 us."""
    return serve(
        [
            Pass(
                decoded=size,
                gpu_us=gpu_us,
                graphed=size <= captured,
                label=label.format(size=size),
                host_us={"preparing": 50, "launch": 50},
            )
            for size in sizes
        ],
        overlapped,
        stacks=stacks,
        frames=frames,
    )


def padded(
    sizes: Sequence[int], label: str = "", large_us: float = 10_000, rows: int = 32, frames: Mapping[str, str] = FRAMES
) -> TraceBuilder:
    """An engine whose graphs are captured for 4 and for 32 requests; that for 4 takes 6 ms."""
    return serve(
        [
            Pass(
                decoded=size,
                gpu_us=6000 if size <= 4 else large_us,
                rows=min(rows, 4) if size <= 4 else rows,
                label=label.format(size=size),
                host_us={"scheduling": 300},
            )
            for size in [*sizes] * 6
        ],
        overlapped=True,
        stacks="preparing" in frames,
        frames=frames,
    )


MANY_SIZES = (4, 8, 16, 4, 8, 16, 4, 8, 32)

PD801 = [
    RuleCase(
        "PD801",
        "scheduling-and-inputs",
        lambda: serve(decode(scheduling=700, preparing=300)),
        (
            ExpectedFinding(
                "low",
                800_000,
                (0, None, 800_000),
                title="while the engine schedules (560 us) and prepares inputs (240 us)",
                advice="schedule the next batch while the GPU works",
                fix="--async-scheduling",
                evidence={"passes": 5, "GPU idle in scheduling per step": 560_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD801",
        "sampling",
        lambda: serve(decode(sampling=2000)),
        (ExpectedFinding("medium", 1_600_000, title="samples (1.6 ms)"),),
    ),
    RuleCase(
        "PD801",
        "sampling-on-the-cpu",
        lambda: serve([*[Pass(cpu_ops={"aten::sort": 1200, "aten::multinomial": 300})] * 5, Pass()]),
        (ExpectedFinding("medium", 1_666_667, title="samples (1.25 ms)"),),
    ),
    RuleCase(
        "PD801",
        "tokenizing",
        lambda: serve(decode(tokenizing=600, detokenizing=400)),
        (ExpectedFinding("low", 800_000, title="tokenizes (480 us) and turns tokens into text (320 us)"),),
    ),
    RuleCase(
        "PD801",
        "messages-of-a-worker",
        lambda: serve(decode(messages=1000), worker=True),
        (ExpectedFinding("low", 800_000 + 4_000, title="exchanges messages (804 us)"),),
    ),
    RuleCase(
        "PD801",
        "sglang",
        lambda: serve(decode(label=SGLANG_DECODE, scheduling=700, preparing=300), frames=SGLANG),
        (ExpectedFinding("low", 800_000, title="schedules (560 us)", fix="without --disable-overlap-schedule"),),
    ),
    RuleCase(
        "PD801",
        "ranges-without-stacks",
        lambda: serve(decode(scheduling=700, preparing=300), frames=RANGES, stacks=False),
        (ExpectedFinding("low", 800_000, title="schedules (560 us) and prepares inputs (240 us)"),),
    ),
    RuleCase(
        "PD801",
        "schedules-ahead-and-is-slower-than-the-gpu",
        lambda: serve(
            [Pass(gpu_us=2000, kernels=20, host_us={"scheduling": 1500, "preparing": 1500})] * 5, overlapped=True
        ),
        (ExpectedFinding("medium", 800_000, title="prepares inputs", advice="schedules ahead already"),),
    ),
    RuleCase(
        "PD801",
        "tensorrt-llm",
        lambda: serve(decode(label=TENSORRT_LLM_DECODE, scheduling=1000), frames=TENSORRT_LLM, stacks=False),
        (ExpectedFinding("low", 800_000, title="schedules (800 us)", fix="disable_overlap_scheduler=False"),),
    ),
    RuleCase(
        "PD801",
        "prompts-and-decoding",
        lambda: serve([Pass([900], 0, host_us={"scheduling": 1000})] * 2 + decode(3, scheduling=1000)),
        (ExpectedFinding("low", 800_000, title="schedules (800 us)"),),
    ),
    RuleCase("PD801", "schedules-ahead", lambda: serve(decode(scheduling=2000, preparing=900), overlapped=True)),
    RuleCase("PD801", "short", lambda: serve(decode(scheduling=100, preparing=100))),
    RuleCase("PD801", "tokenizes-while-the-gpu-works", lambda: serve(decode(tokenizing=2000), overlapped=True)),
    RuleCase("PD801", "samples-a-little-on-the-cpu", lambda: serve([Pass(cpu_ops={"aten::sort": 50}, host_us={})] * 6)),
    RuleCase("PD801", "two-passes", lambda: serve(decode(2, scheduling=2000))),
    RuleCase("PD801", "without-stacks", lambda: serve(decode(scheduling=2000), stacks=False)),
    RuleCase("PD801", "no-requests", lambda: serve(decode(no_requests=8000))),
    RuleCase(
        "PD801",
        "loop-without-requests",
        lambda: serve(decode(label=SGLANG_DECODE, scheduling=3000, no_requests=100), frames=SGLANG),
    ),
    RuleCase("PD801", "worker-without-messages", lambda: serve(decode(messages=30_000), worker=True)),
    RuleCase("PD801", "healthy", build_healthy_trace),
]
PD803 = [
    RuleCase(
        "PD803",
        "vllm",
        lambda: batches(MANY_SIZES),
        (
            ExpectedFinding(
                "medium",
                1_331_556,
                title="3 of 9 passes that decode run without a graph, those of more than 8 requests",
                fix='"cudagraph_capture_sizes": [1, 2, 4, 8, ..., 32]',
                evidence={"largest batch with a graph": 8, "largest batch without": 32},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD803",
        "sglang",
        lambda: batches(MANY_SIZES, label="step[DECODE bs={size}]", frames=SGLANG),
        (ExpectedFinding("medium", 1_331_556, fix="--cuda-graph-max-bs 32"),),
    ),
    RuleCase(
        "PD803",
        "tensorrt-llm",
        lambda: batches(MANY_SIZES, label=GENERATION, stacks=False),
        (ExpectedFinding("medium", 1_342_667, fix="CudaGraphConfig(batch_sizes=[1, 2, 4, 8, ..., 32]"),),
    ),
    RuleCase(
        "PD803",
        "beside-prompts",
        lambda: serve(
            [
                *[Pass(prompt=[900], decoded=0, graphed=False, host_us={"preparing": 50})] * 3,
                *[Pass(host_us={"preparing": 50})] * 3,
                *[Pass(decoded=64, gpu_us=2000, graphed=False, host_us={"preparing": 50, "launch": 50})] * 3,
            ]
        ),
        (ExpectedFinding("medium", 1_331_556, title="3 of 6 passes that decode", fix="..., 64]"),),
    ),
    RuleCase(
        "PD803", "schedules-ahead", lambda: batches(MANY_SIZES, overlapped=True), (ExpectedFinding("medium", 685_889),)
    ),
    RuleCase(
        "PD803",
        "padded",
        lambda: padded((4, 12)),
        (
            ExpectedFinding(
                "medium",
                2_000_000,
                (0, None, 2_000_000),
                title="6 passes that decode run in graphs of twice their size or more: 32 rows for 12",
                fix='"cudagraph_capture_sizes": [1, 2, 4, ..., 12, ...]',
                evidence={"rows of their graphs": 32, "tokens that they decode": 12},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD803",
        "padded-sglang",
        lambda: padded((4, 12), label="step[DECODE bs={size}]", frames=SGLANG),
        (ExpectedFinding("medium", 2_000_000, fix="--cuda-graph-bs 1 2 4 12"),),
    ),
    RuleCase(
        "PD803",
        "padded-tensorrt-llm",
        lambda: padded((4, 12), label=GENERATION, frames=TENSORRT_LLM),
        (ExpectedFinding("medium", 2_000_000, fix="CudaGraphConfig(batch_sizes=[1, 2, 4, ..., 12, ...]"),),
    ),
    RuleCase(
        "PD803",
        "padded-to-twice",
        lambda: padded((4, 16)),
        (ExpectedFinding("medium", 2_000_000, title="32 rows for 16"),),
    ),
    RuleCase("PD803", "padded-a-little", lambda: padded((4, 20))),
    RuleCase("PD803", "padded-without-a-smaller-graph", lambda: padded((12, 12))),
    RuleCase("PD803", "padded-at-no-cost", lambda: padded((4, 12), large_us=6010)),
    RuleCase("PD803", "rows-unknown", lambda: padded((4, 12), rows=0)),
    RuleCase("PD803", "all-in-graphs", lambda: batches(MANY_SIZES, captured=64)),
    RuleCase("PD803", "none-in-graphs", lambda: batches(MANY_SIZES, captured=0)),
    RuleCase("PD803", "one-large-batch", lambda: batches((4, 8, 4, 8, 4, 8, 32))),
    RuleCase("PD803", "kernels-hide-their-launches", lambda: batches(MANY_SIZES, gpu_us=9000)),
    RuleCase("PD803", "healthy", build_healthy_trace),
]
PD402 = [
    RuleCase(
        "PD402",
        "tensor-parallel-engine",
        lambda: serve([Pass(collectives=64, collective_us=20)] * 5, overlapped=True),
        (ExpectedFinding("medium", 1_280_000, title="none of it overlaps", fix="--disable-custom-all-reduce"),),
    ),
    RuleCase(
        "PD402", "short-in-an-engine", lambda: serve([Pass(collectives=64, collective_us=3)] * 5, overlapped=True)
    ),
]
