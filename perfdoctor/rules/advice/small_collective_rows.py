"""Advice about many collectives of little data, by their kind and by what uses them: PD404."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import TRAINER, TRAINER_PAGE, spell
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, TENSOR_PARALLEL, TORCHREC, ZERO, rows_of

_LARGER_BUCKETS = (Action("ddp", "bucket_cap_mb=25"),)
_BUFFERS_STAY = (Action("ddp", "broadcast_buffers=False"),)
_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_DDP_NOTES = "https://docs.pytorch.org/docs/stable/notes/ddp.html"
_FSDP2 = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_DISTRIBUTED = "https://docs.pytorch.org/docs/stable/distributed.html"
_DEEPSPEED = "https://www.deepspeed.ai/docs/config-json/"
_VLLM = "https://docs.vllm.ai/en/v0.10.2/configuration/engine_args.html"
_FLAT = "flat = torch.cat([t.reshape(-1) for t in tensors]); dist.{collective}(flat)"
_NO_BROADCASTS = (
    "Do without the broadcasts if they are of the model's buffers, or reduce the buffers to one; else broadcast one "
    "flat tensor."
)
_FEWER_RANKS = (
    When(uses=(*ENGINES, *TENSOR_PARALLEL)),
    "Use fewer ranks for a layer: each layer waits for its own collective, so they cannot be put together.",
    None,
    _VLLM,
)
_SENT_TOGETHER = (ANY, "Send small tensors together, as one flat tensor, or less often.", _FLAT, _DISTRIBUTED)

SMALL_ROWS = (
    *rows_of(
        "small all_reduce",
        _FEWER_RANKS,
        (
            When(uses=("Megatron",)),
            "Make Megatron's gradient buckets larger, so that gradients are sent together.",
            "--overlap-grad-reduce --ddp-bucket-size 100000000",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        ),
        (
            When(uses=ZERO),
            "Make DeepSpeed's buckets larger, so that gradients are sent together.",
            '"zero_optimization": {"reduce_bucket_size": 5e8, "contiguous_gradients": true}',
            _DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            "Shard larger groups of layers, so that each reduction moves more; sum metrics as one tensor.",
            "for block in model.blocks: fully_shard(block)   # not each layer",
            _FSDP2,
        ),
        (
            When(uses=TORCHREC),
            "Sum losses and metrics of a step as one tensor, and every N steps.",
            _FLAT,
            _DISTRIBUTED,
        ),
        (
            When(phases=FORWARD),
            "Combine results and metrics of the ranks as one tensor, once at the end.",
            _FLAT,
            _DISTRIBUTED,
        ),
        *spell(
            "argument of DDP",
            "Send gradients in buckets of the usual size, and metrics less often.",
            "bucket_cap_mb=25",
            actions=_LARGER_BUCKETS,
            lightning="Send gradients in buckets of the usual size, and metrics less often (sync_dist only where it is "
            "read).",
        ),
        Row(
            When(uses=("DDP",)),
            "Send gradients in buckets of the usual size, and losses and metrics as one tensor, every N steps.",
            "DistributedDataParallel(model, bucket_cap_mb=25)",
            _DDP,
            actions=_LARGER_BUCKETS,
        ),
        (
            When(uses=("data parallel",)),
            "Use DistributedDataParallel, which sends gradients in buckets while the backward pass runs, or reduce "
            "one flat tensor: gradients are reduced by hand, one by one.",
            "model = DistributedDataParallel(model, device_ids=[local_rank])   # and no all_reduce of gradients",
            _DDP_NOTES,
        ),
        _SENT_TOGETHER,
    ),
    *rows_of(
        "small all_gather or reduce_scatter",
        _FEWER_RANKS,
        (
            When(uses=("Megatron",)),
            "Make Megatron's buckets larger, so that parameters are sent together.",
            "--overlap-param-gather --ddp-bucket-size 100000000",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
        ),
        (
            When(uses=ZERO),
            "Keep small parameters whole, and fetch the others in larger pieces (stage 3).",
            '"stage3_param_persistence_threshold": 1e6, "stage3_prefetch_bucket_size": 5e7',
            _DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            "Shard whole blocks instead of single layers, so that each collective moves more.",
            "for block in model.blocks: fully_shard(block)   # not each layer",
            _FSDP2,
        ),
        _SENT_TOGETHER,
    ),
    *rows_of(
        "small broadcast",
        Row(
            TRAINER,
            _NO_BROADCASTS,
            "TrainingArguments(..., ddp_broadcast_buffers=False)",
            TRAINER_PAGE,
            actions=_BUFFERS_STAY,
        ),
        (
            When(phases=FORWARD),
            "Broadcast one flat tensor instead of many; a forward pass needs no wrapper that broadcasts buffers.",
            None,
            _DDP_NOTES,
        ),
        (
            When(uses=("DDP",), torch_from="2.13"),
            _NO_BROADCASTS,
            "DistributedDataParallel(model, forward_sync_buffers=False)",
            "https://github.com/pytorch/pytorch/pull/178054",
        ),
        Row(
            When(uses=("DDP",)),
            _NO_BROADCASTS,
            "DistributedDataParallel(model, broadcast_buffers=False)   # from PyTorch 2.13: forward_sync_buffers=False",
            _DDP,
            actions=_BUFFERS_STAY,
        ),
        _SENT_TOGETHER,
    ),
)
"""What to do about many collectives of little data."""
