"""Advice about launches that the GPU waits for: PD104."""

from __future__ import annotations

from perfdoctor.analysis.context.name_signs import SCHEDULES_AHEAD
from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, ENGINES, MAIN_SHARE, TOO_OLD_TO_COMPILE, ZERO, rows_of

_COMPILED = (Action("compile", "default"),)
_WITH_GRAPHS = (Action("compile", "reduce-overhead"),)
_DYNAMIC = (Action("compile", "dynamic"),)
_TENSORRT = "https://docs.pytorch.org/TensorRT/tutorials/runtime_opt/cuda_graphs.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/1.0.0/examples/llm_runtime.html"


_MORE_WORK = "Give each op more work: a bigger batch, fewer and larger layers, whole tensors in place of their rows."
_GRAPHS_ALREADY = "The kernels are in graphs already; what is left is what the CPU does between two graph launches."
_AFTER_GRAPHS = (
    When(min_graphed=MAIN_SHARE),
    f"Capture more in one graph, or prepare the next one's inputs while this one runs. {_GRAPHS_ALREADY}",
    None,
    pages.CUDA_GRAPHS,
)
_WITHOUT_TRITON = Row(
    TOO_OLD_TO_COMPILE,
    "Launch many kernels at once by CUDA graphs, with inputs of few sizes; what else torch.compile does needs Volta or "
    "a newer device.",
    'model = torch.compile(model, backend="cudagraphs")   # or torch.cuda.make_graphed_callables',
    pages.CUDA_GRAPHS,
    since="PyTorch 2.0",
)
_ENGINE_LAUNCHES = (
    (
        When(uses=(SCHEDULES_AHEAD,), min_graphed=MAIN_SHARE),
        f"Serve more requests at a time: the engine schedules ahead already. {_GRAPHS_ALREADY}",
        None,
        pages.VLLM_TUNING,
    ),
    Row(
        When(uses=("vLLM",), min_graphed=MAIN_SHARE),
        "Let the engine schedule the next step while this one runs, or serve more requests at a time. "
        f"{_GRAPHS_ALREADY}",
        "vllm serve ... --async-scheduling   # the default from vLLM 0.14 on",
        pages.VLLM,
        since="vLLM 0.10",
    ),
    (
        When(uses=("vLLM",)),
        "Let the engine compile the model and run it in CUDA graphs: eager mode turns both off.",
        "vllm serve ...   # without --enforce-eager",
        pages.VLLM_COMPILE,
    ),
    (
        When(uses=("SGLang",), min_graphed=MAIN_SHARE),
        "See that the engine schedules the next step while this one runs, or serve more requests at a time. "
        f"{_GRAPHS_ALREADY}",
        "python -m sglang.launch_server ...   # without --disable-overlap-schedule",
        pages.SGLANG,
    ),
    (
        When(uses=("SGLang",)),
        "Let the engine run the model in CUDA graphs: they are disabled, or the batch is larger than those captured.",
        "python -m sglang.launch_server ... --cuda-graph-max-bs N   # without --disable-cuda-graph",
        pages.SGLANG,
    ),
    Row(
        When(uses=("TensorRT-LLM",)),
        "Let the engine run the model in CUDA graphs, or serve more requests at a time.",
        "LLM(..., cuda_graph_config=CudaGraphConfig(enable_padding=True))",
        _TENSORRT_LLM,
        since="TensorRT-LLM 1.0",
    ),
    (
        When(uses=("TensorRT",)),
        "Put the engine's launches into a CUDA graph, or give it more inputs at a time.",
        "with torch_tensorrt.runtime.enable_cudagraphs(model) as model: ...",
        _TENSORRT,
    ),
)
_WRAPPED_LAUNCHES = (
    (
        When(uses=("Megatron",)),
        "Let Megatron launch many kernels at once, by CUDA graphs.",
        "--cuda-graph-impl local   # older releases: --enable-cuda-graph",
        pages.MEGATRON,
    ),
    Row(
        When(uses=ZERO),
        "Let DeepSpeed compile the model: that leaves out Python and launches fewer kernels.",
        "model_engine.compile()",
        pages.DEEPSPEED_ENGINE,
        since="PyTorch 2.0",
        actions=_COMPILED,
    ),
    Row(
        When(uses=("FSDP",)),
        "Compile each block before it is sharded: that leaves out Python and launches fewer kernels.",
        "block = torch.compile(block); fully_shard(block)",
        pages.TORCHTITAN,
        since="PyTorch 2.0",
    ),
    Row(
        When(uses=("Hugging Face Transformers",), decodes=True),
        "Decode with a cache of fixed size, so that the step can be compiled into CUDA graphs: the default cache grows "
        "with every token.",
        'model.generation_config.cache_implementation = "static"\n'
        'model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)',
        pages.GENERATION,
        since="PyTorch 2.0",
        actions=_WITH_GRAPHS,
    ),
    Row(
        When(uses=("Hugging Face Trainer",)),
        "Let the Trainer compile the model: that leaves out Python and launches fewer kernels.",
        "TrainingArguments(..., torch_compile=True)",
        pages.TRANSFORMERS_COMPILE,
        since="PyTorch 2.0",
        actions=_COMPILED,
    ),
    Row(
        When(uses=("Hugging Face pipeline",)),
        "Give the pipeline more inputs at a time, and compile its model: that leaves out Python and launches fewer "
        "kernels.",
        "pipe.model = torch.compile(pipe.model)",
        pages.TRANSFORMERS_COMPILE,
        since="PyTorch 2.0",
    ),
)

LAUNCH_ROWS = (
    *rows_of(
        "launch-bound",
        *_ENGINE_LAUNCHES,
        _AFTER_GRAPHS,
        _WITHOUT_TRITON,
        Row(
            When(min_compiled=MAIN_SHARE),
            'Put the kernels of the compiled code into CUDA graphs, by mode="reduce-overhead".',
            'model = torch.compile(model, mode="reduce-overhead")',
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=_WITH_GRAPHS,
        ),
        *_WRAPPED_LAUNCHES,
        Row(
            ANY,
            "Launch many kernels at once: torch.compile with CUDA graphs, or make_graphed_callables.",
            'model = torch.compile(model, mode="reduce-overhead")',
            pages.CUDA_GRAPHS,
            since="PyTorch 2.0",
            actions=_WITH_GRAPHS,
        ),
    ),
    *rows_of(
        "launch-bound, steps differ",
        *_ENGINE_LAUNCHES,
        _AFTER_GRAPHS,
        _WITHOUT_TRITON,
        Row(
            When(min_compiled=MAIN_SHARE),
            "Compile for sizes that change, or pad inputs to few sizes: steps launch differently, which CUDA graphs "
            "cannot.",
            "model = torch.compile(model, dynamic=True)",
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=_DYNAMIC,
        ),
        *_WRAPPED_LAUNCHES,
        Row(
            ANY,
            "Compile with dynamic=True, which leaves out Python and fuses kernels: steps launch differently, which "
            "CUDA graphs cannot.",
            "model = torch.compile(model, dynamic=True)",
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=_DYNAMIC,
        ),
    ),
    *rows_of(
        "launch-bound, syncs within",
        *_ENGINE_LAUNCHES,
        _AFTER_GRAPHS,
        (
            TOO_OLD_TO_COMPILE,
            "First remove the {syncs} in each {unit}: no CUDA graph can capture one. What else torch.compile does "
            "needs Volta or a newer device.",
            None,
            pages.CUDA_GRAPHS,
        ),
        Row(
            When(min_compiled=MAIN_SHARE),
            "First remove the {syncs} in each {unit}: no CUDA graph can capture one, and each breaks what is compiled.",
            "TORCH_LOGS=graph_breaks python ...",
            pages.GRAPH_BREAKS,
            since="PyTorch 2.0",
        ),
        *_WRAPPED_LAUNCHES,
        (
            ANY,
            "First remove the {syncs} in each {unit}: no CUDA graph can capture one. Until then torch.compile leaves "
            "out Python and launches fewer kernels between them.",
            None,
            pages.CUDA_GRAPHS,
        ),
    ),
    *rows_of(
        "launch-bound in Python",
        *_ENGINE_LAUNCHES,
        _AFTER_GRAPHS,
        _WITHOUT_TRITON,
        Row(
            When(min_compiled=MAIN_SHARE),
            "Find what breaks the graphs of the compiled code: most of the CPU time is Python.",
            "TORCH_LOGS=graph_breaks python ...",
            pages.GRAPH_BREAKS,
            since="PyTorch 2.0",
        ),
        *_WRAPPED_LAUNCHES,
        Row(
            ANY,
            "Compile the model, which leaves out Python and launches fewer kernels: most of the CPU time is Python.",
            'model = torch.compile(model, mode="reduce-overhead")',
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=_WITH_GRAPHS,
        ),
    ),
    *rows_of(
        "launch-bound: larger batch",
        (When(uses=ENGINES), "Or serve more requests at a time.", None, pages.VLLM_COMPILE),
        (
            ANY,
            "Or give each kernel more work by a larger batch: up to the size at which kernels fill the GPU it costs no "
            "time.",
            None,
            pages.CUDA_GRAPHS,
        ),
    ),
    *rows_of(
        "launch-bound: other ways",
        (
            When(phases=("training",), lacks=(*ENGINES, *ZERO, "Megatron")),
            "Or use a fused optimizer, which launches less.",
            None,
            pages.OPTIM,
        ),
        (ANY, "", None, pages.CUDA_GRAPHS),
    ),
    *rows_of(
        "bound by ops on the CPU",
        (When(uses=ENGINES), "Give each op more work: more requests at a time.", None, pages.VLLM_COMPILE),
        Row(
            ANY,
            # No code: no fix to rely on. A CNN took 0.74, a deep MLP 0.88, a tiny one 1.35, another 1.44 times as long.
            f"{_MORE_WORK} Or try torch.compile(model) and compare the steps after the first ones: they took 0.74 to "
            "1.44 times as long, measured on four programs. It needs a C++ compiler, and compiles for 6 to 15 s and "
            "more.",
            None,
            pages.COMPILE,
            since="PyTorch 2.0",
            actions=(Action("consider-compiling"),),
        ),
    ),
    *rows_of(
        "bound by ops on the CPU, not to be compiled",
        (When(uses=ENGINES), "Give each op more work: more requests at a time.", None, pages.VLLM_COMPILE),
        (ANY, _MORE_WORK, None, pages.COMPILE),
    ),
)
