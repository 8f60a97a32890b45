"""Cases of the rules about serving engines: PD801 to PD807."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_programs import CUSTOM_REDUCE, FRAMES, RANGES, SGLANG, TENSORRT_LLM, Pass, decode_eagerly, serve

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

SGLANG_SAMPLER = "sglang/srt/layers/sampler.py(83): forward"
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


def beside_products() -> TraceBuilder:
    """An engine whose collectives run beside its products, on a stream of their own."""
    trace = serve(decode(), overlapped=True)
    for number in range(5):
        at = 1000 + 10_000 * number
        trace.kernel(CUSTOM_REDUCE, at, 3000, launch_us=at - 10, stream=9)
    return trace


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
PD802 = [
    RuleCase(
        "PD802",
        "small-kernels",
        decode_eagerly,
        (
            ExpectedFinding(
                "medium",
                1_900_000,
                (0, None, 1_720_500),
                title="busy for 3.4 ms, 3.8 times what reading its weights takes; 400 small kernels take 2 ms",
                advice="Fuse what lies between",
                fix="-O2",
                evidence={"small kernels in a pass": 400},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD802",
        "sglang",
        lambda: decode_eagerly(label=SGLANG_DECODE),
        (ExpectedFinding("medium", 1_900_000, fix="--enable-torch-compile"),),
    ),
    RuleCase(
        "PD802",
        "fewer-kernels",
        lambda: decode_eagerly(product_us=75, between=8),
        (ExpectedFinding("medium", 700_000, title="2.6 times"),),
    ),
    RuleCase(
        "PD802",
        "tensorrt-llm",
        lambda: decode_eagerly(label=TENSORRT_LLM_DECODE),
        (ExpectedFinding("medium", 1_900_000, fix="TorchCompileConfig(enable_inductor=True)"),),
    ),
    RuleCase(
        "PD802",
        "generate-of-transformers",
        lambda: decode_eagerly(label=""),
        (
            ExpectedFinding(
                "medium", 5_700_000, title="400 small kernels take 2 ms", fix='cache_implementation = "static"'
            ),
        ),
    ),
    RuleCase("PD802", "at-its-floor", lambda: decode_eagerly(between=2)),
    RuleCase("PD802", "slow-products", lambda: decode_eagerly(product_us=200, between=0)),
    RuleCase("PD802", "one-kernel-between-products", lambda: decode_eagerly(product_us=100, between=1)),
    RuleCase("PD802", "without-shapes", lambda: decode_eagerly(shapes=False)),
    RuleCase("PD802", "healthy", build_healthy_trace),
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


def read(*sizes: int, gpu_us: float = 12_000, label: str = "", requests: int = 1, **named: Any) -> list[Pass]:
    """Passes that read a piece of a prompt each."""
    return [
        Pass(
            [size // requests] * requests,
            0,
            gpu_us=gpu_us * size / max(sizes),
            label=label.format(size=size, requests=requests),
            **named,
        )
        for size in sizes
    ]


EXTEND = "step[EXTEND bs={requests} toks={size}]"
CONTEXT = "[Executor] _forward_step 6: {requests} ctx reqs, {size} ctx tokens, 0 gen reqs"
PD804 = [
    RuleCase(
        "PD804",
        "pieces-and-a-rest",
        lambda: serve([*read(512, 512, 512, 200), *decode(6)], overlapped=True),
        (
            ExpectedFinding(
                "medium",
                1_406_850,
                (0, None, 1_406_850),
                title="Prompts are read in 4 passes of up to 512 tokens",
                advice="Allow more tokens in a pass",
                fix="--max-num-batched-tokens 8192",
                evidence={"tokens of a piece": 512, "passes fewer with larger pieces": 3},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD804",
        "sglang",
        lambda: serve([*read(512, 512, 512, 200, label=EXTEND), *decode(6, label=SGLANG_DECODE)], frames=SGLANG),
        (ExpectedFinding("medium", 1_406_850, fix="--chunked-prefill-size 8192"),),
    ),
    RuleCase(
        "PD804",
        "several-prompts-fill-a-pass",
        lambda: serve([*read(512, 512), *read(512, requests=2), *decode(7)], overlapped=True),
        (ExpectedFinding("medium", 2_000_400, title="3 passes of up to 512"),),
    ),
    RuleCase(
        "PD804",
        "passes-that-decode-are-filled-up",
        lambda: serve([*read(512, 512, 512), Pass([508], 4), *decode(6)], overlapped=True),
        (ExpectedFinding("medium", 2_000_400, title="3 passes of up to 512"),),
    ),
    RuleCase(
        "PD804",
        "by-the-smallest-piece",
        lambda: serve(read(512, 512, 512, 512, 100), overlapped=True),
        (ExpectedFinding("medium", 1_876_600, title="5 passes of up to 512"),),
    ),
    RuleCase(
        "PD804",
        "tensorrt-llm",
        lambda: serve(
            [*read(512, 512, 512, 200, label=CONTEXT), *decode(6, label=TENSORRT_LLM_DECODE)],
            overlapped=True,
            stacks=False,
        ),
        (ExpectedFinding("medium", 1_406_850, fix="max_num_tokens=8192"),),
    ),
    RuleCase("PD804", "large-pieces", lambda: serve([*read(2048, 2048, 2048, 200), *decode(6)], overlapped=True)),
    RuleCase("PD804", "prompts-of-one-length", lambda: serve([*read(40, 512, 512, 512), *decode(6)], overlapped=True)),
    RuleCase("PD804", "two-pieces", lambda: serve([*read(512, 512, 100), *decode(6)], overlapped=True)),
    RuleCase(
        "PD804", "beside-decoding", lambda: serve([*[Pass([508], 4)] * 4, Pass([100], 4), *decode(6)], overlapped=True)
    ),
    RuleCase(
        "PD804",
        "a-pass-that-decodes-takes-no-time",
        lambda: serve([*read(512, 512, 512, 200), *[Pass(gpu_us=100, kernels=3)] * 6], overlapped=True),
    ),
    RuleCase("PD804", "healthy", build_healthy_trace),
]


def sample(passes: int = 5, logits: int = 0, label: str = "", **ops: float) -> list[Pass]:
    """Passes that decode, and whose tokens the CPU samples by some ops; what comes after the last pass delays none."""
    on_cpu = {f"aten::{name}": took for name, took in ops.items()}
    return [*[Pass(label=label, logits=logits, cpu_ops=on_cpu)] * passes, Pass(label=label)]


LOGITS = 4 * 32_000 * 4
PD805 = [
    RuleCase(
        "PD805",
        "ops-in-the-sampler",
        lambda: serve(sample(sort=1200, multinomial=300)),
        (
            ExpectedFinding(
                "medium",
                1_250_000,
                (0, None, 1_250_000),
                title="the GPU waits 1.25 ms a pass for aten::sort",
                advice="Keep the logits on the GPU",
                fix="LogitsProcessor",
                evidence={"copies of logits per step": 0},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD805",
        "copied-logits-without-stacks",
        lambda: serve(sample(logits=LOGITS, softmax=800), stacks=False),
        (ExpectedFinding("low", 666_667, title="for aten::softmax, and 512 KB of logits are copied to it"),),
    ),
    RuleCase(
        "PD805",
        "sglang",
        lambda: serve(sample(label=SGLANG_DECODE, sort=1200), frames={**SGLANG, "sampling": SGLANG_SAMPLER}),
        (ExpectedFinding("medium", 1_000_000, fix="--sampling-backend flashinfer"),),
    ),
    RuleCase(
        "PD805",
        "tensorrt-llm",
        lambda: serve(sample(label=TENSORRT_LLM_DECODE, logits=LOGITS, topk=1200), stacks=False),
        (ExpectedFinding("medium", 1_000_000, title="for aten::topk", advice="Keep the logits on the GPU"),),
    ),
    RuleCase(
        "PD805",
        "penalties-in-python",
        lambda: serve(sample(logits=LOGITS, mul_=500, stack=700)),
        (ExpectedFinding("medium", 1_000_000, title="for aten::mul_, and 512 KB of logits"),),
    ),
    RuleCase("PD805", "on-the-gpu", lambda: serve(decode(sampling=2000))),
    RuleCase("PD805", "tokens-are-copied", lambda: serve(sample(logits=32, sort=1200), stacks=False)),
    RuleCase("PD805", "short", lambda: serve(sample(sort=100))),
    RuleCase("PD805", "other-ops", lambda: serve(sample(stack=1200))),
    RuleCase("PD805", "healthy", build_healthy_trace),
]
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reduce(kernel: str = CUSTOM_REDUCE, passes: int = 5, **named: Any) -> list[Pass]:
    """Passes that decode with 64 collectives of 20 us each, 1.28 of 11.28 ms."""
    return [Pass(collectives=64, collective_us=20, collective=kernel, **named)] * passes


PD806 = [
    RuleCase(
        "PD806",
        "kernels-of-the-engine",
        lambda: serve(reduce(), overlapped=True),
        (
            ExpectedFinding(
                "low",
                1_280_000,
                (0, None, 1_280_000),
                title="64 collectives a pass run while nothing computes",
                advice="Fuse each all-reduce",
                fix='"fuse_allreduce_rms": true',
                evidence={"collectives per step": 64, "of the decoding ones by NCCL": 0},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD806",
        "nccl",
        lambda: serve(reduce(NCCL), overlapped=True),
        (ExpectedFinding("low", 1_280_000, title="by NCCL where it decodes", fix="--disable-custom-all-reduce"),),
    ),
    RuleCase(
        "PD806",
        "sglang",
        lambda: serve(reduce(label=SGLANG_DECODE), overlapped=True, frames=SGLANG),
        (ExpectedFinding("low", 1_280_000, fix="--enable-flashinfer-allreduce-fusion"),),
    ),
    RuleCase(
        "PD806",
        "tensorrt-llm-by-nccl",
        lambda: serve(reduce(NCCL, label=TENSORRT_LLM_DECODE), overlapped=True, stacks=False),
        (ExpectedFinding("low", 1_280_000, fix='allreduce_strategy="AUTO"'),),
    ),
    RuleCase(
        "PD806",
        "fused-already",
        lambda: serve(reduce("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport")),
        (ExpectedFinding("low", 1_280_000, advice="Use fewer tensor-parallel ranks", fix="--data-parallel-size"),),
    ),
    RuleCase(
        "PD806",
        "prompts",
        lambda: serve([Pass([900], 0, collectives=64, collective_us=40, collective=NCCL)] * 5, overlapped=True),
        (ExpectedFinding("medium", 2_560_000, advice="Overlap the products", fix='"fuse_gemm_comms": true'),),
    ),
    RuleCase("PD806", "short", lambda: serve([Pass(collectives=64, collective_us=3)] * 5, overlapped=True)),
    RuleCase("PD806", "one-gpu", lambda: serve(decode())),
    RuleCase("PD806", "experts", lambda: serve(reduce("void deep_ep::internode_ll::dispatch<true>"))),
    RuleCase("PD806", "pipeline", lambda: serve(reduce("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"))),
    RuleCase("PD806", "beside-computation", lambda: beside_products()),
    RuleCase("PD806", "healthy", build_healthy_trace),
]
PD807 = [
    RuleCase(
        "PD807",
        "tokenizing",
        lambda: serve(decode(tokenizing=2000)),
        (
            ExpectedFinding(
                "medium",
                1_600_000,
                (0, None, 1_600_000),
                title="tokenizes (1.6 ms)",
                advice="another process",
                fix="VLLM_ENABLE_V1_MULTIPROCESSING=1",
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD807",
        "detokenizing",
        lambda: serve(decode(detokenizing=500)),
        (ExpectedFinding("low", 400_000, title="turns tokens into text (400 us)"),),
    ),
    RuleCase(
        "PD807",
        "longer-than-the-gpu",
        lambda: serve(decode(tokenizing=12_000), overlapped=True),
        (ExpectedFinding("medium", 1_600_000, title="tokenizes"),),
    ),
    RuleCase(
        "PD807",
        "both",
        lambda: serve(decode(tokenizing=600, detokenizing=400)),
        (ExpectedFinding("low", 800_000, title="tokenizes (480 us) and turns tokens into text (320 us)"),),
    ),
    RuleCase(
        "PD807",
        "beside-scheduling",
        lambda: serve(decode(tokenizing=500, scheduling=4000)),
        (ExpectedFinding("low", 400_000, title="engine tokenizes (400 us)"),),
    ),
    RuleCase("PD807", "other-work-of-the-engine", lambda: serve(decode(scheduling=2000, messages=500))),
    RuleCase("PD807", "hidden-behind-the-gpu", lambda: serve(decode(tokenizing=2000), overlapped=True)),
    RuleCase("PD807", "short", lambda: serve(decode(tokenizing=100, scheduling=700))),
    RuleCase("PD807", "two-passes", lambda: serve(decode(2, tokenizing=2000))),
    RuleCase("PD807", "healthy", build_healthy_trace),
]
