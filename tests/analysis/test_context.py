"""What program a trace is of: each claim fires on a trace written by hand, and is quiet on one that lacks its sign."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfdoctor.analysis.context.context import Context
from perfdoctor.analysis.context.names_in_trace import find_name
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.gpu.generations import possible_generations
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.trace_builder import collective
from perfdoctor.trace.tables.model import Trace

MS = 1000


def context_of(trace: TraceBuilder, **rank: object) -> Context:
    return Rank(trace.trace(), **rank).context  # type: ignore[arg-type]


def forward(ops: int = 12, **device: object) -> TraceBuilder:
    """A forward pass: products, each with its kernel."""
    trace = TraceBuilder(**device)  # type: ignore[arg-type]
    for i in range(ops):
        trace.op("aten::mm", 100 * i, 50).kernel("ampere_sgemm_128x64_nn", 100 * i + 20, 60, launch_us=100 * i + 5)
    return trace


def training() -> TraceBuilder:
    trace = forward()
    trace.op("autograd::engine::evaluate_function: MmBackward0", 2000, 80)
    return trace.range("Optimizer.step#SGD.step", 2200, 100)


# --- phase ------------------------------------------------------------------------------------------------------------

PHASES: dict[str, tuple[Callable[[], TraceBuilder], str, str]] = {
    "backward pass and optimizer": (training, "training", "Optimizer.step#SGD.step"),
    "legacy name of a node": (
        lambda: forward().op("AddmmBackward", 2000, 80).range("Optimizer.step#SGD.step", 2200, 9),
        "training",
        "AddmmBackward",
    ),
    "optimizer by its op": (
        lambda: forward().op("MmBackward0", 2000, 80).op("aten::_fused_adamw_", 2200, 9),
        "training",
        "_fused_adamw_",
    ),
    "training that evaluates": (lambda: training().range("validation", 3000, 9), "training", "also evaluates"),
    "forward pass": (forward, "inference", "forward only"),
    "hooks of FSDP are no backward pass": (
        lambda: forward().op("RegisterPostBackwardFunction", 2000, 5),
        "inference",
        "gradients are prepared",
    ),
    "decoding": (lambda: forward().range("step[DECODE bs=16]", 0, 2000), "inference", "decodes"),
    "prefill of an engine": (lambda: forward().op("vllm::unified_attention", 2000, 9), "inference", "vLLM"),
    "validation": (lambda: forward().range("validation", 0, 3000), "evaluation", "validation"),
    "a schema's validator is no evaluation": (lambda: forward().range("Validators.init", 0, 9), "inference", "forward"),
    "backward pass without optimizer": (lambda: forward().op("MmBackward0", 2000, 80), "unknown", "no optimizer step"),
    "optimizer without backward pass": (
        lambda: forward().range("Optimizer.step#SGD.step", 2200, 9),
        "unknown",
        "no backward pass",
    ),
    "zeroed gradients alone": (
        lambda: forward().range("Optimizer.zero_grad#Adam.zero_grad", 0, 9),
        "unknown",
        "zeroed",
    ),
    "generates and trains": (lambda: training().range("decode step", 3000, 90), "unknown", "generates"),
    "few ops": (lambda: forward(3), "unknown", "only 3 ops"),
    "kernels alone": (lambda: TraceBuilder().kernel("ampere_sgemm_128x64_nn", 0, 9), "unknown", "no ops"),
    "kernels of a backward pass alone": (
        lambda: TraceBuilder().kernel("sm80_xmma_wgrad_implicit_gemm_tf32f32", 0, 9),
        "training",
        "gradients of weights",
    ),
}


@pytest.mark.parametrize("name", PHASES)
def test_phase_and_its_reason(name: str) -> None:
    build, phase, words = PHASES[name]
    context = context_of(build())
    assert context.phase == phase
    assert words in context.evidence[0]


def test_evaluation_by_a_function_of_the_user_but_not_of_a_library() -> None:
    def called(function: str) -> Context:
        trace = forward()
        trace.frame(function, 0, 3000)
        return context_of(trace)

    assert called("train.py(12): validate").phase == "evaluation"
    assert called("transformers/trainer.py(4000): prediction_step").phase == "evaluation"
    assert called("torch/export/schema.py(7): validate").phase == "inference"


# --- frameworks and parallelism ---------------------------------------------------------------------------------------


def with_file(file: str) -> TraceBuilder:
    trace = forward()
    trace.frame(f"{file}(10): run", 0, 3000)
    return trace


@pytest.mark.parametrize(
    ("file", "framework"),
    [
        ("pytorch_lightning/trainer/trainer.py", "Lightning"),
        ("transformers/models/bert/modeling_bert.py", "Hugging Face Transformers"),
        ("transformers/trainer.py", "Hugging Face Trainer"),
        ("transformers/pipelines/base.py", "Hugging Face pipeline"),
        ("accelerate/accelerator.py", "Accelerate"),
        ("deepspeed/runtime/engine.py", "DeepSpeed"),
        ("/opt/Megatron-LM/megatron/core/pipeline_parallel/schedules.py", "Megatron"),
        ("torchrec/distributed/embeddingbag.py", "torchrec"),
        ("/app/vllm/vllm/v1/worker/gpu_worker.py", "vLLM"),
        ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", "SGLang"),
        ("tensorrt_llm/runtime/generation.py", "TensorRT-LLM"),
        ("torch_tensorrt/dynamo/runtime/_TorchTensorRTModule.py", "TensorRT"),
        ("diffusers/pipelines/flux/pipeline_flux.py", "Diffusers"),
        ("timm/models/vision_transformer.py", "timm"),
        ("stable_baselines3/ppo/ppo.py", "Stable-Baselines3"),
    ],
)
def test_frameworks_by_their_files(file: str, framework: str) -> None:
    assert context_of(with_file(file)).frameworks == ("PyTorch", framework)


@pytest.mark.parametrize(
    "file", ["/home/me/transformers/train.py", "transformers/utils/generic.py", "vllm_notes/x.py", "/lightning/run.py"]
)
def test_folders_that_are_called_like_packages_are_no_framework(file: str) -> None:
    assert context_of(with_file(file)).frameworks == ("PyTorch",)


def test_frameworks_by_ranges_and_ops() -> None:
    assert context_of(forward().range("## KJTAllToAllSplitsAwaitable wait() ##", 0, 5)).frameworks == (
        "PyTorch",
        "torchrec",
    )
    assert context_of(forward().op("vllm::moe_forward", 2000, 5)).frameworks == ("PyTorch", "vLLM")
    assert context_of(TraceBuilder().range("my step", 0, 5)).frameworks == ()


def test_kernels_of_vllm_inside_sglang_are_not_vllm() -> None:
    trace = with_file("sglang/srt/model_executor/model_runner.py").kernel("void vllm::act_and_mul_kernel<...>", 9000, 5)
    assert context_of(trace).frameworks == ("PyTorch", "SGLang")


@pytest.mark.parametrize(
    ("build", "parallelism"),
    [
        (lambda: training().range("DistributedDataParallel.forward", 0, 900), ("DDP",)),
        (lambda: training().op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 2000, 5), ("DDP",)),
        (lambda: training().range("FullyShardedDataParallel.forward", 0, 900), ("FSDP",)),
        (lambda: forward().op("FSDP::pre_forward (blocks.3)", 2000, 5), ("FSDP",)),
        (lambda: training().range("DataParallel.forward", 0, 900), ("DataParallel",)),
        (lambda: forward().op("Redistribute", 2000, 5), ("tensor parallel",)),
        (lambda: forward().op("AllToAll4D", 2000, 5), ("sequence parallel",)),
        (lambda: forward().range("## all2all_data:kjt splits ##", 2000, 5), ("embedding sharding",)),
        (lambda: training().range("nccl:all_reduce", 2100, 5), ("data parallel",)),
        (lambda: forward().range("nccl:all_reduce", 2100, 5), ()),
        (lambda: training().range("nccl:all_gather", 2100, 5).range("nccl:all_reduce", 2110, 5), ()),
        (training, ()),
    ],
)
def test_parallelism(build: Callable[[], TraceBuilder], parallelism: tuple[str, ...]) -> None:
    assert context_of(build()).parallelism == parallelism


@pytest.mark.parametrize(
    ("description", "parallelism"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", ("tensor parallel",)),
        ("mesh_tp", ("tensor parallel",)),
        ("PIPELINE_MODEL_PARALLEL_GROUP", ("pipeline parallel",)),
        ("EXPERT_MODEL_PARALLEL_GROUP", ("expert parallel",)),
        ("CONTEXT_PARALLEL_GROUP", ("context parallel",)),
        ("default_pg", ()),
        ("undefined", ()),
        ("http_server", ()),
    ],
)
def test_parallelism_by_the_process_group(description: str, parallelism: tuple[str, ...]) -> None:
    trace = forward().op("record_param_comms", 2000, 5, comm=collective("_allgather_base", description=description))
    assert context_of(trace).parallelism == parallelism


def test_shards_of_the_sequence_are_gathered_and_scattered() -> None:
    trace = forward().op("Redistribute", 2000, 5)
    trace.range("nccl:all_gather_into_tensor_coalesced", 2100, 5).range("nccl:reduce_scatter_tensor_coalesced", 2110, 5)
    assert context_of(trace).parallelism == ("tensor parallel", "sequence parallel")
    assert context_of(trace.range("nccl:all_reduce", 2120, 5)).parallelism == ("tensor parallel",)


# --- shares, version, device ------------------------------------------------------------------------------------------


def test_a_compiled_region_counts_by_its_kernels() -> None:
    trace = forward(9).op("Torch-Compiled Region: 0/0", 2000, 100)
    trace.kernel("triton_poi_fused_add_0", 2050, 20, launch_us=2010)
    context = context_of(trace)
    assert context.compiled_share == 0.1
    assert "1 of 10 kernels are launched by compiled code or generated by Triton." in context.evidence
    assert context_of(forward()).compiled_share == 0


def test_kernels_of_a_graph_count_one_by_one() -> None:
    trace = forward(4)
    graph = trace.call("cudaGraphLaunch", 2000, 20)
    for i in range(12):
        trace.kernel("ampere_sgemm_128x64_nn", 2100 + 20 * i, 10, correlation=graph)
    assert context_of(trace).graph_share == 0.75
    assert context_of(forward()).graph_share == 0


def test_shares_are_unknown_without_kernels_and_without_launches() -> None:
    on_cpu = context_of(TraceBuilder(device=None).op("aten::mm", 0, 50))
    assert (on_cpu.compiled_share, on_cpu.graph_share) == (None, None)
    alone = context_of(TraceBuilder().kernel("ampere_sgemm_128x64_nn", 0, 9))
    assert (alone.compiled_share, alone.graph_share) == (None, None)


def test_the_release_of_torch_comes_from_the_capture() -> None:
    assert context_of(forward(), facts=CapturedFacts.parse({"torch": "2.4.1+cu121"})).torch_version == "2.4.1+cu121"
    assert context_of(forward(), facts=CapturedFacts.parse({"torch": 2})).torch_version is None
    assert context_of(forward()).torch_version is None


def test_an_unnamed_device_has_the_generations_that_its_kernels_allow() -> None:
    assert context_of(forward(device=None)).device_generations == ("Ampere", "Ada")
    assert context_of(forward()).device_generations == ()


@pytest.mark.parametrize(
    ("device", "capability", "triton", "bfloat16"),
    [
        ("Quadro GP100", (6, 0), True, True),
        ("Tesla V100-SXM2-16GB", (7, 0), False, True),
        ("Tesla T4", (7, 5), False, True),
        ("NVIDIA A100-SXM4-40GB", (8, 0), False, False),
        (None, None, False, False),
    ],
)
def test_what_a_device_lacks(
    device: str | None, capability: tuple[int, int] | None, triton: bool, bfloat16: bool
) -> None:
    context = context_of(forward(device=device, capability=capability))
    assert (context.lacks_triton, context.lacks_bfloat16) == (triton, bfloat16)


def test_an_unnamed_device_lacks_bfloat16_by_its_kernels() -> None:
    def with_kernel(name: str) -> Context:
        return context_of(TraceBuilder(device=None).kernel(name, 0, 9))

    assert with_kernel("volta_sgemm_128x64_nn").lacks_bfloat16
    assert not with_kernel("volta_sgemm_128x64_nn").lacks_triton
    assert not with_kernel("ampere_sgemm_128x64_nn").lacks_bfloat16


@pytest.mark.parametrize(
    "name", ["wait_sparse_data_dist", "start_sparse_data_dist 1", "sparse_data_dist", "sdd_preprocess_splits"]
)
def test_the_train_pipeline_of_torchrec_shows_by_its_ranges(name: str) -> None:
    assert "torchrec train pipeline" in context_of(training().range(f"## {name} ##", 0, 5)).frameworks
    assert "torchrec train pipeline" not in context_of(training().range("## wait_for_batch ##", 0, 5)).frameworks


def test_the_exchange_of_torchrec_in_8_bits_shows_by_its_ops() -> None:
    def frameworks_with(op: str) -> tuple[str, ...]:
        return context_of(training().range("## KJT ##", 0, 5).op(op, 2000, 5)).frameworks

    assert "torchrec 8-bit exchange" in frameworks_with("fbgemm::FloatToHFP8Quantized")
    assert "torchrec 8-bit exchange" not in frameworks_with("fbgemm::FP8RowwiseQuantizedToFloat_backward")
    assert "torchrec 8-bit exchange" not in frameworks_with("fbgemm::block_bucketize_sparse_features")


@pytest.mark.parametrize(
    ("architectures", "generations"),
    [
        (("sm70",), ("Volta", "Turing")),
        (("sm70", "sm75"), ("Turing",)),
        (("sm80", "sm75"), ("Ampere", "Ada")),
        (("sm89",), ("Ada",)),
        (("sm80", "sm90"), ("Hopper",)),
        (("sm100", "sm103"), ("Blackwell",)),
        (("gfx942",), ("CDNA 3",)),
        (("gfx942", "gfx90a"), ()),
        (("gfx942", "sm80"), ()),
        (("smooth",), ()),
        ((), ()),
    ],
)
def test_generations_by_architectures(architectures: tuple[str, ...], generations: tuple[str, ...]) -> None:
    assert possible_generations(architectures) == generations


def test_several_unnamed_devices_have_no_generation() -> None:
    trace = forward(device=None).kernel("volta_sgemm_128x64_nn", 5000, 9, device=1)
    context = context_of(trace)
    assert context.device_generations == ()
    assert "device unknown: the kernels ran on 2 devices, and the trace names none." in context.evidence


# --- steady or warm-up ------------------------------------------------------------------------------------------------


def steps(*durations_us: float) -> TraceBuilder:
    """Steps one after the other, each with a kernel from its start to its end."""
    trace, start = TraceBuilder(), 0.0
    for duration in durations_us:
        trace.step(start, duration).op("aten::mm", start, 20)
        trace.kernel("ampere_sgemm_128x64_nn", start + 10, duration - 20, launch_us=start + 1)
        start += duration
    return trace


def reasons(context: Context) -> list[str]:
    return [sentence for sentence in context.evidence if "steady" in sentence]


@pytest.mark.parametrize(
    ("durations_ms", "steady", "words"),
    [
        ((10, 10, 10, 11), True, None),
        ((13, 10, 10, 10), True, None),
        ((20, 10, 10, 10), False, "the first step takes 20.0 ms, the others 10.0 ms"),
        ((10, 20, 10, 10), None, "10.0 to 20.0 ms"),
        ((20, 10, 30, 10), None, "10.0 to 30.0 ms"),
        ((10, 10), None, "2 steps are too few"),
    ],
)
def test_lengths_of_steps(durations_ms: tuple[int, ...], steady: bool | None, words: str | None) -> None:
    context = context_of(steps(*(MS * ms for ms in durations_ms)))
    assert context.steady is steady
    assert len(reasons(context)) == (words is not None)
    assert all(words is None or words in reason for reason in reasons(context))


def test_clocks_that_drift_leave_it_unknown() -> None:
    def drifting(room_us: float) -> Context:
        trace = steps(*[MS] * 4)
        for i in range(4):  # these start 300 us before their launch; the copy allows to move them by `room_us` only
            trace.kernel("ampere_sgemm_128x64_nn", MS * i + 400, 5, launch_us=MS * i + 700)
        copy = trace.call("cudaMemcpyAsync", 3800, 100 + room_us)
        return context_of(trace.memcpy("DtoH", 3850, 50, correlation=copy))

    assert drifting(400).steady is True
    assert drifting(10).steady is None
    assert "drift apart by 0.3 ms" in reasons(drifting(10))[0]


# --- as a whole -------------------------------------------------------------------------------------------------------


def test_an_empty_trace_has_no_claims() -> None:
    context = Rank(Trace("empty.json")).context
    assert (context.phase, context.frameworks, context.parallelism, context.steady) == ("unknown", (), (), None)
    assert (context.compiled_share, context.graph_share, context.device_generations) == (None, None, ())


def test_the_same_trace_gives_the_same_context() -> None:
    assert context_of(training()) == context_of(training())


def test_a_name_is_found_on_its_line_and_quoted_whole() -> None:
    assert find_name("first\nsecond step\nthird", r"^second") == "second step"
    assert find_name("first\nsecond step\nthird", r"ird$") == "third"
    assert find_name("first\nsecond step\nthird", r"[^a-z]second") == "second step"
    assert find_name("first", r"^irst") is None
    assert find_name("first", "") is None
    assert find_name("x" * 100, "x") == "x" * 70 + "..."
