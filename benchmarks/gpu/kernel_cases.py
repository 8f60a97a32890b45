"""The programs of record.py: kernels of libraries and settings that no public trace has, cheapest to lose last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as nn

Program = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One trace: the program to record, and the settings that it runs under."""

    name: str
    make: Callable[[str], Program]
    gpu_only: bool = True
    tf32: bool = False


def gemm(dtype: torch.dtype, m: int, n: int, k: int) -> Callable[[str], Program]:
    """A gemm of random matrices."""

    def make(device: str) -> Program:
        a = torch.randn(m, k, device=device).to(dtype)
        b = torch.randn(k, n, device=device).to(dtype)
        return lambda: torch.mm(a, b)

    return make


def int8_gemm(device: str) -> Program:
    """`_int_mm`, which is what quantized linear layers use."""
    a = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=device)
    b = torch.randint(-100, 100, (4096, 4096), dtype=torch.int8, device=device).t()
    return lambda: torch._int_mm(a, b)


def fp8_gemm(device: str) -> Program:
    """`_scaled_mm` with one scale a tensor."""
    a = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def batched_gemm(dtype: torch.dtype, side: int) -> Callable[[str], Program]:
    """A batch of gemms, as attention without a fused kernel runs."""

    def make(device: str) -> Program:
        a = torch.randn(48, side, 64, device=device).to(dtype)
        b = torch.randn(48, 64, side, device=device).to(dtype)
        return lambda: torch.bmm(a, b)

    return make


def attention(backend: str, dtype: torch.dtype, causal: bool) -> Callable[[str], Program]:
    """Attention forward and backward with one of PyTorch's kernels."""

    def make(device: str) -> Program:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.randn(4, 16, 1024, 64, device=device).to(dtype).requires_grad_() for _ in range(3))

        def run() -> None:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                nn.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

        return run

    return make


def convolution(dtype: torch.dtype, channels_last: bool, channels: int = 64) -> Callable[[str], Program]:
    """A convolution forward and backward, in one memory format."""

    def make(device: str) -> Program:
        form = torch.channels_last if channels_last else torch.contiguous_format
        x = torch.randn(16, channels, 56, 56, device=device).to(dtype).to(memory_format=form).requires_grad_()
        layer = torch.nn.Conv2d(channels, 2 * channels, 3, padding=1).to(device, dtype).to(memory_format=form)
        return lambda: layer(x).sum().backward()

    return make


def depthwise(device: str) -> Program:
    """A depthwise convolution, which Tensor Cores cannot help."""
    x = torch.randn(16, 128, 56, 56, device=device)
    layer = torch.nn.Conv2d(128, 128, 3, padding=1, groups=128).to(device)
    return lambda: layer(x).sum().backward()


def recurrent(device: str) -> Program:
    """An LSTM: cuDNN's persistent kernels in half precision."""
    layer = torch.nn.LSTM(256, 256, 2).to(device, torch.float16)
    x = torch.randn(32, 16, 256, device=device).to(torch.float16)
    return lambda: layer(x)


def scaled_rows_gemm(device: str) -> Program:
    """`_scaled_mm` with a scale a row and a column, as in fp8 training recipes."""
    a = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(4096, 4096, device=device).to(torch.float8_e4m3fn).t()
    rows, columns = torch.ones(4096, 1, device=device), torch.ones(1, 4096, device=device)
    return lambda: torch._scaled_mm(a, b, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True)


def grouped_gemm(device: str) -> Program:
    """`_grouped_mm`: a product for each expert of a mixture, of uneven numbers of tokens."""
    counts = torch.tensor([512, 256, 768, 512, 128, 896, 512, 512], device=device)
    a = torch.randn(int(counts.sum()), 1024, device=device, dtype=torch.bfloat16)
    b = torch.randn(len(counts), 4096, 1024, device=device, dtype=torch.bfloat16).transpose(1, 2)
    ends = counts.cumsum(0).to(torch.int32)
    return lambda: torch._grouped_mm(a, b, offs=ends)


def sparse_gemm(device: str) -> Program:
    """A product with a 2:4 sparse matrix."""
    mask = torch.tensor([0, 0, 1, 1], device=device).tile(2048, 512).bool()
    weight = torch.randn(2048, 2048, device=device, dtype=torch.float16) * mask
    sparse = torch.sparse.to_sparse_semi_structured(weight)
    x = torch.randn(2048, 2048, device=device, dtype=torch.float16)
    return lambda: torch.mm(sparse, x)


def fused_epilogue(dtype: torch.dtype) -> Callable[[str], Program]:
    """A product whose bias and GELU run in its kernel."""

    def make(device: str) -> Program:
        x, weight = (torch.randn(2048, 2048, device=device).to(dtype) for _ in range(2))
        bias = torch.randn(2048, device=device).to(dtype)
        return lambda: torch._addmm_activation(bias, x, weight, use_gelu=True)

    return make


def wide_attention(device: str) -> Program:
    """Grouped-query attention with heads of 128, as in large language models."""
    q = torch.randn(2, 32, 2048, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(2, 8, 2048, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    return lambda: nn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()


def masked_attention(device: str) -> Program:
    """Attention with a mask tensor, for which there is no flash kernel."""
    q, k, v = (torch.randn(4, 16, 1024, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    mask = torch.rand(4, 1, 1024, 1024, device=device) > 0.5
    return lambda: nn.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def any_convolution(
    layer: Callable[[], torch.nn.Module], shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False
) -> Callable[[str], Program]:
    """A convolution layer forward and backward."""

    def make(device: str) -> Program:
        module, x = layer().to(device, dtype), torch.randn(*shape, device=device).to(dtype)
        if channels_last:
            module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        x.requires_grad_()
        return lambda: module(x).sum().backward()

    return make


def normalizations(dtype: torch.dtype) -> Callable[[str], Program]:
    """Layer, RMS, group and batch normalization, forward and backward, and a cross entropy."""

    def make(device: str) -> Program:
        x = torch.randn(16, 64, 56, 56, device=device).to(dtype).requires_grad_()
        weight, target = torch.ones(56, device=device, dtype=dtype), torch.randint(64, (16, 56, 56), device=device)
        batch = torch.nn.BatchNorm2d(64).to(device)

        def run() -> None:
            parts = [nn.layer_norm(x, (56,), weight), nn.rms_norm(x, (56,), weight), nn.group_norm(x, 8), batch(x)]
            (sum(part.float().mean() for part in parts) + nn.cross_entropy(x.float(), target)).backward()

        return run

    return make


def sorts_and_indices(device: str) -> Program:
    """What CUB and index kernels do: sort, scan, selection, embedding with its backward, scatter."""
    x, index = torch.randn(1 << 20, device=device), torch.randint(1 << 14, (1 << 16,), device=device)
    table = torch.randn(1 << 14, 64, device=device, requires_grad=True)

    def run() -> None:
        x.sort(), x.cumsum(0), x.topk(64), (x > 0).nonzero(), index.bincount(minlength=1 << 14)
        nn.embedding(index, table).sum().backward()
        torch.zeros(1 << 14, device=device).index_add_(0, index, x[: len(index)])

    return run


def optimizer(**choice: bool) -> Callable[[str], Program]:
    """A step of AdamW over 64 small parameters."""

    def make(device: str) -> Program:
        parameters = [torch.randn(256, 256, device=device, requires_grad=True) for _ in range(64)]
        for each in parameters:
            each.grad = torch.randn_like(each)
        return torch.optim.AdamW(parameters, **choice).step

    return make


def replayed_graph(device: str) -> Program:
    """A CUDA graph of a small network: kernels without a launching op."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).to(device, torch.bfloat16)
    x = torch.randn(256, 512, device=device, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(x)
    return graph.replay


def compiled(mode: str) -> Callable[[str], Program]:
    """A compiled feed-forward block with a norm: Triton's pointwise, reduction and persistent kernels."""

    def make(device: str) -> Program:
        block = torch.nn.Sequential(
            torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
        ).to(device, torch.bfloat16)
        x = torch.randn(2048, 1024, device=device, dtype=torch.bfloat16)
        program = torch.compile(block, mode=mode)
        return lambda: program(x).sum().backward()

    return make


def add_distance(score: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """A bias that grows with the distance of query and key; indices are of batch, head, query and key."""
    return score + 0.01 * (indices[2] - indices[3])


def compiled_attention(device: str) -> Program:
    """FlexAttention: a Triton template."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(2, 8, 1024, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    program = torch.compile(flex_attention)
    return lambda: program(q, k, v, score_mod=add_distance)


def cases() -> Iterator[Case]:
    """Yield all cases, first what is surest to run; a case has the name of its file."""
    yield from products_and_attention()
    yield from other_kernels()
    # Compiling takes seconds.
    yield Case("compiled-block", compiled("default"))
    yield Case("compiled-block-cuda-graphs", compiled("reduce-overhead"))
    yield Case("flex-attention", compiled_attention)


def other_kernels() -> Iterator[Case]:
    """Yield the cases of fp8, groups, sparse products, further convolutions, norms, indices and optimizers."""
    half, single = torch.bfloat16, torch.float32
    yield Case("mm-fp8-rows", scaled_rows_gemm)
    yield Case("mm-grouped-bf16", grouped_gemm)
    yield Case("mm-sparse-fp16", sparse_gemm)
    for n in (2044, 2046, 2047):  # multiples of 4, 2 and 1
        yield Case(f"mm-bf16-n{n}", gemm(half, 2048, n, 2048))
        yield Case(f"mm-tf32-n{n}", gemm(single, 2048, n, 2048), tf32=True)
    yield Case("mm-bf16-gelu", fused_epilogue(half))
    yield Case("mm-fp32-gelu", fused_epilogue(single))
    yield Case("mm-complex", gemm(torch.complex64, 1024, 1024, 1024))
    yield Case("sdpa-gqa-128", wide_attention)
    yield Case("sdpa-mask", masked_attention)
    conv2d, conv1d, conv3d = torch.nn.Conv2d, torch.nn.Conv1d, torch.nn.Conv3d
    stem = any_convolution(lambda: conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224), single)
    yield Case("conv-stem-fp32", stem)
    yield Case("conv-stem-tf32", stem, tf32=True)
    for last in (False, True):
        word = "channels-last" if last else "nchw"
        yield Case(
            f"conv-stem-bf16-{word}", any_convolution(lambda: conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224), half, last)
        )
        yield Case(f"conv-1x1-bf16-{word}", any_convolution(lambda: conv2d(256, 64, 1), (16, 256, 28, 28), half, last))
        yield Case(
            f"conv-one-image-bf16-{word}", any_convolution(lambda: conv2d(64, 64, 3), (1, 64, 14, 14), half, last)
        )
    yield Case(
        "conv-grouped-bf16", any_convolution(lambda: conv2d(128, 128, 3, groups=32), (16, 128, 28, 28), half, True)
    )
    yield Case("conv-tf32-nchw", convolution(single, False), tf32=True)
    yield Case("conv1d-bf16", any_convolution(lambda: conv1d(80, 256, 3), (8, 80, 3000), half))
    yield Case("conv3d-bf16", any_convolution(lambda: conv3d(32, 32, 3), (2, 32, 16, 28, 28), half))
    yield Case(
        "conv-transposed-bf16", any_convolution(lambda: torch.nn.ConvTranspose2d(64, 32, 2, 2), (8, 64, 28, 28), half)
    )
    yield Case("norms-fp32", normalizations(single))
    yield Case("norms-bf16", normalizations(half))
    yield Case("sorts-and-indices", sorts_and_indices, gpu_only=False)
    yield Case("adamw-loop", optimizer(foreach=False), gpu_only=False)
    yield Case("adamw-foreach", optimizer(foreach=True))
    yield Case("adamw-fused", optimizer(fused=True))
    yield Case("cuda-graph", replayed_graph)


def products_and_attention() -> Iterator[Case]:
    """Yield the cases of matrix products, attention, convolutions and a recurrent layer."""
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    for gpu_only, dtype, word in ((False, single, "fp32"), (False, half, "bf16"), (True, torch.float16, "fp16")):
        yield Case(f"mm-{word}", gemm(dtype, 2048, 2048, 2048), gpu_only=gpu_only)
        yield Case(f"mm-{word}-unaligned", gemm(dtype, 2048, 2049, 2048), gpu_only=gpu_only)
        yield Case(f"mm-{word}-unaligned-k", gemm(dtype, 2048, 2048, 2049))
    yield Case("mm-fp64", gemm(double, 2048, 2048, 2048))
    yield Case("mm-fp64-unaligned", gemm(double, 2048, 2049, 2048))
    yield Case("mm-tf32", gemm(single, 4096, 4096, 4096), tf32=True)
    yield Case("mm-tf32-unaligned", gemm(single, 4096, 4097, 4096), tf32=True)
    yield Case("mm-bf16-vocabulary", gemm(half, 4096, 30522, 768))
    yield Case("mm-bf16-vocabulary-padded", gemm(half, 4096, 30528, 768))
    yield Case("mm-bf16-vector", gemm(half, 1, 4096, 4096))
    yield Case("mm-int8", int8_gemm)
    yield Case("mm-fp8", fp8_gemm)
    yield Case("bmm-bf16", batched_gemm(half, 512), gpu_only=False)
    yield Case("bmm-bf16-unaligned", batched_gemm(half, 513), gpu_only=False)
    yield Case("sdpa-math", attention("MATH", half, False), gpu_only=False)
    for backend, word in (
        ("FLASH_ATTENTION", "flash"),
        ("EFFICIENT_ATTENTION", "efficient"),
        ("CUDNN_ATTENTION", "cudnn"),
    ):
        yield Case(f"sdpa-{word}", attention(backend, half, False))
        yield Case(f"sdpa-{word}-causal", attention(backend, half, True))
    yield Case("sdpa-efficient-fp32", attention("EFFICIENT_ATTENTION", single, False))
    yield Case("sdpa-efficient-fp32-tf32", attention("EFFICIENT_ATTENTION", single, False), tf32=True)
    for dtype, word in ((single, "fp32"), (half, "bf16")):
        for last in (False, True):
            name = f"conv-{word}-{'channels-last' if last else 'nchw'}"
            yield Case(name, convolution(dtype, last), gpu_only=dtype is half)
    yield Case("conv-tf32-channels-last", convolution(single, True), tf32=True)
    yield Case("conv-bf16-unaligned-channels", convolution(half, True, 61))
    yield Case("conv-depthwise", depthwise, gpu_only=False)
    yield Case("lstm-fp16", recurrent)
