"""Advice about kernels that only move memory: PD301, PD302, PD305, PD306."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import (
    ANY,
    ENGINE_KERNELS,
    FORWARD,
    MAIN_SHARE,
    PARTLY,
    TOO_OLD_TO_COMPILE,
    ZERO,
    rows_of,
)

_COMPILED = (Action("compile", "default"),)
_CHANNELS_LAST = (Action("channels-last"),)

FUSION_ROWS = (
    *rows_of(
        "unfused pointwise kernels",
        ENGINE_KERNELS,
        (
            TOO_OLD_TO_COMPILE,
            "Use the fused operation where there is one: rms_norm, layer_norm, gelu. The kernels of torch.compile need "
            "Volta or a newer device.",
            None,
            pages.COMPILED_OPTIMIZER,
        ),
        Row(
            When(min_compiled=MAIN_SHARE),
            "Find what breaks the graph there, or use the fused operation where there is one (rms_norm, layer_norm, "
            "gelu): most of the program is compiled, but not these kernels.",
            "TORCH_LOGS=graph_breaks python ...",
            pages.GRAPH_BREAKS,
            since="PyTorch 2.0",
        ),
        Row(
            When(min_compiled=PARTLY),
            "Compile what launches these kernels, or use the fused operation where there is one (rms_norm, "
            "layer_norm, gelu): some of the program is compiled, but not these.",
            "layer = torch.compile(layer)",
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
        Row(
            When(uses=("Hugging Face Trainer",)),
            "Let the Trainer compile the model, which fuses these kernels.",
            "TrainingArguments(..., torch_compile=True)",
            pages.TRANSFORMERS_COMPILE,
            since="PyTorch 2.0",
            actions=_COMPILED,
        ),
        Row(
            When(uses=ZERO),
            "Let DeepSpeed compile the model, which fuses these kernels.",
            "model_engine.compile()",
            pages.DEEPSPEED_ENGINE,
            since="PyTorch 2.0",
            actions=_COMPILED,
        ),
        Row(
            When(uses=("FSDP",)),
            "Compile each block before it is sharded, which fuses these kernels; or use the fused operation where "
            "there is one: rms_norm, layer_norm, gelu.",
            "block = torch.compile(block); fully_shard(block)",
            pages.TORCHTITAN,
            since="PyTorch 2.0",
        ),
        Row(
            When(uses=("Hugging Face pipeline",)),
            "Compile the pipeline's model, which fuses these kernels.",
            "pipe.model = torch.compile(pipe.model)",
            pages.TRANSFORMERS_COMPILE,
            since="PyTorch 2.0",
        ),
        Row(
            ANY,
            "Fuse these kernels with torch.compile, or use the fused operation where there is one: rms_norm, "
            "layer_norm, gelu.",
            "model = torch.compile(model)",
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=_COMPILED,
        ),
    ),
    *rows_of(
        "GELU as its formula on the CPU",
        (
            When(uses=("Hugging Face Transformers", "Hugging Face Trainer", "Hugging Face pipeline")),
            'Choose "gelu_pytorch_tanh" in the model\'s config: the same function as "gelu_new" and "gelu_fast", which '
            "Transformers computes op by op, in one op.",
            'config.activation_function = "gelu_pytorch_tanh"   # of other models: hidden_act, ffn_activation',
            "https://huggingface.co/docs/transformers/model_doc/gpt2",
        ),
        Row(
            ANY,
            "Call functional.gelu in place of the formula: one op that reads its input once, and writes its result "
            'once. approximate="tanh" where the formula has a tanh.',
            'torch.nn.functional.gelu(x)   # approximate="tanh" for the formula with tanh',
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html",
            actions=(Action("fused-activation"),),
        ),
    ),
    *rows_of(
        "layout copies",
        (
            When(uses=("TensorRT",)),
            "Build the engine with input formats that need no copies: it chose these layouts when it was built.",
            None,
            pages.TENSORRT,
        ),
        Row(
            When(uses=("Hugging Face pipeline",)),
            "Keep the pipeline's model in channels_last{miopen}: the fast convolutions want it, and ops keep it.",
            "pipe.model = pipe.model.to(memory_format=torch.channels_last)",
            pages.CHANNELS_LAST,
            actions=_CHANNELS_LAST,
        ),
        Row(
            ANY,
            "Keep model and inputs in channels_last{miopen}: the fast convolutions want it, and ops keep it.",
            "model = model.to(memory_format=torch.channels_last)\n"
            "inputs = inputs.to(memory_format=torch.channels_last)",
            pages.CHANNELS_LAST,
            actions=_CHANNELS_LAST,
        ),
    ),
    *rows_of(
        "weights cast at every step",
        (
            When(uses=("vLLM",), lacks_bfloat16=True),
            "Load the weights in the type that they are used in.",
            "vllm serve ... --dtype half",
            pages.VLLM,
        ),
        (
            When(uses=("SGLang",), lacks_bfloat16=True),
            "Load the weights in the type that they are used in.",
            "python -m sglang.launch_server ... --dtype half",
            pages.SGLANG,
        ),
        (
            When(uses=("vLLM",)),
            "Load the weights in the type that they are used in.",
            "vllm serve ... --dtype bfloat16",
            pages.VLLM,
        ),
        (
            When(uses=("SGLang",)),
            "Load the weights in the type that they are used in.",
            "python -m sglang.launch_server ... --dtype bfloat16",
            pages.SGLANG,
        ),
        (
            When(phases=FORWARD, lacks_bfloat16=True),
            "Cast the weights once, before the loop, and leave autocast out.",
            "model = model.to(torch.float16)   # in place of torch.autocast",
            pages.AMP,
        ),
        (
            When(phases=FORWARD),
            "Cast the weights once, before the loop, and leave autocast out.",
            "model = model.to(torch.bfloat16)   # in place of torch.autocast",
            pages.AMP,
        ),
        (
            When(phases=("training",), lacks_bfloat16=True),
            "Give the casts a larger batch to spread over; with gradient accumulation put one autocast context around "
            "all passes of a step.",
            None,
            pages.AMP,
        ),
        (
            When(phases=("training",), uses=("FSDP",)),
            "Let FSDP cast: it gathers the parameters in bfloat16 and keeps the shards in float32.",
            "fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
            pages.FSDP2,
        ),
        (
            When(phases=("training",), uses=ZERO),
            "Let DeepSpeed keep the weights in bfloat16, with float32 master weights in its optimizer.",
            '"bf16": {"enabled": true}',
            pages.DEEPSPEED,
        ),
        (
            When(phases=("training",)),
            "Keep the weights in bfloat16 with float32 master weights in the optimizer, or give the casts a larger "
            "batch to spread over. With gradient accumulation put one autocast context around all passes of a step.",
            None,
            pages.AMP,
        ),
        (
            ANY,
            "Put one autocast context around all that uses the weights between two changes of them, so that its cache "
            "of casts is used; where they never change, cast them once.",
            None,
            pages.AMP,
        ),
    ),
    *rows_of(
        "copies by concatenation",
        ENGINE_KERNELS,
        (TOO_OLD_TO_COMPILE, "Write the parts into one preallocated tensor.", None, pages.CAT),
        (
            When(min_compiled=MAIN_SHARE),
            "Write the parts into one preallocated tensor; the compiler did not fuse these copies.",
            None,
            pages.CAT,
        ),
        (
            ANY,
            "Write the parts into one preallocated tensor, or let torch.compile fuse the parts into it.",
            None,
            pages.CAT,
        ),
    ),
    *rows_of(
        "copies by repetition",
        ENGINE_KERNELS,
        (
            ANY,
            "Use expand, which copies nothing, or let the op broadcast.",
            None,
            "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.expand.html",
        ),
    ),
    *rows_of(
        "copies into another order",
        ENGINE_KERNELS,
        Row(
            ANY,
            "Keep one order of dimensions from end to end: most ops take transposed views as they are.",
            None,
            pages.VIEWS,
            actions=(Action("drop-contiguous"),),
        ),
    ),
)
