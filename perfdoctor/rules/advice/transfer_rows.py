"""Advice about copies in whose time nothing computes (PD109), and about models left on the CPU (PD116)."""

from __future__ import annotations

from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import (
    ANY,
    ENGINES,
    MAIN_SHARE,
    TOO_OLD_TO_COMPILE,
    TORCHREC_UNPIPELINED,
    ZERO,
    any_program,
    rows_of,
)

_OVERLAP = "https://developer.nvidia.com/blog/how-overlap-data-transfers-cuda-cc/"
_DIFFUSERS = "https://huggingface.co/docs/diffusers/en/optimization/memory"
_VLLM_OFFLOAD = "https://docs.vllm.ai/en/v0.7.2/getting_started/examples/cpu_offload.html"
_BIG_MODELS = "https://huggingface.co/docs/accelerate/usage_guides/big_modeling"
_FOREACH_COPY = "https://github.com/pytorch/pytorch/pull/107226"

_CUDA = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
_ACCELERATE = "https://huggingface.co/docs/accelerate/en/basic_tutorials/migration"
_PIPELINE = "https://huggingface.co/docs/transformers/en/main_classes/pipelines"

_MOVE = (
    "Move the model to the GPU once, right after it is made, and each batch with it: PyTorch makes models and "
    "tensors on the CPU unless a device is named. Where torch.cuda.is_available() is False, this PyTorch is built "
    "without the GPU, or finds no driver."
)
_LESS = "Keep in the GPU's memory as much as fits, and store the rest in fewer bits (8 or 4)."
_PREFETCH_WEIGHTS = (
    'with torch.cuda.stream(side): w = pinned.to("cuda", non_blocking=True)   # while a layer before it computes\n'
    "torch.cuda.current_stream().wait_stream(side); w.record_stream(torch.cuda.current_stream())"
)
_PREFETCH_BATCH = (
    'with torch.cuda.stream(side): batch = pinned.to("cuda", non_blocking=True)   # while the step before it computes\n'
    "torch.cuda.current_stream().wait_stream(side); batch.record_stream(torch.cuda.current_stream())"
)
_COPY_BACK = (
    "side.wait_stream(torch.cuda.current_stream()); result.record_stream(side)\n"
    "with torch.cuda.stream(side): pinned_buffer.copy_(result, non_blocking=True)"
)

TRANSFER_ROWS = (
    *rows_of(
        "model on the CPU",
        Row(When(uses=("Hugging Face pipeline",)), _MOVE, "pipeline(..., device=0)", _PIPELINE),
        Row(When(uses=("Lightning",)), _MOVE, 'Trainer(accelerator="gpu", devices=1)', pages.LIGHTNING),
        Row(
            When(uses=("Accelerate",)),
            _MOVE,
            "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)   # with cpu=False",
            _ACCELERATE,
        ),
        Row(ANY, _MOVE, 'model.to("cuda")   # once; and batch = batch.to("cuda") in each step', _CUDA),
    ),
    *rows_of(
        "copies of weights",
        Row(
            When(uses=("Diffusers",)),
            "Offload groups of layers with a stream, which prefetches the next group while one computes; or offload "
            f"whole models (enable_model_cpu_offload). {_LESS}",
            'pipe.transformer.enable_group_offload(onload_device=torch.device("cuda"), use_stream=True)',
            _DIFFUSERS,
            since="Diffusers 0.33",
        ),
        (When(uses=ENGINES), f"Offload fewer weights (vLLM: cpu_offload_gb). {_LESS}", None, _VLLM_OFFLOAD),
        (
            When(uses=ZERO),
            "Prefetch parameters further ahead (stage3_prefetch_bucket_size) and pin them (offload_param.pin_memory), "
            f"or do not offload them. {_LESS}",
            None,
            pages.DEEPSPEED,
        ),
        (
            When(uses=("Accelerate",)),
            f"{_LESS} The hooks of device_map copy each layer when it is called, and prefetch nothing.",
            "AutoModel.from_pretrained(name, device_map='auto', max_memory={0: '...GiB', 'cpu': '...GiB'})",
            _BIG_MODELS,
        ),
        (ANY, f"{{stream}}.{{limit}} {_LESS}", _PREFETCH_WEIGHTS, pages.STREAMS),
    ),
    any_program("copies of swapped state", f"{{stream}}.{{limit}} {_LESS}", _PREFETCH_WEIGHTS, pages.STREAMS),
    *rows_of(
        "copies of a cache",
        (
            When(uses=ENGINES),
            "{stream}.{limit} Give the cache more of the GPU's memory, or store it in 8 bits.",
            "vllm serve ... --kv-cache-dtype fp8",
            "https://docs.vllm.ai/en/stable/features/quantization/quantized_kvcache.html",
        ),
        (ANY, "{stream}.{limit} Keep the cache on the GPU, or store it in 8 bits.", None, _OVERLAP),
    ),
    *rows_of(
        "copies of input",
        (
            TORCHREC_UNPIPELINED,
            "Use TrainPipelineSparseDist, which copies the next batch on a stream of its own while this one computes.",
            None,
            "https://docs.pytorch.org/torchrec/overview.html",
        ),
        (
            ANY,
            "{stream}: the next batch while this one computes.{limit} Copy it in the type in which it is stored "
            "(uint8 rather than float32), and convert it on the GPU.",
            _PREFETCH_BATCH,
            pages.PINNED_MEMORY,
        ),
    ),
    any_program(
        "copies of results",
        "{stream}, into a pinned buffer.{limit} Copy only what is needed, after it was reduced.",
        _COPY_BACK,
        pages.PINNED_MEMORY,
    ),
    any_program(
        "copies of unknown purpose",
        "{stream}.{limit} The first copy of the weights to the GPU may be among them, which no later step repeats.",
        None,
        _OVERLAP,
    ),
    any_program(
        "copies between GPUs",
        "Keep what computes together on one GPU, or split the batch, and compute one piece while another is sent.",
        None,
        pages.PIPELINING,
    ),
    any_program(
        "many small copies",
        "Copy lists of tensors at once, or keep the tensors in one flat buffer: each copy is as short as a copy "
        "gets, so only fewer of them help.",
        "torch._foreach_copy_(targets, sources)",
        _FOREACH_COPY,
        since="PyTorch 2.1",
    ),
    any_program(
        "copies within the GPU",
        "Write results where they are needed (out=, views of a preallocated tensor), and leave out clones that "
        "nobody changes.",
        None,
        pages.VIEWS,
    ),
    *rows_of(
        "copies packed for collectives",
        *spell(
            "argument of DDP, not of the Trainer",
            "Let gradients be views of the buckets: DDP copies them there and back.",
            "gradient_as_bucket_view=True",
        ),
        (
            When(uses=("DDP",)),
            "Let gradients be views of the buckets, by gradient_as_bucket_view=True: DDP copies them there and back.",
            None,
            pages.DDP,
        ),
        (
            ANY,
            "Write the tensors into the buffer of the collective where they are made, in place of packing them.",
            None,
            pages.DDP_NOTES,
        ),
    ),
    *rows_of(
        "copies by compiled code",
        (
            When(uses=ENGINES),
            "Let the engine compile by Inductor: a compiled region runs op by op (no kernel of Inductor is in the "
            "trace) and clones what eager code would share.",
            None,
            pages.VLLM_COMPILE,
        ),
        (
            TOO_OLD_TO_COMPILE,
            "Leave this code uncompiled: a compiled region runs op by op and clones what eager code would share, and "
            "Inductor's kernels need Volta or a newer device.",
            None,
            pages.COMPILE,
        ),
        Row(
            When(min_compiled=MAIN_SHARE),
            "Compile by Inductor (GPUs from Volta on), which takes such copies into the kernels around them. The "
            "compiled graph runs op by op (no kernel of Inductor is in the trace) and clones what eager code would "
            "share.",
            'torch.compile(..., backend="inductor")',
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
        Row(
            ANY,
            "Compile by Inductor (GPUs from Volta on), which takes such copies into the kernels around them. A "
            "compiled region runs op by op (no kernel of Inductor is in the trace) and clones what eager code would "
            "share.",
            'torch.compile(..., backend="inductor")',
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    any_program(
        "copies by generated code",
        "Change no input in place inside the compiled function: compiled code copies back the inputs that it "
        "changes, and clones what two of its results share.",
        None,
        pages.COMPILE,
    ),
)
