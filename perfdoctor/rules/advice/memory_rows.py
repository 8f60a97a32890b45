"""Advice about allocations of memory and about compilation in steady steps: PD107, PD108."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, ENGINES, rows_of

_EXPANDABLE = (Action("allocator", "expandable_segments"),)
_ALLOCATOR = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
_ALLOCATOR_ON_AMD = "https://github.com/pytorch/pytorch/pull/173330"

MEMORY_ROWS = (
    *rows_of(
        "allocator calls the driver",
        (
            When(uses=ENGINES),
            "Leave the engine less memory for its cache, so that its steps find memory.",
            "vllm serve ... --gpu-memory-utilization 0.85   # SGLang: --mem-fraction-static 0.8",
            pages.SGLANG,
        ),
        Row(
            ANY,
            "Allocate once: warm up with the largest input, keep input sizes few, leave memory free.",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...",
            _ALLOCATOR,
            since="PyTorch 2.1",
            actions=_EXPANDABLE,
        ),
    ),
    *rows_of(
        "allocator calls the driver, on an AMD device",
        Row(
            When(torch_from="2.12"),
            "Allocate once: warm up with the largest input, keep input sizes few, leave memory free.",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...",
            _ALLOCATOR_ON_AMD,
            actions=_EXPANDABLE,
        ),
        (
            ANY,
            "Allocate once: warm up with the largest input, keep input sizes few, leave memory free. Expandable "
            "segments are there on ROCm from PyTorch 2.12 on.",
            None,
            _ALLOCATOR_ON_AMD,
        ),
    ),
    *rows_of(
        "recompiles",
        Row(
            When(uses=ENGINES),
            "Send the engine inputs of few sizes before it serves; TORCH_LOGS=recompiles names the guard that failed.",
            "TORCH_LOGS=recompiles python ...",
            pages.DYNAMIC_SHAPES,
            since="PyTorch 2.1",
        ),
        Row(
            ANY,
            "Pad inputs to few sizes, mark sizes that change as dynamic, and pass numbers that change as tensors. "
            "TORCH_LOGS=recompiles names the guard that failed.",
            "torch._dynamo.mark_dynamic(x, 0)           # or torch.compile(model, dynamic=True)",
            pages.DYNAMIC_SHAPES,
            since="PyTorch 2.0",
            actions=(Action("compile", "dynamic"),),
        ),
    ),
)
