"""Advice about data-parallel programs, their wrappers and their ranks: PD401, PD405, PD406, PD408 to PD410."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import ACCELERATE, LIGHTNING, TRAINER, spell
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, TORCHREC, ZERO, rows_of

_HOOKS = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
_NO_SEARCH = (Action("ddp", "find_unused_parameters=False"),)
_LARGER_BUCKETS = (Action("ddp", "bucket_cap_mb=25"),)
_VIEWS = (Action("ddp", "gradient_as_bucket_view=True"),)
_BUFFERS_STAY = (Action("ddp", "broadcast_buffers=False"),)

_RUN_BARE = (
    When(phases=FORWARD),
    "Run the wrapped model itself: a forward pass needs no wrapper.",
    "with torch.inference_mode(): y = model.module(x)",
    pages.DDP,
)
_BUCKET_VIEWS = "Let gradients be views of the buckets: no copies, and the memory of one set of gradients less."
_NO_BROADCAST = (
    "Do not broadcast the buffers (BatchNorm's statistics), if they need not be equal on all ranks in training."
)
_USUAL_BUCKETS = (
    "Leave bucket_cap_mb out, or make it larger: its usual 25 MB reduce the gradients of many layers at once, and each "
    "reduction takes its latency."
)
_ACCUMULATED = "Reduce once an update: "
_HALF_GRADIENTS = "Send the gradients in half precision: "
_LESS_EXACT = "Sums over ranks get less exact: compare the loss over some hundred steps."

WRAPPER_ROWS = (
    *rows_of(
        "DDP searches for unused parameters",
        _RUN_BARE,
        *spell(
            "argument of DDP",
            "Leave the search out if every parameter gets a gradient; if the same ones never do, say "
            "static_graph=True.",
            "find_unused_parameters=False",
            actions=_NO_SEARCH,
        ),
        Row(
            ANY,
            "Leave find_unused_parameters out if every parameter gets a gradient; if the same ones never do, say "
            "static_graph=True.",
            "DistributedDataParallel(model)  # or static_graph=True",
            pages.DDP,
            actions=_NO_SEARCH,
        ),
    ),
    *rows_of(
        "DDP has tiny buckets",
        *spell("argument of DDP", _USUAL_BUCKETS, "bucket_cap_mb=25", actions=_LARGER_BUCKETS),
        Row(
            ANY, _USUAL_BUCKETS, "DistributedDataParallel(model, bucket_cap_mb=25)", pages.DDP, actions=_LARGER_BUCKETS
        ),
    ),
    *rows_of(
        "DDP copies gradients out of its buckets",
        _RUN_BARE,
        *spell("argument of DDP, not of the Trainer", _BUCKET_VIEWS, "gradient_as_bucket_view=True", actions=_VIEWS),
        Row(
            ANY,
            _BUCKET_VIEWS,
            "DistributedDataParallel(model, gradient_as_bucket_view=True)",
            pages.DDP,
            actions=_VIEWS,
        ),
    ),
    *rows_of(
        "DDP broadcasts buffers",
        _RUN_BARE,
        *spell("argument of DDP", _NO_BROADCAST, "broadcast_buffers=False", actions=_BUFFERS_STAY),
        (
            When(torch_from="2.13"),
            _NO_BROADCAST,
            "DistributedDataParallel(model, forward_sync_buffers=False)",
            pages.DDP_BUFFERS,
        ),
        Row(
            When(torch_before="2.13"),
            _NO_BROADCAST,
            "DistributedDataParallel(model, broadcast_buffers=False)",
            pages.DDP,
            actions=_BUFFERS_STAY,
        ),
        Row(
            ANY,
            _NO_BROADCAST,
            "DistributedDataParallel(model, broadcast_buffers=False)   # from PyTorch 2.13: forward_sync_buffers=False",
            pages.DDP_BUFFERS,
            actions=_BUFFERS_STAY,
        ),
    ),
    *rows_of(
        "gradients reduced in every micro-batch",
        (
            TRAINER,
            f"{_ACCUMULATED}let the Trainer accumulate the gradients.",
            "TrainingArguments(..., gradient_accumulation_steps=...)",
            pages.TRAINER,
        ),
        (
            LIGHTNING,
            f"{_ACCUMULATED}let the Trainer accumulate the gradients.",
            "Trainer(accumulate_grad_batches=...)",
            pages.LIGHTNING,
        ),
        (
            ACCELERATE,
            f"{_ACCUMULATED}let Accelerate skip the reduction of all micro-batches but the last.",
            "accelerator = Accelerator(gradient_accumulation_steps=...); with accelerator.accumulate(model): ...",
            "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
        ),
        (
            When(uses=ZERO),
            f"{_ACCUMULATED}tell the engine how many micro-batches an update has; it reduces at the last.",
            '"gradient_accumulation_steps": N',
            pages.DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            f"{_ACCUMULATED}leave the reduction out in all micro-batches but the last, where memory allows.",
            "model.set_requires_gradient_sync(is_last_micro_batch)   # FSDP1: with model.no_sync(): ...",
            pages.FSDP2,
        ),
        Row(
            ANY,
            f"{_ACCUMULATED}run all micro-batches but the last under no_sync(), forward pass included.",
            "with model.no_sync() if i < accumulation - 1 else nullcontext(): loss = model(x); loss.backward()",
            pages.DDP,
            actions=(Action("no-sync"),),
        ),
    ),
    *rows_of(
        "gradients reduced in float32",
        (
            When(uses=("Megatron",)),
            f"{_HALF_GRADIENTS}let Megatron reduce in bfloat16. {_LESS_EXACT}",
            "--grad-reduce-in-bf16   # and no --accumulate-allreduce-grads-in-fp32",
            "https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/core/distributed.html",
        ),
        (
            When(uses=ZERO),
            f"{_HALF_GRADIENTS}tell DeepSpeed the type. {_LESS_EXACT}",
            '"communication_data_type": "bf16"',
            pages.DEEPSPEED,
        ),
        (
            When(uses=("FSDP",)),
            f"{_HALF_GRADIENTS}leave reduce_dtype out, or set it. {_LESS_EXACT}",
            "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)\n"
            "fully_shard(block, mp_policy=policy)   # FSDP1: MixedPrecision(...) with the same types",
            pages.FSDP2,
        ),
        (
            When(uses=("Lightning",), lacks_bfloat16=True),
            f"{_HALF_GRADIENTS}give the strategy a hook. {_LESS_EXACT}",
            "Trainer(strategy=DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook))",
            pages.LIGHTNING_DDP,
        ),
        Row(
            LIGHTNING,
            f"{_HALF_GRADIENTS}give the strategy a hook. {_LESS_EXACT}",
            "Trainer(strategy=DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook))",
            pages.LIGHTNING_DDP,
            since="PyTorch 1.11",
        ),
        (
            TRAINER,
            f"{_HALF_GRADIENTS}the Trainer has no argument for it, so a subclass has to give its Accelerator "
            f"DistributedDataParallelKwargs with a hook. {_LESS_EXACT}",
            None,
            pages.ACCELERATE,
        ),
        (
            ACCELERATE,
            f"{_HALF_GRADIENTS}give the Accelerator a hook. {_LESS_EXACT}",
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)])",
            pages.ACCELERATE,
        ),
        (
            When(uses=("DDP",), lacks_bfloat16=True),
            f"{_HALF_GRADIENTS}register a hook. {_LESS_EXACT}",
            "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"
            "   # torch.distributed.algorithms.ddp_comm_hooks",
            _HOOKS,
        ),
        Row(
            When(uses=("DDP",)),
            f"{_HALF_GRADIENTS}register a hook. {_LESS_EXACT}",
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
            "   # torch.distributed.algorithms.ddp_comm_hooks",
            _HOOKS,
            since="PyTorch 1.11",
        ),
        (
            ANY,
            f"{_HALF_GRADIENTS}cast each bucket before its all-reduce, and back after it. {_LESS_EXACT}",
            None,
            _HOOKS,
        ),
    ),
)

RANK_ROWS = (
    *rows_of(
        "ranks take turns at coming last",
        (
            When(uses=TORCHREC),
            "Look at the sharding plan first (tables whose rows some batches use more), then for what varies from step "
            "to step: garbage collection, CPUs shared with other programs.",
            None,
            pages.TORCHREC,
        ),
        (
            When(uses=ENGINES),
            "Look for what varies from step to step: the requests that each rank serves, CPUs shared with other "
            "programs; pin the processes.",
            None,
            pages.VLLM_TUNING,
        ),
        (
            ANY,
            "Look for what varies from step to step: lengths of inputs, garbage collection, CPUs shared with other "
            "programs; balance the inputs, collect garbage at fixed steps, pin the processes.",
            None,
            pages.TUNING_GUIDE,
        ),
    ),
    *rows_of(
        "uneven work",
        (
            When(uses=TORCHREC),
            "Look at the sharding plan: what a rank computes depends on the tables that it has, and on how often their "
            "rows are used.",
            None,
            pages.TORCHREC,
        ),
        (
            When(uses=("pipeline parallel",)),
            "Cut the model so that its stages take equally long: the first and the last have embeddings and the loss "
            "besides their layers.",
            None,
            pages.PIPELINING,
        ),
        (
            When(uses=("expert parallel",)),
            "Balance the experts: a loss that spreads tokens, a capacity for each expert, or copies of the busiest.",
            None,
            "https://github.com/deepseek-ai/EPLB",
        ),
        (
            When(uses=ENGINES),
            "Give the ranks requests of equal length, or let a router balance them.",
            None,
            pages.VLLM_TUNING,
        ),
        (
            ANY,
            "Deal the same amount of work to each rank: batch inputs of similar length, pack or pad them.",
            None,
            pages.TUNING_GUIDE,
        ),
    ),
)
