"""Advice about kernels far below their roof: PD209, a situation for each known cause."""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, ENGINE_KERNELS, FORWARD, MAIN_SHARE, TOO_OLD_TO_COMPILE, rows_of

_COMPILE = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
_SDPA = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
_SDPA_KERNEL = "https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html"
_BACKENDS = "https://docs.pytorch.org/docs/stable/backends.html"
_GEMM_GUIDE = "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/"
_LAYOUT = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"
_CONTIGUOUS = "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html"
_VIEWS = "https://docs.pytorch.org/docs/stable/tensor_view.html"
_BROADCASTING = "https://docs.pytorch.org/docs/stable/notes/broadcasting.html"
_PROMOTION = "https://docs.pytorch.org/docs/stable/tensor_attributes.html"
_NCU = "https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html"
_AUTOTUNE = 'model = torch.compile(model, mode="max-autotune")'

SLOW_KERNEL_ROWS = (
    *rows_of(
        "slow kernels: few blocks",
        ENGINE_KERNELS,
        (
            When(phases=FORWARD),
            "Try several inputs at a time: the kernels do not have enough work for all multiprocessors.",
            None,
            _GEMM_GUIDE,
        ),
        (ANY, "Try a larger batch: the kernels do not have enough work for all multiprocessors.", None, _GEMM_GUIDE),
    ),
    *rows_of(
        "slow kernels: skinny product",
        ENGINE_KERNELS,
        (
            TOO_OLD_TO_COMPILE,
            "Try to put more rows into one product: fold the batch into M, concatenate.",
            None,
            _GEMM_GUIDE,
        ),
        (
            When(decodes=True),
            "Serve more sequences at a time: each new token reads every weight once.",
            None,
            "https://huggingface.co/docs/transformers/llm_optims",
        ),
        Row(
            ANY,
            "Try to put more rows into one product (fold the batch into M, concatenate), or let max-autotune look for "
            "a kernel of this shape.",
            _AUTOTUNE,
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: small K",
        ENGINE_KERNELS,
        (TOO_OLD_TO_COMPILE, "Try a wider inner dimension, or one larger product in place of many.", None, _GEMM_GUIDE),
        Row(
            ANY,
            "Try a wider inner dimension or one larger product in place of many, or let max-autotune look for a kernel "
            "of this shape.",
            _AUTOTUNE,
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: small product",
        ENGINE_KERNELS,
        (
            ANY,
            "Try a larger batch, or one product in place of several that share an input (queries with keys and values, "
            "gates): this one has fewer tiles than the GPU has multiprocessors.",
            None,
            _GEMM_GUIDE,
        ),
    ),
    *rows_of(
        "slow kernels: tile quantization",
        ENGINE_KERNELS,
        (TOO_OLD_TO_COMPILE, "Try sizes that are multiples of the tile (128, or 64).", None, _GEMM_GUIDE),
        Row(
            ANY,
            "Try sizes that are multiples of the tile (128, or 64), or let max-autotune look for a tile that fits.",
            _AUTOTUNE,
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: wave quantization",
        ENGINE_KERNELS,
        (TOO_OLD_TO_COMPILE, "Try a batch or a width that fills the last wave of tiles.", None, _GEMM_GUIDE),
        Row(
            ANY,
            "Try a batch or a width that fills the last wave of tiles, or let max-autotune look for a tile that does.",
            _AUTOTUNE,
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: few channels",
        ENGINE_KERNELS,
        (
            ANY,
            "Use more channels and fewer pixels there (space-to-depth on the input), where the model is yours to "
            "design. Else channels_last wastes least.",
            "model = model.to(memory_format=torch.channels_last)",
            _LAYOUT,
        ),
    ),
    *rows_of(
        "slow kernels: odd channels",
        ENGINE_KERNELS,
        (
            ANY,
            "Make the channels multiples of 8 where the layer is made: a pixel's channels are then read 16 bytes at a "
            "time.",
            None,
            "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        ),
    ),
    *rows_of(
        "slow kernels: fallback convolution",
        ENGINE_KERNELS,
        (
            ANY,
            "Let MIOpen search for a tuned kernel of these shapes once; its result is kept for later runs.",
            "MIOPEN_FIND_MODE=1 MIOPEN_FIND_ENFORCE=3 python ...",
            "https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/find-and-immediate.html",
        ),
    ),
    *rows_of(
        "slow kernels: atomic adds",
        ENGINE_KERNELS,
        (
            ANY,
            "Sum what has one index before it is scattered (sort by index, then segment_reduce), or use the op that "
            "does: EmbeddingBag in place of embedding and sum.",
            "torch.segment_reduce(values, 'sum', lengths=counts)   # of values sorted by index",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.EmbeddingBag.html",
        ),
    ),
    *rows_of(
        "slow kernels: head size",
        ENGINE_KERNELS,
        (
            ANY,
            "Choose heads of 64 or 128, where the model is yours to design: fused attention is made for these.",
            None,
            _SDPA,
        ),
    ),
    *rows_of(
        "slow kernels: few positions",
        ENGINE_KERNELS,
        (
            ANY,
            "Try to put more queries into one call: fold what is independent (points, windows, beams) into the "
            "sequence.",
            None,
            _SDPA,
        ),
    ),
    *rows_of(
        "slow kernels: mask as a tensor",
        ENGINE_KERNELS,
        Row(
            ANY,
            "Use is_causal=True where that is meant, or flex_attention, which computes the mask instead of reading it.",
            "torch.nn.attention.flex_attention.flex_attention(q, k, v, block_mask=...)",
            "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
            since="PyTorch 2.5",
        ),
    ),
    *rows_of(
        "slow kernels: Triton's attention",
        ENGINE_KERNELS,
        Row(
            ANY,
            "Try the Composable Kernel backend of scaled_dot_product_attention, if this build of PyTorch has it.",
            'torch.backends.cuda.preferred_rocm_fa_library("ck")',
            _BACKENDS,
            since="PyTorch 2.7",
        ),
    ),
    *rows_of(
        "slow kernels: older attention",
        ENGINE_KERNELS,
        Row(
            ANY,
            "Try cuDNN's attention, which has code for this architecture, or FlashAttention-3.",
            "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION): ...",
            _SDPA_KERNEL,
            since="PyTorch 2.5",
        ),
    ),
    *rows_of(
        "slow kernels: own batch norm",
        (
            ANY,
            "Try channels_last, whose batch norm uses more blocks, with types that cuDNN or MIOpen takes: half "
            "precision inputs and float32 weights, as autocast has them.",
            "model = model.to(memory_format=torch.channels_last)",
            _LAYOUT,
        ),
    ),
    *rows_of(
        "slow kernels: short rows",
        ENGINE_KERNELS,
        (
            TOO_OLD_TO_COMPILE,
            "Use a kernel that takes several rows a block: in the library's, most threads wait for a row this short.",
            None,
            _COMPILE,
        ),
        Row(
            ANY,
            "Try torch.compile: its kernel takes several rows a block, and fuses what stands before and behind.",
            "layer = torch.compile(layer)",
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: odd rows",
        ENGINE_KERNELS,
        (
            ANY,
            "Pad the last dimension to a multiple of 8 (sequence, vocabulary): each row then starts at a multiple of "
            "16 bytes, and is read 16 bytes at a time.",
            "x = torch.nn.functional.pad(x, (0, -x.shape[-1] % 8), value=float('-inf'))   # before a softmax",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html",
        ),
    ),
    *rows_of(
        "slow kernels: inner dimension",
        ENGINE_KERNELS,
        (
            ANY,
            "Make the dimension that is reduced the innermost one where the tensor is made, keep images in "
            "channels_last, or let torch.compile fuse the reduction with what stands before it.",
            None,
            _VIEWS,
        ),
    ),
    *rows_of(
        "slow kernels: strided",
        ENGINE_KERNELS,
        (
            When(min_compiled=MAIN_SHARE),
            "Keep one order of dimensions from end to end: the compiler did not fuse these kernels.",
            "x = x.contiguous()   # once, where it is made, if several ops read it",
            _CONTIGUOUS,
        ),
        (
            ANY,
            "Keep one order of dimensions from end to end, or make the tensor contiguous once where several ops read "
            "it.",
            "x = x.contiguous()   # once, where it is made",
            _CONTIGUOUS,
        ),
    ),
    *rows_of(
        "slow kernels: broadcast",
        ENGINE_KERNELS,
        (
            TOO_OLD_TO_COMPILE,
            "Give the bias to the layer before (linear, conv2d), which adds it in its own kernel.",
            None,
            _BROADCASTING,
        ),
        Row(
            ANY,
            "Give a bias to the layer before (linear, conv2d), which adds it in its own kernel, or let torch.compile "
            "fuse the op.",
            "layer = torch.compile(layer)",
            _COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *rows_of(
        "slow kernels: mixed types",
        ENGINE_KERNELS,
        (
            ANY,
            "Bring both inputs to one type where they are made: an op over two types converts each element by itself.",
            "scale = scale.to(x.dtype)   # once, before the loop",
            _PROMOTION,
        ),
    ),
    *rows_of(
        "slow kernels: unknown on AMD",
        ENGINE_KERNELS,
        (
            ANY,
            "Let a kernel profiler say what these kernels wait for; torch.compile may have a faster one.",
            "rocprof-compute profile -n slow -- python ...",
            "https://rocm.docs.amd.com/projects/rocprofiler-compute/en/latest/",
        ),
    ),
    *rows_of(
        "slow kernels: unknown",
        ENGINE_KERNELS,
        (
            ANY,
            "Let a kernel profiler say what these kernels wait for; torch.compile may have a faster one.",
            "ncu --set full --launch-count 20 python ...",
            _NCU,
        ),
    ),
)
"""What to do about kernels that are slower than comparable ones."""
