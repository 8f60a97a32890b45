"""Advice about pauses of the CPU that the GPU waits for, by the kind of work in them: PD103.

The kinds are those of `perfdoctor.trace.activity_kinds`. `{ahead}` is what the rows of "input prepared on the CPU" say.
"""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import When
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, rows_of
from perfdoctor.trace import activity_kinds as kinds

_GRAPHS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"
_LAZY_LOADING = "https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html"
_RECOMPILES = "https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html"
_ALLOCATOR = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
_GARBAGE = "https://docs.python.org/3/library/gc.html"
_CHECKPOINT = "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html"
_SAFETENSORS = "https://huggingface.co/docs/safetensors/index"
_TOKENIZERS = "https://huggingface.co/docs/transformers/fast_tokenizers"
_DECODING = "https://docs.pytorch.org/vision/stable/generated/torchvision.io.decode_jpeg.html"
_IMAGE_PROCESSOR = "https://huggingface.co/docs/transformers/v4.47.0/main_classes/image_processor"
_TENSOR = "https://docs.pytorch.org/docs/stable/generated/torch.tensor.html"
_LOADER = "https://docs.pytorch.org/docs/stable/data.html"
_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_STACKS = "https://docs.pytorch.org/docs/stable/profiler.html"
_VLLM = "https://docs.vllm.ai/en/v0.10.2/configuration/engine_args.html"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_OPTIM = "https://docs.pytorch.org/docs/stable/optim.html"
_CONDITION = "https://docs.python.org/3/library/threading.html"

_MORE_REQUESTS = "More requests at a time make each pause count less."
_OVERLAPS = (
    (
        When(uses=("vLLM",)),
        f"Let the engine schedule the next batch while the GPU works on this one. {_MORE_REQUESTS}",
        "vllm serve ... --async-scheduling",
        "vLLM 0.10",
        _VLLM,
    ),
    (
        When(uses=("SGLang",)),
        "The engine schedules the next batch while the GPU works on this one, if nothing turns that off. "
        f"{_MORE_REQUESTS}",
        "python -m sglang.launch_server ...   # without --disable-overlap-schedule",
        "",
        _SGLANG,
    ),
    (
        When(uses=("TensorRT-LLM",)),
        "The engine schedules the next batch while the GPU works on this one, if nothing turns that off. "
        f"{_MORE_REQUESTS}",
        "LLM(..., disable_overlap_scheduler=False)",
        "TensorRT-LLM 1.0",
        _TENSORRT_LLM,
    ),
)
_LAUNCH = "The launch itself takes that long, and the GPU has nothing else to do."

PAUSE_ROWS = (
    *rows_of(
        f"pause: {kinds.GRAPH_CAPTURE}",
        (
            ANY,
            "A graph is captured once for each function and input shape, and replayed afterwards. Run every shape "
            "before the loop, and record after that. If graphs are still captured later, pad inputs to few shapes.",
            None,
            "",
            _GRAPHS,
        ),
    ),
    *rows_of(
        f"pause: {kinds.MODULE_LOAD}",
        (
            ANY,
            "The driver loads a module at the first launch of one of its kernels: that takes milliseconds once, and "
            "microseconds afterwards. Run every shape once before the loop, and record after that{eager}.",
            None,
            "",
            _LAZY_LOADING,
        ),
    ),
    *rows_of(
        f"pause: {kinds.COMPILATION}",
        (
            ANY,
            "Compilation belongs to warm-up: run every input shape once, and record after that. If it recurs, "
            "TORCH_LOGS=recompiles names what changed.",
            None,
            "",
            _RECOMPILES,
        ),
    ),
    *rows_of(
        f"pause: {kinds.ALLOCATION}",
        (
            ANY,
            "Leave memory to PyTorch's caching allocator: no empty_cache() in the loop, and no "
            "PYTORCH_NO_CUDA_MEMORY_CACHING or PYTORCH_NO_HIP_MEMORY_CACHING in the environment.",
            None,
            "",
            _ALLOCATOR,
        ),
    ),
    *rows_of(
        f"pause: {kinds.GARBAGE_COLLECTION}",
        (
            ANY,
            "Collect at a time that you choose, such as every 1000 {units}, on all ranks at once; gc.freeze() after "
            "set-up takes the model out of later collections.",
            "gc.disable()                               # and gc.collect() every N {units}",
            "",
            _GARBAGE,
        ),
    ),
    *rows_of(
        f"pause: {kinds.CHECKPOINT}",
        (
            When(phases=FORWARD),
            "Load it before the loop; safetensors maps the file and reads only what is used.",
            None,
            "",
            _SAFETENSORS,
        ),
        (
            ANY,
            "Save less often, or copy the state to the CPU and write it from another thread: "
            "torch.distributed.checkpoint.async_save does so.",
            None,
            "PyTorch 2.4",
            _CHECKPOINT,
        ),
    ),
    *rows_of(
        f"pause: {kinds.LOGGING}",
        (ANY, "Log every N {units}, and write from another thread.", None, "", _TUNING),
    ),
    *rows_of(
        f"pause: {kinds.TOKENIZING}",
        (
            ANY,
            "{ahead} Or tokenize the data set once and store it; fast tokenizers take batches.",
            None,
            "",
            _TOKENIZERS,
        ),
    ),
    *rows_of(
        f"pause: {kinds.IMAGE_DECODING}",
        (ANY, "{ahead} Or decode on the GPU (nvJPEG, NVDEC).", None, "", _DECODING),
    ),
    *rows_of(
        f"pause: {kinds.LISTS_TO_TENSORS}",
        (
            ANY,
            "torch.tensor() reads lists element by element. Keep numbers in one NumPy array or tensor from the start.",
            "x = torch.from_numpy(array)                # instead of torch.tensor(list)",
            "",
            _TENSOR,
        ),
    ),
    *rows_of(f"pause: {kinds.FILE_OR_SOCKET}", (ANY, "{ahead} Reading needs no GPU.", None, "", _LOADER)),
    *rows_of(
        f"pause: {kinds.LOCK_WAIT}",
        (
            ANY,
            "See what the other thread does meanwhile: the loop waits for its lock or queue.",
            None,
            "",
            _CONDITION,
        ),
    ),
    *rows_of(f"pause: {kinds.SLEEP}", (ANY, "Wait for the event itself instead of sleeping.", None, "", _CONDITION)),
    *rows_of(
        f"pause: {kinds.PREPROCESSING}",
        (
            When(phases=FORWARD, uses=("Hugging Face Transformers", "Hugging Face pipeline")),
            "{ahead} Or resize on the GPU: some models have an image processor that does.",
            'inputs = processor(images, device="cuda")   # made with use_fast=True; from 5.0 on backend="torchvision"',
            "transformers 4.47",
            _IMAGE_PROCESSOR,
        ),
        (
            ANY,
            "{ahead} Or resize and normalise on the GPU, as tensors rather than images.",
            None,
            "",
            "https://docs.pytorch.org/vision/stable/transforms.html",
        ),
    ),
    *rows_of(
        f"pause: {kinds.GRAPH_LAUNCH}",
        *((when, f"{_LAUNCH} {sentence}", code, since, source) for when, sentence, code, since, source in _OVERLAPS),
        (
            ANY,
            f"{_LAUNCH} Launch the next graph before this one is done, and read no result in between; fewer nodes in "
            "the graph (fused kernels) shorten the launch.",
            None,
            "",
            _GRAPHS,
        ),
    ),
    *rows_of(
        f"pause: {kinds.BATCH_SCHEDULING}",
        *_OVERLAPS,
        (ANY, f"Schedule the next batch while the GPU works on this one. {_MORE_REQUESTS}", None, "", _VLLM),
    ),
    *rows_of(
        "pause: nothing recorded",
        (
            ANY,
            "No op, function or range takes most of this time: record with Python stacks (with_stack=True) to see "
            "which code runs in it.",
            None,
            "",
            _STACKS,
        ),
    ),
    *rows_of(
        "pause: set-up for a shape",
        (
            ANY,
            "Elsewhere in this trace {what} takes {usual}, here {here}: a library sets something up for a shape that "
            "it sees for the first time. Run every shape once before the loop, and record after that; if it comes "
            "back, few input shapes keep it rare.",
            None,
            "",
            "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark",
        ),
    ),
    *rows_of(
        "pause: an op",
        (
            ANY,
            "The CPU takes longer for this op than the GPU for all that is queued: call it less often, on fewer and "
            "larger tensors, or move it out of the loop.",
            None,
            "",
            _TUNING,
        ),
    ),
    *rows_of(
        "pause: the optimizer",
        (
            ANY,
            "The optimizer's ops take longer on the CPU than on the GPU: a fused implementation, where the optimizer "
            "has one, launches a few kernels for all parameters.",
            None,
            "",
            _OPTIM,
        ),
    ),
    *rows_of(
        "pause: a range",
        (
            ANY,
            "No single op takes most of this time: it is many ops, Python, or waiting. Record with Python stacks "
            "(with_stack=True) to see which code it is, then move it out of the loop.",
            None,
            "",
            _STACKS,
        ),
    ),
    *rows_of(
        "pause: code of the model",
        (
            When(uses=ENGINES),
            "The model's own code takes longer here than the GPU for what is queued: let the engine run it in CUDA "
            "graphs, or serve more requests at a time.",
            None,
            "",
            _VLLM,
        ),
        (
            ANY,
            "The model's own code takes longer here than the GPU for what is queued: fewer and larger ops, or compiled "
            "code, shorten it. Python stacks, where they were recorded, make it look slower than it is.",
            None,
            "",
            _TUNING,
        ),
    ),
    *rows_of(
        "pause: other code",
        (ANY, "Move this work out of the loop: into another thread or process, or before it.", None, "", _TUNING),
    ),
    *rows_of(
        "pause: other code, beside a DataLoader",
        (
            ANY,
            "Move this work out of the loop: into DataLoader workers, another thread, or before the loop.",
            None,
            "",
            _LOADER,
        ),
    ),
)
"""What to do about pauses."""
