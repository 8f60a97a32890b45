"""By which names frameworks and kinds of parallelism are known.

Their packages, annotations, operators, kernels and process groups. What the profiler itself writes stands in
`perfdoctor.trace.vocabulary`. The patterns are searched in texts of one name a line: ^ and $ are its ends.
"""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.trace.vocabulary import DATA_PARALLEL_FORWARD, DDP_FORWARD, FSDP_FORWARD


class NameSigns(NamedTuple):
    """By which names a framework or a kind of parallelism is known.

    Attributes:
        title: What people call it.
        files: Parts of the paths of Python files, as plain texts: no search is as fast. They reach into the package,
            because users name folders like packages, and start with the slash that precedes it.
        ranges: Pattern of annotations; "" for none, as in the following.
        ops: Pattern of operators.
        kernels: Pattern of kernels.
        groups: Pattern of the descriptions of process groups.
        frames: Pattern of Python frames, for what only a function tells.
    """

    title: str
    files: tuple[str, ...] = ()
    ranges: str = ""
    ops: str = ""
    kernels: str = ""
    groups: str = ""
    frames: str = ""


SCHEDULES_AHEAD = "overlapped scheduling"
"""What a serving engine does that prepares a pass while the GPU works on the one before."""
_TORCHREC_RANGES = (
    r"^## (KJT|all2all_(tw_)?data:|alltoall_(fwd|bwd)_single|RecMetricModule|sparse_data_dist|start_sparse_data_dist|"
    r"wait_sparse_data_dist|PooledEmbeddings|EmbeddingBag)"
)
_TORCHREC_OPS = r"^(All2All|AllToAll|ReduceScatter\w*)_(Pooled_|Seq_)?(Req|Wait)$"
_QUANTIZING_OPS = (
    r"^fbgemm::(FloatToHFP8Quantized|FloatToFP8RowwiseQuantized|FloatToFused8BitRowwiseQuantized|quantize_mx)"
)
_TORCHREC_FILES = ("/torchrec/distributed/", "/torchrec/modules/", "/torchrec/metrics/", "/torchrec/sparse/")
_LIGHTNING_FILES = ("/pytorch_lightning/", "/lightning_fabric/", "/lightning/pytorch/", "/lightning/fabric/")
_TRANSFORMERS = ("models/", "generation/", "modeling_utils.py", "modeling_attn_mask_utils.py", "cache_utils.py")
_ACCELERATE = ("accelerator.py", "optimizer.py", "scheduler.py", "data_loader.py", "hooks.py")
_VLLM = ("v1/", "model_executor/", "engine/", "worker/", "attention/", "forward_context.py")


def _within(package: str, *parts: str) -> tuple[str, ...]:
    """Paths into a package."""
    return tuple(f"/{package}/{part}" for part in parts)


FRAMEWORK_SIGNS = (
    NameSigns("PyTorch", ("/torch/nn/", "/torch/_ops.py", "/torch/utils/"), "", r"^aten::", r"\bat::native::"),
    NameSigns("Lightning", _LIGHTNING_FILES, r"^\[(pl|lightning)\]\["),
    NameSigns("Hugging Face Transformers", _within("transformers", *_TRANSFORMERS)),
    NameSigns("Hugging Face Trainer", ("/transformers/trainer", "/trl/trainer/")),
    NameSigns("Hugging Face pipeline", _within("transformers", "pipelines/")),
    NameSigns("Accelerate", _within("accelerate", *_ACCELERATE)),
    NameSigns("Stable-Baselines3", ("/stable_baselines3/",)),
    NameSigns(
        "DeepSpeed", _within("deepspeed", "runtime/", "ops/", "comm/", "inference/"), r"^DeepSpeed", r"^deepspeed::"
    ),
    NameSigns("Megatron", _within("megatron", "core/", "training/", "legacy/", "model/")),
    NameSigns("torchtitan", _within("torchtitan", "components/", "models/", "distributed/", "train.py")),
    NameSigns("torchtune", _within("torchtune", "modules/", "training/", "models/")),
    NameSigns("torchrec", _TORCHREC_FILES, _TORCHREC_RANGES, _TORCHREC_OPS),
    # TrainPipelineSparseDist and what derives from it issue the exchange of the next batch in these ranges.
    NameSigns("torchrec train pipeline", (), r"^## ((start_|wait_)?sparse_data_dist\b|sdd_)"),
    # The codecs of its exchange that send 8 bits or fewer (QCommsConfig); half precision is a plain cast.
    NameSigns("torchrec 8-bit exchange", (), "", _QUANTIZING_OPS),
    NameSigns(
        "Transformer Engine", _within("transformer_engine", "pytorch/", "common/"), "", "", r"\btransformer_engine::"
    ),
    # Kernels of vLLM run inside SGLang, and those of TensorRT-LLM inside both: they are no sign.
    NameSigns("vLLM", _within("vllm", *_VLLM), r"^execute_(context_\d+\(|new_\d+_cached_)", r"^vllm::"),
    NameSigns("SGLang", ("/sglang/srt/",), r"^step\[(DECODE|EXTEND|PREFILL)\b", r"^(sglang_profiler|sgl_kernel)::"),
    NameSigns("TensorRT-LLM", ("/tensorrt_llm/",), r"^\[Executor\] _forward_step", r"^(trtllm|tensorrt_llm)::"),
    # The loops of the three engines that prepare a pass while the GPU works on the one before.
    NameSigns(SCHEDULES_AHEAD, frames=r"\): (event_loop_overlap\w*|step_with_batch_queue|_executor_loop_overlap\w*)$"),
    NameSigns(
        "TensorRT",
        ("/torch_tensorrt/", "/tensorrt/tensorrt.py"),
        r"^ExecutionContext::(enqueue|execute)|^TensorRT:",
        r"^tensorrt::",
        r"^trt_",
    ),
    NameSigns("Diffusers", _within("diffusers", "models/", "pipelines/", "schedulers/")),
    NameSigns("timm", _within("timm", "models/", "layers/", "data/", "optim/", "scheduler/")),
    NameSigns("Ultralytics", _within("ultralytics", "engine/", "nn/", "models/", "data/")),
    NameSigns("Detectron2", _within("detectron2", "engine/", "modeling/", "layers/")),
    NameSigns("MMEngine", _within("mmengine", "runner/", "model/", "optim/")),
)
"""How frameworks show, the most general first."""
SERVING_ENGINES = frozenset({"vLLM", "SGLang", "TensorRT-LLM", "TensorRT"})
"""The frameworks that only run models forward."""

_FSDP_FILES = _within(
    "torch/distributed", "fsdp/_fully_shard/", "fsdp/_runtime_utils.py", "fsdp/fully_sharded", "_composable/"
)
PARALLELISM_SIGNS = (
    NameSigns("DDP", ("/torch/nn/parallel/distributed.py",), DDP_FORWARD, r"ddp\.reducer::|^_DDPSink"),
    NameSigns(
        "FSDP",
        _FSDP_FILES,
        rf"{FSDP_FORWARD}|^FSDP::|^FullyShardedDataParallel\.",
        r"^fsdp::|^FSDP::|^RegisterPostBackwardFunction",
        "",
        r"(?i)\bfsdp\b|mesh_dp_shard",
    ),
    NameSigns("DataParallel", ("/torch/nn/parallel/data_parallel.py",), DATA_PARALLEL_FORWARD),
    NameSigns("ZeRO", ("/deepspeed/runtime/zero/",)),
    NameSigns("embedding sharding", ("/torchrec/distributed/embedding",), r"^## KJT.*AllToAll|^## all2all_"),
    NameSigns(
        "tensor parallel",
        ("/torch/distributed/tensor/parallel/",),
        "",
        r"^Redistribute$|^vllm::all_reduce$",
        "",
        r"(?i)tensor_(model_)?parallel|mesh_tp\b|^tp(:\d+)?$",
    ),
    NameSigns(
        "sequence parallel",
        (),
        "",
        r"^_?SeqAllToAll|^AllToAll[45]D",
        "",
        r"(?i)sequence_parallel|mesh_sp\b|^sp(:\d+)?$",
    ),
    NameSigns(
        "context parallel",
        ("/xfuser/", "/yunchang/", "/ring_flash_attn/"),
        r"(?i)ulysses|ring_?attention",
        "",
        "",
        r"(?i)context_parallel|mesh_cp\b|^cp(:\d+)?$",
    ),
    NameSigns(
        "expert parallel",
        ("/deep_ep/",),
        r"(?i)deep_?ep\b|expert_?parallel",
        r"^deep_ep::",
        r"\bdeep_ep::",
        r"(?i)expert|mesh_ep\b|^ep(:\d+)?$",
    ),
    NameSigns(
        "pipeline parallel",
        ("/torch/distributed/pipelining/",),
        r"^(nccl|rccl|gloo):(send|recv)",
        "",
        "",
        r"(?i)pipeline|mesh_pp\b|^pp(:\d+)?$",
    ),
)
"""How kinds of parallelism show."""
