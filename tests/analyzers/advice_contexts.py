"""Programs as data: what their context is, and which words must not be in an advice to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT, Context

DDP_SETTINGS = (
    r"DistributedDataParallel\(|DDPStrategy|bucket_cap_mb|gradient_as_bucket_view|broadcast_buffers|no_sync\(\) in"
)
TRAINING_WORDS = r"(?i)GradScaler|zero_grad|optimizer|backward pass|\btrain(ing)?\b|running_loss|\bloss\b|accumulat"
WRAPPED_COMPILE = r"model = torch\.compile|torch\.compile\(model|reduce-overhead|make_graphed_callables"
LOADER_WORDS = r"DataLoader|num_workers"

INFERENCE = replace(UNKNOWN_CONTEXT, phase="inference", frameworks=("PyTorch",))
TRAINING = replace(UNKNOWN_CONTEXT, phase="training", frameworks=("PyTorch",))
VLLM = replace(INFERENCE, frameworks=("PyTorch", "vLLM"))
PROGRAMS: Mapping[str, tuple[Context, str]] = {
    "inference": (INFERENCE, f"{TRAINING_WORDS}|{DDP_SETTINGS}"),
    "evaluation": (replace(INFERENCE, phase="evaluation"), f"{TRAINING_WORDS}|{DDP_SETTINGS}"),
    "training without DDP": (TRAINING, DDP_SETTINGS),
    "FSDP": (replace(TRAINING, parallelism=("FSDP",)), DDP_SETTINGS),
    "DeepSpeed": (replace(TRAINING, frameworks=("PyTorch", "DeepSpeed"), parallelism=("ZeRO",)), DDP_SETTINGS),
    "Megatron": (replace(TRAINING, frameworks=("PyTorch", "Megatron"), parallelism=("tensor parallel",)), DDP_SETTINGS),
    "torchrec": (
        replace(TRAINING, frameworks=("PyTorch", "torchrec"), parallelism=("embedding sharding",)),
        DDP_SETTINGS,
    ),
    "tensor parallel": (replace(INFERENCE, parallelism=("tensor parallel",)), f"{TRAINING_WORDS}|{DDP_SETTINGS}"),
    "vLLM": (VLLM, f"{TRAINING_WORDS}|{DDP_SETTINGS}|{WRAPPED_COMPILE}|{LOADER_WORDS}"),
    "SGLang": (
        replace(VLLM, frameworks=("PyTorch", "SGLang")),
        f"{TRAINING_WORDS}|{DDP_SETTINGS}|{WRAPPED_COMPILE}|{LOADER_WORDS}",
    ),
    "TensorRT": (
        replace(VLLM, frameworks=("PyTorch", "TensorRT")),
        f"{TRAINING_WORDS}|{DDP_SETTINGS}|{WRAPPED_COMPILE}|{LOADER_WORDS}",
    ),
    "compiled": (replace(TRAINING, compiled_share=0.9), r"model = torch\.compile\(model\)$|compile the model"),
    "hardly compiled": (replace(TRAINING, compiled_share=1 / 768), r"compiled already|is compiled"),
    "device before Volta": (replace(TRAINING, lacks_triton=True), r"torch\.compile\((?![^)]*cudagraphs)"),
    "device before Ampere": (replace(TRAINING, lacks_bfloat16=True), r"(?i)in bfloat16 with|bfloat16, which"),
    "torchrec in its pipeline": (
        replace(TRAINING, frameworks=("PyTorch", "torchrec", "torchrec train pipeline")),
        rf"TrainPipelineSparseDist|{DDP_SETTINGS}",
    ),
    "torchrec in 8 bits": (
        replace(TRAINING, frameworks=("PyTorch", "torchrec", "torchrec 8-bit exchange")),
        rf"CommType|{DDP_SETTINGS}",
    ),
    "torchrec, forward": (
        replace(INFERENCE, frameworks=("PyTorch", "torchrec"), parallelism=("embedding sharding",)),
        rf"{TRAINING_WORDS}|TrainPipeline|{DDP_SETTINGS}",
    ),
    "graphs": (replace(INFERENCE, graph_share=0.95), r"reduce-overhead|make_graphed|(?<!the )CUDA graphs"),
    "Hugging Face pipeline": (
        replace(INFERENCE, frameworks=("PyTorch", "Hugging Face pipeline")),
        f"{TRAINING_WORDS}|{DDP_SETTINGS}",
    ),
    "Hugging Face Trainer": (
        replace(TRAINING, frameworks=("PyTorch", "Hugging Face Trainer"), parallelism=("DDP",)),
        r"DistributedDataParallel\(|model\.no_sync|(?<!_)DataLoader\(",
    ),
    # The library makes the optimizer.
    "Stable-Baselines3": (
        replace(TRAINING, frameworks=("PyTorch", "Stable-Baselines3")),
        r"torch\.optim\.(Adam|\{optimizer\})\w*\(\.\.\., fused",
    ),
}
"""By a name for it: a program, and a pattern of what must not be in an advice to it."""
