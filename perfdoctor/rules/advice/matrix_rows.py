"""Advice about matrix products, convolutions and attention: PD201 to PD206."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, ENGINE_KERNELS, ENGINES, FORWARD, MAIN_SHARE, rows_of

_FUSED_ATTENTION = (Action("fused-attention"),)
_HF_ATTENTION = "https://huggingface.co/docs/transformers/attention_interface"
_VLLM_ATTENTION = "https://github.com/vllm-project/vllm/pull/26315"
_SGLANG_ATTENTION = "https://docs.sglang.io/advanced_features/attention_backend.html"

MATRIX_ROWS = (
    *rows_of(
        "unfused attention",
        Row(
            When(uses=("vLLM",)),
            "Let the engine use a fused attention backend.",
            "vllm serve ... --attention-backend FLASH_ATTN   # older releases: VLLM_ATTENTION_BACKEND=FLASH_ATTN",
            _VLLM_ATTENTION,
            since="vLLM 0.14",
        ),
        (
            When(uses=("SGLang",)),
            "Let the engine use a fused attention backend.",
            "python -m sglang.launch_server ... --attention-backend flashinfer",
            _SGLANG_ATTENTION,
        ),
        (
            When(uses=("TensorRT", "TensorRT-LLM")),
            "Build the engine with its fused attention: the pattern of this model was not recognised.",
            None,
            pages.TENSORRT,
        ),
        Row(
            When(uses=("Hugging Face Transformers", "Hugging Face Trainer", "Hugging Face pipeline")),
            "Replace product, softmax and product in {where} by scaled_dot_product_attention: one kernel that never "
            "writes the scores. Transformers uses it by itself in models that have it, unless they are loaded with the "
            "eager form.",
            "x = torch.nn.functional.scaled_dot_product_attention(q, k, v)   # in place of the three ops",
            _HF_ATTENTION,
            since="PyTorch 2.0",
            actions=_FUSED_ATTENTION,
        ),
        Row(
            ANY,
            "Use scaled_dot_product_attention: one kernel that never writes the scores.",
            "x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)",
            pages.SDPA,
            since="PyTorch 2.0",
            actions=_FUSED_ATTENTION,
        ),
    ),
    *rows_of(
        "attention fell back",
        ENGINE_KERNELS,
        (
            ANY,
            "Use half precision, head sizes that are multiples of 8 up to 256, and is_causal instead of a mask: no "
            "fused kernel of scaled_dot_product_attention takes these inputs, so it fell back to its unfused form. "
            "The warnings of torch.nn.attention.sdpa_kernel say why a kernel was refused.",
            None,
            pages.SDPA,
        ),
    ),
    *(
        row
        for dtype in ("bfloat16", "float16")
        for row in rows_of(
            f"attention in float32: {dtype}",
            (
                When(uses=("vLLM",)),
                f"Serve the model in {dtype}: the fused kernels for half precision take no float32.",
                f"vllm serve ... --dtype {dtype}",
                pages.VLLM,
            ),
            (
                When(uses=("SGLang",)),
                f"Serve the model in {dtype}: the fused kernels for half precision take no float32.",
                f"python -m sglang.launch_server ... --dtype {dtype}",
                pages.SGLANG,
            ),
            (
                When(uses=ENGINES),
                f"Build the engine in {dtype}: the fused kernels for half precision take no float32.",
                None,
                pages.TENSORRT,
            ),
            (
                When(phases=FORWARD),
                f"Run the model in {dtype}: FlashAttention's kernels take no float32, and the kernel that does "
                "multiplies three times.",
                f"model = model.to(torch.{dtype})",
                pages.SDPA,
            ),
            (
                ANY,
                "Give scaled_dot_product_attention queries, keys and values in half precision, by autocast or a cast: "
                "FlashAttention's kernels take no float32, and the kernel that does multiplies three times.",
                f'with torch.autocast("cuda", dtype=torch.{dtype}): ...',
                pages.SDPA,
            ),
        )
    ),
    *rows_of(
        "misaligned products",
        (
            When(uses=ENGINES),
            "Pad the model's dimensions to multiples of {multiple} before it is served (64 is better still).",
            None,
            pages.MATRIX_GUIDE,
        ),
        (
            ANY,
            "Make the dimensions of these products multiples of {multiple} (vocabulary, features, sequence; 64 is "
            "better still), and start no slice at an odd element.",
            None,
            pages.MATRIX_GUIDE,
        ),
    ),
    *rows_of(
        "misaligned products of attention",
        (
            When(uses=ENGINES),
            "Let the engine use a fused attention backend, which needs no padding.",
            None,
            _VLLM_ATTENTION,
        ),
        (
            ANY,
            "Use scaled_dot_product_attention in attention, which needs no padding; else pad {size} to {padded}, and "
            "mask what is added.",
            None,
            pages.SDPA,
        ),
    ),
    *rows_of(
        "misaligned products of known size",
        (
            When(uses=ENGINES),
            "Pad {size} to {padded} in the model before it is served (vocabulary, features, heads): the rows then "
            "start at multiples of 16 bytes.",
            None,
            pages.MATRIX_GUIDE,
        ),
        (
            ANY,
            "Pad {size} to {padded} where the layer is made (vocabulary, features, heads): the rows then start at "
            "multiples of 16 bytes.",
            None,
            pages.MATRIX_GUIDE,
        ),
    ),
    *rows_of(
        "small products",
        ENGINE_KERNELS,
        (
            When(decodes=True),
            "Serve more sequences at a time: each new token reads every weight once, whatever else is fused.",
            None,
            pages.GENERATION,
        ),
        (
            When(min_graphed=MAIN_SHARE),
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), and use one bmm for heads and experts. Graphs launch them already.",
            None,
            pages.BMM,
        ),
        (
            When(phases=FORWARD),
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), one bmm for heads and experts, several inputs at a time. CUDA graphs cheapen the launches.",
            None,
            pages.BMM,
        ),
        (
            ANY,
            "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and "
            "values), one bmm for heads and experts, a larger batch. CUDA graphs cheapen the launches.",
            None,
            pages.BMM,
        ),
    ),
)
