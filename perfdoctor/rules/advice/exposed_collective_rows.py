"""Advice about collectives that nothing hides, by their kind and by what uses them: PD402."""

from __future__ import annotations

from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import (
    ANY,
    ENGINES,
    FORWARD,
    TENSOR_PARALLEL,
    TORCHREC,
    TORCHREC_PIPELINE,
    TORCHREC_QUANTIZED,
    ZERO,
    any_program,
    rows_of,
)

_PLANNER = "https://docs.pytorch.org/torchrec/planner-api-reference.html"
_QCOMMS = "https://github.com/pytorch/torchrec/blob/main/torchrec/distributed/fbgemm_qcomm_codec.py"
_MEGATRON = "https://docs.nvidia.com/nemo/megatron-bridge/0.4.0/training/communication-overlap.html"
_MEGATRON_MOE = (
    "https://docs.nvidia.com/nemo/megatron-bridge/nightly/skills/nemo-mbridge-perf-expert-parallel-overlap/SKILL.html"
)
_ULYSSES = "https://github.com/deepspeedai/DeepSpeed/blob/master/blogs/deepspeed-ulysses/README.md"
_VLLM_EXPERTS = "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/"
_SGLANG_EXPERTS = "https://docs.sglang.io/advanced_features/expert_parallelism.html"
_TENSOR_PARALLEL = "https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html"
_ASYNC_TP = "https://github.com/pytorch/torchtitan/pull/2011"
_OVERLAP_DEEPSPEED = (
    '"zero_optimization": {"overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": 5e8}'
)
_PREFETCH = (
    "block.set_modules_to_forward_prefetch([next_block])       # FSDP1: forward_prefetch=True\n"
    "block.set_modules_to_backward_prefetch([previous_block])"
)

EXPOSED_ROWS = (
    *rows_of(
        "exposed all_reduce",
        (
            When(uses=("vLLM",)),
            "See that the engine's own all-reduce is not disabled, use fewer tensor-parallel ranks, and more "
            "replicas of a model that fits on fewer GPUs: each layer waits for its all-reduce.",
            "vllm serve ... --tensor-parallel-size N   # without --disable-custom-all-reduce",
            pages.VLLM,
        ),
        (
            When(uses=("SGLang",)),
            "See that the engine's own all-reduce is not disabled, use fewer tensor-parallel ranks, and more "
            "replicas of a model that fits on fewer GPUs: each layer waits for its all-reduce.",
            "python -m sglang.launch_server ... --tp-size N   # without --disable-custom-all-reduce",
            pages.SGLANG,
        ),
        (
            When(uses=ENGINES),
            "Use fewer tensor-parallel ranks, and more replicas of a model that fits on fewer GPUs: each layer waits "
            "for its all-reduce.",
            None,
            "https://nvidia.github.io/TensorRT-LLM/",
        ),
        (
            When(uses=("Megatron",)),
            "Let Megatron overlap the gradients with the backward pass, and the products of tensor-parallel layers "
            "with their communication (that needs sequence parallelism and Transformer Engine).",
            "--overlap-grad-reduce --tp-comm-overlap --sequence-parallel",
            _MEGATRON,
        ),
        (
            When(uses=ZERO),
            "Let DeepSpeed overlap the reduction with the backward pass, in larger buckets.",
            _OVERLAP_DEEPSPEED,
            pages.DEEPSPEED,
        ),
        (
            When(uses=TENSOR_PARALLEL),
            "Use fewer ranks for a layer, over the fastest links: each layer of a tensor-parallel model waits for "
            "its all-reduce. The collectives of sequence parallelism can hide under the products, by asynchronous "
            "tensor parallelism (torch.compile and NVLink needed).",
            None,
            _ASYNC_TP,
        ),
        (
            When(uses=("FSDP",)),
            "Shard larger groups of layers, and reduce once an update where gradients are accumulated: FSDP reduces "
            "over its replicas after it has reduced over its shards.",
            "model.set_requires_gradient_sync(is_last_micro_batch)   # FSDP1: model.no_sync()",
            pages.FSDP2,
        ),
        (
            When(uses=TORCHREC),
            "Send the layers that are not sharded in half precision: the wrapper of DistributedModelParallel reduces "
            "them.",
            'data_parallel_wrapper=DefaultDataParallelWrapper(allreduce_comm_precision="bf16")',
            "https://github.com/pytorch/torchrec/blob/main/torchrec/distributed/model_parallel.py",
        ),
        (
            When(phases=FORWARD, uses=("DDP",)),
            "Run the wrapped model itself, and combine results of the ranks at the end: a forward pass needs no "
            "wrapper.",
            "with torch.inference_mode(): y = model.module(x)",
            pages.DDP_NOTES,
        ),
        (
            When(phases=FORWARD),
            "Use fewer ranks for one input, or combine results (metrics) once at the end: the result is needed at "
            "once, so nothing hides the all-reduce.",
            None,
            pages.DISTRIBUTED,
        ),
        (
            When(uses=("Hugging Face Trainer",)),
            "Overlap the all-reduce with the backward pass, or send less: other bucket sizes, or gradient "
            "accumulation, which reduces once an update.",
            "TrainingArguments(..., ddp_bucket_cap_mb=..., gradient_accumulation_steps=...)",
            pages.TRAINER,
        ),
        (
            When(uses=("Lightning",)),
            "Overlap the all-reduce with the backward pass, or send less: other bucket sizes, or accumulated "
            "gradients, which are reduced once an update.",
            "Trainer(strategy=DDPStrategy(bucket_cap_mb=..., gradient_as_bucket_view=True, static_graph=True))",
            pages.LIGHTNING_DDP,
        ),
        (
            When(uses=("Accelerate",)),
            "Overlap the all-reduce with the backward pass, or send less: other bucket sizes, or accumulated "
            "gradients, which are reduced once an update.",
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=..., static_graph=True)])",
            pages.ACCELERATE,
        ),
        (
            When(uses=("DDP",)),
            "Overlap the all-reduce with the backward pass, or send less: other bucket sizes, no_sync() in all "
            "micro-batches but the last, gradients compressed to bfloat16.",
            "DistributedDataParallel(model, bucket_cap_mb=..., gradient_as_bucket_view=True, static_graph=True)",
            pages.DDP,
        ),
        (
            When(uses=("data parallel",)),
            "Use DistributedDataParallel, which reduces gradients in buckets while the backward pass runs: here they "
            "are reduced by hand, after it.",
            "model = DistributedDataParallel(model, device_ids=[local_rank])   # and no all_reduce of gradients",
            pages.DDP_NOTES,
        ),
        (
            ANY,
            "Start the collective as soon as its input is there, and wait for it where its result is needed; or "
            "reduce less often.",
            "work = dist.all_reduce(x, async_op=True); ...; work.wait()",
            pages.DISTRIBUTED,
        ),
    ),
    any_program(
        "exposed all_reduce of a small model on CPUs",
        "Reduce less often, if it is much: larger batches, or several micro-batches an update. Nothing can hide "
        "it: less than a megabyte of gradients is sent at once, when all of it is there.",
        None,
        pages.DDP_NOTES,
    ),
    any_program(
        "exposed all_reduce without a spare core",
        "Reduce less often, if it is much: larger batches, or several micro-batches an update. Nothing can hide it "
        "here: the ranks compute on all cores, and gloo reduces on the same ones.",
        None,
        pages.DDP_NOTES,
    ),
    *rows_of(
        "exposed all_to_all",
        (
            When(uses=("vLLM",)),
            "Choose a backend for the exchange of tokens that is made for these links, or use fewer ranks for the "
            "experts: tokens travel to their experts and back in each layer.",
            "vllm serve ... --enable-expert-parallel --all2all-backend deepep_low_latency",
            _VLLM_EXPERTS,
        ),
        (
            When(uses=("SGLang",)),
            "Choose a backend for the exchange of tokens that is made for these links, or use fewer ranks for the "
            "experts: tokens travel to their experts and back in each layer.",
            "python -m sglang.launch_server ... --moe-a2a-backend deepep",
            _SGLANG_EXPERTS,
        ),
        (
            When(phases=("training",), uses=TORCHREC_QUANTIZED, lacks=TORCHREC_PIPELINE),
            "Use TrainPipelineSparseDist, which exchanges the indices of the next batch while this one trains. A plan "
            "with fewer row-wise tables sends less; the lookups travel in 8 bits already.",
            "pipeline = TrainPipelineSparseDist(model, optimizer, device)",
            pages.TORCHREC,
        ),
        (
            When(uses=TORCHREC_QUANTIZED),
            "Let the planner of the sharding choose fewer row-wise tables, which sends less: the lookups travel in 8 "
            "bits already.",
            None,
            _PLANNER,
        ),
        (
            When(phases=("training",), uses=TORCHREC_PIPELINE),
            "Send the lookups of the sharded embeddings in half precision, and place the tables by a sharding plan "
            "that sends less (fewer row-wise tables).",
            "QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)   # to the sharders",
            _QCOMMS,
        ),
        (
            When(phases=("training",), uses=TORCHREC),
            "Use TrainPipelineSparseDist, which exchanges the indices of the next batch while this one trains. Half "
            "precision halves what is sent; a plan with fewer row-wise tables sends less.",
            "pipeline = TrainPipelineSparseDist(model, optimizer, device)\n"
            "QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)   # to the sharders",
            pages.TORCHREC,
        ),
        (
            When(uses=TORCHREC),
            "Send the lookups of the sharded embeddings in half precision, and place the tables by a sharding plan "
            "that sends less (fewer row-wise tables).",
            "QCommsConfig(forward_precision=CommType.FP16)   # to the sharders",
            _QCOMMS,
        ),
        (
            When(uses=("Megatron",)),
            "Let Megatron overlap the exchange of tokens with the experts of another micro-batch, or use a "
            "dispatcher made for it (DeepEP, HybridEP).",
            "--overlap-moe-expert-parallel-comm",
            _MEGATRON_MOE,
        ),
        (
            When(uses=("expert parallel",)),
            "Send tokens in half precision or fp8, overlap one micro-batch's exchange with another's experts, and "
            "keep a group of experts inside one machine.",
            None,
            "https://github.com/deepseek-ai/DeepEP",
        ),
        (
            When(uses=("sequence parallel", "context parallel")),
            "Send queries, keys and values in one exchange, overlap one group of heads with the attention of "
            "another, or use fewer ranks for a sequence: each attention layer exchanges sequence for heads and waits "
            "for it.",
            None,
            _ULYSSES,
        ),
        (
            ANY,
            "Send less (half precision, several tensors in one exchange), keep the group inside one machine, or start "
            "the exchange early and wait for it where its result is needed.",
            "work = dist.all_to_all_single(output, input, async_op=True); ...; work.wait()",
            pages.DISTRIBUTED,
        ),
    ),
    *rows_of(
        "exposed all_gather or reduce_scatter",
        (
            When(uses=ENGINES),
            "Use fewer ranks for a layer, and more replicas of a model that fits on fewer GPUs: each layer waits for "
            "its collectives.",
            None,
            pages.VLLM,
        ),
        (
            When(uses=("Megatron",)),
            "Let Megatron overlap parameters with the forward pass, gradients with the backward pass, and "
            "tensor-parallel layers with their products.",
            "--overlap-param-gather --overlap-grad-reduce --tp-comm-overlap",
            _MEGATRON,
        ),
        (
            When(uses=ZERO),
            "Let DeepSpeed overlap its collectives, and fetch parameters earlier in larger pieces (stage 3).",
            f'{_OVERLAP_DEEPSPEED}\n"stage3_prefetch_bucket_size": 5e7, "allgather_bucket_size": 5e8',
            pages.DEEPSPEED,
        ),
        Row(
            When(phases=FORWARD, uses=("FSDP",)),
            "Fetch the parameters of the next layer while this one computes, or do not shard a model that fits on "
            "one GPU: each layer waits until its parameters are gathered.",
            "block.set_modules_to_forward_prefetch([next_block])   # FSDP1: forward_prefetch=True",
            pages.FSDP2,
            since="PyTorch 2.5",
        ),
        Row(
            When(uses=("FSDP",)),
            "Fetch the parameters of the next layers while this one computes, shard larger groups of layers, or shard "
            "inside a machine and replicate over machines.",
            _PREFETCH,
            pages.FSDP2,
            since="PyTorch 2.5",
        ),
        (
            When(uses=TORCHREC_QUANTIZED),
            "Let the planner shard row-wise tables by column or by table where they fit: their lookups travel in 8 "
            "bits already.",
            None,
            _PLANNER,
        ),
        (
            When(uses=TORCHREC),
            "Send the lookups of row-wise sharded tables in half precision, and let the planner shard them by column "
            "or by table where they fit.",
            "QCommsConfig(forward_precision=CommType.FP16)   # to the sharders",
            _QCOMMS,
        ),
        (
            When(uses=TENSOR_PARALLEL),
            "Use fewer ranks for a layer, or hide the collectives under the products by asynchronous tensor "
            "parallelism (torch.compile and NVLink needed): each layer of a tensor-parallel model waits for them.",
            None,
            _ASYNC_TP,
        ),
        (
            ANY,
            "Start the collective as soon as its input is there, and wait for it where its result is needed.",
            "work = dist.all_gather_into_tensor(output, x, async_op=True); ...; work.wait()",
            pages.DISTRIBUTED,
        ),
    ),
    any_program(
        "exposed all_gather of logits",
        "Keep the logits sharded over the ranks, and gather only what is read: those of the last token, or the "
        "best few of each rank. The last collective takes far longer than the others, which fits the logits of a "
        "whole vocabulary.",
        "logits = self.output(h[:, -1:])   # or ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)",
        _TENSOR_PARALLEL,
    ),
    *rows_of(
        "exposed send_recv",
        (
            When(uses=ENGINES),
            "Use fewer pipeline stages, or more requests at a time: stages of the pipeline wait for each other.",
            None,
            pages.VLLM,
        ),
        (
            When(uses=("Megatron",)),
            "Use more micro-batches in a step, and interleaved stages: stages of the pipeline wait for each other.",
            "--num-layers-per-virtual-pipeline-stage N",
            "https://github.com/NVIDIA/Megatron-LM/blob/main/README.md",
        ),
        (
            When(uses=("context parallel",)),
            "Overlap each exchange of keys and values with the attention of the block before it, or use fewer ranks "
            "for a sequence.",
            None,
            _MEGATRON,
        ),
        Row(
            When(uses=("pipeline parallel",)),
            "Use more micro-batches in a step, stages that take equally long, and an interleaved schedule: stages of "
            "the pipeline wait for each other.",
            "schedule = ScheduleInterleaved1F1B(stages, n_microbatches=...)",
            pages.PIPELINING,
            since="PyTorch 2.4",
        ),
        (
            ANY,
            "Post sends and receives together and early, and wait for them where the data is needed.",
            "works = dist.batch_isend_irecv(operations); ...; [work.wait() for work in works]",
            pages.DISTRIBUTED,
        ),
    ),
    any_program(
        "exposed collectives",
        "Start collectives as soon as their input is there, and wait for them where their result is needed; or "
        "do them less often.",
        None,
        pages.DISTRIBUTED,
    ),
)
