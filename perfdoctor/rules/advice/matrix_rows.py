"""Advice about matrix products, convolutions and attention: PD201 to PD208."""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import When
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, MOSTLY, ZERO, rows_of

_COMPILE = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
_AMP = "https://docs.pytorch.org/docs/stable/amp.html"
_SDPA = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
_HF_ATTENTION = "https://huggingface.co/docs/transformers/attention_interface"
_VLLM = "https://docs.vllm.ai/en/v0.10.2/configuration/engine_args.html"
_VLLM_ATTENTION = "https://github.com/vllm-project/vllm/pull/26315"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_SGLANG_ATTENTION = "https://docs.sglang.io/advanced_features/attention_backend.html"
_TENSORRT = "https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html"

_ENGINE_KERNELS = (
    When(uses=ENGINES),
    "These kernels are the engine's: a newer release, or another backend of it, may have fused ones.",
    None,
    "",
    _VLLM,
)

MATRIX_ROWS = (
    *rows_of(
        "float32 products: bfloat16",
        (
            When(uses=("vLLM",)),
            "Serve the model in bfloat16.",
            "vllm serve ... --dtype bfloat16",
            "",
            _VLLM,
        ),
        (
            When(uses=("SGLang",)),
            "Serve the model in bfloat16.",
            "python -m sglang.launch_server ... --dtype bfloat16",
            "",
            _SGLANG,
        ),
        (
            When(uses=("TensorRT", "TensorRT-LLM")),
            "Build the engine in bfloat16 or float16.",
            None,
            "",
            _TENSORRT,
        ),
        (
            When(phases=FORWARD),
            "Run the model in bfloat16: cast it once, before the loop.",
            "model = model.to(torch.bfloat16)",
            "",
            _AMP,
        ),
        (
            When(uses=("Hugging Face Trainer",)),
            "Train in bfloat16.",
            "TrainingArguments(..., bf16=True)",
            "",
            "https://huggingface.co/docs/transformers/main_classes/trainer",
        ),
        (
            When(uses=("Lightning",)),
            "Train in bfloat16.",
            'Trainer(precision="bf16-mixed")',
            "",
            "https://lightning.ai/docs/pytorch/stable/common/precision_basic.html",
        ),
        (
            When(uses=ZERO),
            "Train in bfloat16.",
            '"bf16": {"enabled": true}',
            "",
            "https://www.deepspeed.ai/docs/config-json/",
        ),
        (
            When(phases=("training",)),
            "Train under autocast in bfloat16.",
            'with torch.autocast("cuda", dtype=torch.bfloat16): ...',
            "",
            _AMP,
        ),
        (
            ANY,
            "Run under autocast in bfloat16.",
            'with torch.autocast("cuda", dtype=torch.bfloat16): ...',
            "",
            _AMP,
        ),
    ),
    *rows_of(
        "float32 products: float16",
        (
            When(uses=("vLLM",)),
            "Serve the model in float16.",
            "vllm serve ... --dtype float16",
            "",
            _VLLM,
        ),
        (
            When(uses=("SGLang",)),
            "Serve the model in float16.",
            "python -m sglang.launch_server ... --dtype float16",
            "",
            _SGLANG,
        ),
        (
            When(uses=("TensorRT", "TensorRT-LLM")),
            "Build the engine in float16.",
            None,
            "",
            _TENSORRT,
        ),
        (
            When(phases=FORWARD),
            "Run the model in float16: cast it once, before the loop.",
            "model = model.to(torch.float16)",
            "",
            _AMP,
        ),
        (
            When(uses=("Hugging Face Trainer",)),
            "Train in float16.",
            "TrainingArguments(..., fp16=True)",
            "",
            "https://huggingface.co/docs/transformers/main_classes/trainer",
        ),
        (
            When(uses=("Lightning",)),
            "Train in float16.",
            'Trainer(precision="16-mixed")',
            "",
            "https://lightning.ai/docs/pytorch/stable/common/precision_basic.html",
        ),
        (
            When(uses=ZERO),
            "Train in float16.",
            '"fp16": {"enabled": true}',
            "",
            "https://www.deepspeed.ai/docs/config-json/",
        ),
        (
            When(phases=("training",)),
            "Train under autocast in float16 with a GradScaler.",
            'with torch.autocast("cuda", dtype=torch.float16): ...   # and a torch.amp.GradScaler',
            "",
            _AMP,
        ),
        (
            ANY,
            "Run under autocast in float16.",
            'with torch.autocast("cuda", dtype=torch.float16): ...',
            "",
            _AMP,
        ),
    ),
    *rows_of(
        "unfused attention",
        (
            When(uses=("vLLM",)),
            "Let the engine use a fused attention backend.",
            "vllm serve ... --attention-backend FLASH_ATTN   # older releases: VLLM_ATTENTION_BACKEND=FLASH_ATTN",
            "vLLM 0.14",
            _VLLM_ATTENTION,
        ),
        (
            When(uses=("SGLang",)),
            "Let the engine use a fused attention backend.",
            "python -m sglang.launch_server ... --attention-backend flashinfer",
            "",
            _SGLANG_ATTENTION,
        ),
        (
            When(uses=("TensorRT", "TensorRT-LLM")),
            "Build the engine with its fused attention: the pattern of this model was not recognised.",
            None,
            "",
            _TENSORRT,
        ),
        (
            When(
                uses=("Hugging Face Transformers", "Hugging Face Trainer", "Hugging Face pipeline"),
            ),
            "Load the model with fused attention: one kernel that never writes the scores.",
            'model = AutoModel.from_pretrained(..., attn_implementation="sdpa")',
            "",
            _HF_ATTENTION,
        ),
        (
            ANY,
            "Use scaled_dot_product_attention: one kernel that never writes the scores. Hugging Face models take "
            'attn_implementation="sdpa".',
            "x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)",
            "PyTorch 2.0",
            _SDPA,
        ),
    ),
    *rows_of(
        "attention fell back",
        _ENGINE_KERNELS,
        (
            ANY,
            "scaled_dot_product_attention fell back to its unfused form: no fused kernel takes these inputs. Use half "
            "precision, head sizes that are multiples of 8 up to 256, and is_causal instead of a mask; "
            "torch.nn.attention.sdpa_kernel says why a kernel was refused.",
            None,
            "",
            _SDPA,
        ),
    ),
    *rows_of(
        "small products",
        _ENGINE_KERNELS,
        (
            When(min_graphed=MOSTLY),
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), and use one bmm for heads and experts. Graphs launch them already.",
            None,
            "",
            "https://docs.pytorch.org/docs/stable/generated/torch.bmm.html",
        ),
        (
            When(phases=FORWARD),
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), one bmm for heads and experts, several inputs at a time. CUDA graphs cheapen the launches.",
            None,
            "",
            "https://docs.pytorch.org/docs/stable/generated/torch.bmm.html",
        ),
        (
            ANY,
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), one bmm for heads and experts, a larger batch. CUDA graphs cheapen the launches.",
            None,
            "",
            "https://docs.pytorch.org/docs/stable/generated/torch.bmm.html",
        ),
    ),
    *rows_of(
        "small products of recurrent cells",
        (
            ANY,
            "Use nn.LSTM or nn.GRU over the whole sequence instead of cells in a loop: cuDNN computes all gates at "
            "once, and the products of the inputs for all times. Own cells: one product of [x, h] for all gates.",
            "rnn = torch.nn.LSTM(size, hidden, layers)        # or nn.GRU: the whole sequence in one call",
            "",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
        ),
    ),
    *rows_of(
        "kernels of an old architecture",
        (
            When(uses=ENGINES),
            "Use a release of the engine that is built for this device.",
            None,
            "",
            _VLLM,
        ),
        (
            When(min_compiled=MOSTLY),
            "Use a PyTorch built with a newer CUDA, or let the compiler choose among kernels made for this device.",
            'model = torch.compile(model, mode="max-autotune")',
            "PyTorch 2.0",
            _COMPILE,
        ),
        (
            ANY,
            "Use a PyTorch built with a newer CUDA, torch.compile with max-autotune, or kernels compiled for this "
            "device.",
            'model = torch.compile(model, mode="max-autotune")',
            "PyTorch 2.0",
            _COMPILE,
        ),
    ),
)
"""What to do about matrix products, convolutions and attention."""
