"""Advice about many collectives of little data, by their kind and by what uses them: PD404."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import TRAINER, spell
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, TENSOR_PARALLEL, TORCHREC, ZERO, rows_of

_LARGER_BUCKETS = (Action("ddp", "bucket_cap_mb=25"),)
_BUFFERS_STAY = (Action("ddp", "broadcast_buffers=False"),)
_FLAT = "flat = torch.cat([t.reshape(-1) for t in tensors]); dist.{collective}(flat)"
_NO_BROADCASTS = (
    "Do without the broadcasts if they are of the model's buffers, or reduce the buffers to one; else broadcast one "
    "flat tensor."
)
_FEWER_RANKS = (
    When(uses=(*ENGINES, *TENSOR_PARALLEL)),
    "Use fewer ranks for a layer: each layer waits for its own collective, so they cannot be put together.",
    None,
    pages.VLLM,
)
_SENT_TOGETHER = (ANY, "Send small tensors together, as one flat tensor, or less often.", _FLAT, pages.DISTRIBUTED)

SMALL_ROWS = (
    *rows_of(
        "small all_reduce",
        _FEWER_RANKS,
        (
            When(uses=("Megatron",)),
            "Make Megatron's gradient buckets larger, so that gradients are sent together.",
            "--overlap-grad-reduce --ddp-bucket-size 100000000",
            pages.MEGATRON,
        ),
        (
            When(uses=ZERO),
            "Make DeepSpeed's buckets larger, so that gradients are sent together.",
            '"zero_optimization": {"reduce_bucket_size": 5e8, "contiguous_gradients": true}',
            pages.DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            "Shard larger groups of layers, so that each reduction moves more; sum metrics as one tensor.",
            "for block in model.blocks: fully_shard(block)   # not each layer",
            pages.FSDP2,
        ),
        (
            When(uses=TORCHREC),
            "Sum losses and metrics of a step as one tensor, and every N steps.",
            _FLAT,
            pages.DISTRIBUTED,
        ),
        (
            When(phases=FORWARD),
            "Combine results and metrics of the ranks as one tensor, once at the end.",
            _FLAT,
            pages.DISTRIBUTED,
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
            pages.DDP,
            actions=_LARGER_BUCKETS,
        ),
        (
            When(uses=("data parallel",)),
            "Use DistributedDataParallel, which sends gradients in buckets while the backward pass runs, or reduce "
            "one flat tensor: gradients are reduced by hand, one by one.",
            "model = DistributedDataParallel(model, device_ids=[local_rank])   # and no all_reduce of gradients",
            pages.DDP_NOTES,
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
            pages.MEGATRON,
        ),
        (
            When(uses=ZERO),
            "Keep small parameters whole, and fetch the others in larger pieces (stage 3).",
            '"stage3_param_persistence_threshold": 1e6, "stage3_prefetch_bucket_size": 5e7',
            pages.DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            "Shard whole blocks instead of single layers, so that each collective moves more.",
            "for block in model.blocks: fully_shard(block)   # not each layer",
            pages.FSDP2,
        ),
        _SENT_TOGETHER,
    ),
    *rows_of(
        "small broadcast",
        Row(
            TRAINER,
            _NO_BROADCASTS,
            "TrainingArguments(..., ddp_broadcast_buffers=False)",
            pages.TRAINER,
            actions=_BUFFERS_STAY,
        ),
        (
            When(phases=FORWARD),
            "Broadcast one flat tensor instead of many; a forward pass needs no wrapper that broadcasts buffers.",
            None,
            pages.DDP_NOTES,
        ),
        (
            When(uses=("DDP",), torch_from="2.13"),
            _NO_BROADCASTS,
            "DistributedDataParallel(model, forward_sync_buffers=False)",
            pages.DDP_BUFFERS,
        ),
        Row(
            When(uses=("DDP",)),
            _NO_BROADCASTS,
            "DistributedDataParallel(model, broadcast_buffers=False)   # from PyTorch 2.13: forward_sync_buffers=False",
            pages.DDP,
            actions=_BUFFERS_STAY,
        ),
        _SENT_TOGETHER,
    ),
)
