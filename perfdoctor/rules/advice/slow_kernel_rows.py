"""Advice about kernels far below their roof: PD209, a situation for each known cause."""

from __future__ import annotations

from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import AdviceRow, Row, When
from perfdoctor.rules.advice.programs import (
    ANY,
    ENGINE_KERNELS,
    FORWARD,
    MAIN_SHARE,
    TOO_OLD_TO_COMPILE,
    any_program,
    rows_of,
)

_SDPA_KERNEL = "https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html"
_BACKENDS = "https://docs.pytorch.org/docs/stable/backends.html"
_CONTIGUOUS = "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html"
_BROADCASTING = "https://docs.pytorch.org/docs/stable/notes/broadcasting.html"
_PROMOTION = "https://docs.pytorch.org/docs/stable/tensor_attributes.html"
_NCU = "https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html"
_AUTOTUNE = 'model = torch.compile(model, mode="max-autotune")'


def _rows_of_cause(cause: str, *rows: Row | tuple[When, str, str | None, str]) -> tuple[AdviceRow, ...]:
    """The rows of a cause, by its id in PD209; users of a serving engine do not write its kernels."""
    return rows_of(f"slow kernels: {cause}", ENGINE_KERNELS, *rows)


SLOW_KERNEL_ROWS = (
    *_rows_of_cause(
        "few blocks",
        (
            When(phases=FORWARD),
            "Try several inputs at a time: the kernels do not have enough work for all multiprocessors.",
            None,
            pages.MATRIX_GUIDE,
        ),
        (
            ANY,
            "Try a larger batch: the kernels do not have enough work for all multiprocessors.",
            None,
            pages.MATRIX_GUIDE,
        ),
    ),
    *_rows_of_cause(
        "skinny product",
        (
            TOO_OLD_TO_COMPILE,
            "Try to put more rows into one product: fold the batch into M, concatenate.",
            None,
            pages.MATRIX_GUIDE,
        ),
        (
            When(decodes=True),
            "Serve more sequences at a time: each new token reads every weight once.",
            None,
            pages.GENERATION,
        ),
        Row(
            ANY,
            "Try to put more rows into one product (fold the batch into M, concatenate), or let max-autotune look for "
            "a kernel of this shape.",
            _AUTOTUNE,
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "small K",
        (
            TOO_OLD_TO_COMPILE,
            "Try a wider inner dimension, or one larger product in place of many.",
            None,
            pages.MATRIX_GUIDE,
        ),
        Row(
            ANY,
            "Try a wider inner dimension or one larger product in place of many, or let max-autotune look for a kernel "
            "of this shape.",
            _AUTOTUNE,
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "small product",
        (
            ANY,
            "Try a larger batch, or one product in place of several that share an input (queries with keys and values, "
            "gates): this one has fewer tiles than the GPU has multiprocessors.",
            None,
            pages.MATRIX_GUIDE,
        ),
    ),
    *_rows_of_cause(
        "tile quantization",
        (TOO_OLD_TO_COMPILE, "Try sizes that are multiples of the tile (128, or 64).", None, pages.MATRIX_GUIDE),
        Row(
            ANY,
            "Try sizes that are multiples of the tile (128, or 64), or let max-autotune look for a tile that fits.",
            _AUTOTUNE,
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "wave quantization",
        (TOO_OLD_TO_COMPILE, "Try a batch or a width that fills the last wave of tiles.", None, pages.MATRIX_GUIDE),
        Row(
            ANY,
            "Try a batch or a width that fills the last wave of tiles, or let max-autotune look for a tile that does.",
            _AUTOTUNE,
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "few channels",
        (
            ANY,
            "Use more channels and fewer pixels there (space-to-depth on the input), where the model is yours to "
            "design. Else channels_last wastes least.",
            "model = model.to(memory_format=torch.channels_last)",
            pages.CHANNELS_LAST,
        ),
    ),
    *_rows_of_cause(
        "odd channels",
        (
            ANY,
            "Make the channels multiples of 8 where the layer is made: a pixel's channels are then read 16 bytes at a "
            "time.",
            None,
            pages.CONVOLUTION_GUIDE,
        ),
    ),
    *_rows_of_cause(
        "fallback convolution",
        (
            ANY,
            "Let MIOpen search for a tuned kernel of these shapes once; its result is kept for later runs.",
            "MIOPEN_FIND_MODE=1 MIOPEN_FIND_ENFORCE=3 python ...",
            "https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/find-and-immediate.html",
        ),
    ),
    *_rows_of_cause(
        "atomic adds",
        (
            ANY,
            "Sum what has one index before it is scattered (sort by index, then segment_reduce), or use the op that "
            "does: EmbeddingBag in place of embedding and sum.",
            "torch.segment_reduce(values, 'sum', lengths=counts)   # of values sorted by index",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.EmbeddingBag.html",
        ),
    ),
    *_rows_of_cause(
        "head size",
        (
            ANY,
            "Choose heads of 64 or 128, where the model is yours to design: fused attention is made for these.",
            None,
            pages.SDPA,
        ),
    ),
    *_rows_of_cause(
        "few positions",
        (
            ANY,
            "Try to put more queries into one call: fold what is independent (points, windows, beams) into the "
            "sequence.",
            None,
            pages.SDPA,
        ),
    ),
    *_rows_of_cause(
        "mask as a tensor",
        Row(
            ANY,
            "Use is_causal=True where that is meant, or flex_attention, which computes the mask instead of reading it.",
            "torch.nn.attention.flex_attention.flex_attention(q, k, v, block_mask=...)",
            "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
            since="PyTorch 2.5",
        ),
    ),
    *_rows_of_cause(
        "Triton's attention",
        Row(
            ANY,
            "Try the Composable Kernel backend of scaled_dot_product_attention, if this build of PyTorch has it.",
            'torch.backends.cuda.preferred_rocm_fa_library("ck")',
            _BACKENDS,
            since="PyTorch 2.7",
        ),
    ),
    *_rows_of_cause(
        "older attention",
        Row(
            ANY,
            "Try cuDNN's attention, which has code for this architecture, or FlashAttention-3.",
            "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION): ...",
            _SDPA_KERNEL,
            since="PyTorch 2.5",
        ),
    ),
    any_program(
        "slow kernels: own batch norm",
        "Try channels_last, whose batch norm uses more blocks, with types that cuDNN or MIOpen takes: half "
        "precision inputs and float32 weights, as autocast has them.",
        "model = model.to(memory_format=torch.channels_last)",
        pages.CHANNELS_LAST,
    ),
    *_rows_of_cause(
        "short rows",
        (
            TOO_OLD_TO_COMPILE,
            "Use a kernel that takes several rows a block: in the library's, most threads wait for a row this short.",
            None,
            pages.COMPILE,
        ),
        Row(
            ANY,
            "Try torch.compile: its kernel takes several rows a block, and fuses what stands before and behind.",
            "layer = torch.compile(layer)",
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "odd rows",
        (
            ANY,
            "Pad the last dimension to a multiple of 8 (sequence, vocabulary): each row then starts at a multiple of "
            "16 bytes, and is read 16 bytes at a time.",
            "x = torch.nn.functional.pad(x, (0, -x.shape[-1] % 8), value=float('-inf'))   # before a softmax",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html",
        ),
    ),
    *_rows_of_cause(
        "inner dimension",
        (
            ANY,
            "Make the dimension that is reduced the innermost one where the tensor is made, keep images in "
            "channels_last, or let torch.compile fuse the reduction with what stands before it.",
            None,
            pages.VIEWS,
        ),
    ),
    *_rows_of_cause(
        "strided",
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
    *_rows_of_cause(
        "broadcast",
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
            pages.COMPILE,
            since="PyTorch 2.0",
        ),
    ),
    *_rows_of_cause(
        "mixed types",
        (
            ANY,
            "Bring both inputs to one type where they are made: an op over two types converts each element by itself.",
            "scale = scale.to(x.dtype)   # once, before the loop",
            _PROMOTION,
        ),
    ),
    *_rows_of_cause(
        "unaligned start",
        (
            ANY,
            "Let slices of a larger tensor start at a multiple of 16 bytes (pad what stands before them), or copy one "
            "once if several ops read it: elements are else loaded one by one.",
            "part = flat[8:].clone()   # flat[5:] starts between two accesses",
            _CONTIGUOUS,
        ),
    ),
    *_rows_of_cause(
        "unknown on AMD",
        (
            ANY,
            "Let a kernel profiler say what these kernels wait for; torch.compile may have a faster one.",
            "rocprof-compute profile -n slow -- python ...",
            "https://rocm.docs.amd.com/projects/rocprofiler-compute/en/latest/",
        ),
    ),
    *_rows_of_cause(
        "unknown",
        (
            ANY,
            "Let a kernel profiler say what these kernels wait for; torch.compile may have a faster one.",
            "ncu --set full --launch-count 20 python ...",
            _NCU,
        ),
    ),
)
