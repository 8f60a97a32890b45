"""Advice about pauses of the CPU that the GPU waits for, by the kind of work in them: PD103.

The kinds are those of `perfdoctor.trace.activity_kinds`. `{ahead}` is what the rows of "input prepared on the CPU" say.
"""

from __future__ import annotations

from perfdoctor.analysis.context.name_signs import SCHEDULES_AHEAD
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, any_program, rows_of
from perfdoctor.trace import activity_kinds as kinds

_LAZY_LOADING = "https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html"
_ALLOCATOR = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
_GARBAGE = "https://docs.python.org/3/library/gc.html"
_SAFETENSORS = "https://huggingface.co/docs/safetensors/index"
_TOKENIZERS = "https://huggingface.co/docs/transformers/fast_tokenizers"
_DECODING = "https://docs.pytorch.org/vision/stable/generated/torchvision.io.decode_jpeg.html"
_IMAGE_PROCESSOR = "https://huggingface.co/docs/transformers/v4.47.0/main_classes/image_processor"
_TENSOR = "https://docs.pytorch.org/docs/stable/generated/torch.tensor.html"
_STACKS = "https://docs.pytorch.org/docs/stable/profiler.html"
_NSIGHT = "https://docs.nvidia.com/nsight-systems/UserGuide/index.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_CONDITION = "https://docs.python.org/3/library/threading.html"

_OF_PYTORCH = When(uses=("PyTorch",))
_RECORD_STACKS = (
    "torch.profiler.profile(..., with_stack=True)   # nsys profile --python-sampling=true --trace=cuda,nvtx,osrt"
)
_SAMPLE = "nsys profile --sample=process-tree --trace=cuda,nvtx,osrt ./program"
_MORE_REQUESTS = "More requests at a time make each pause count less."
_OVERLAPS = (
    (
        When(uses=(SCHEDULES_AHEAD,)),
        "Serve more requests at a time, so that a pass takes the GPU longer than the engine's own work takes the CPU: "
        "it schedules ahead already.",
        None,
        pages.VLLM_TUNING,
    ),
    Row(
        When(uses=("vLLM",)),
        f"Let the engine schedule the next batch while the GPU works on this one. {_MORE_REQUESTS}",
        "vllm serve ... --async-scheduling   # the default from vLLM 0.14 on",
        pages.VLLM,
        since="vLLM 0.10",
    ),
    (
        When(uses=("SGLang",)),
        "Let the engine schedule the next batch while the GPU works on this one: it does, if nothing turns that off. "
        f"{_MORE_REQUESTS}",
        "python -m sglang.launch_server ...   # without --disable-overlap-schedule",
        pages.SGLANG,
    ),
    Row(
        When(uses=("TensorRT-LLM",)),
        "Let the engine schedule the next batch while the GPU works on this one: it does, if nothing turns that off. "
        f"{_MORE_REQUESTS}",
        "LLM(..., disable_overlap_scheduler=False)",
        _TENSORRT_LLM,
        since="TensorRT-LLM 1.0",
    ),
)
_LAUNCH = "The launch itself takes this long, and the GPU has nothing else to do."

PAUSE_ROWS = (
    any_program(
        f"pause: {kinds.GRAPH_CAPTURE}",
        "Run every input shape before the loop, and record after that: a graph is captured once for each "
        "function and input shape, and replayed afterwards. If graphs are still captured later, pad inputs to "
        "few shapes.",
        None,
        pages.CUDA_GRAPHS,
    ),
    any_program(
        f"pause: {kinds.MODULE_LOAD}",
        "Run every shape once before the loop, and record after that: the driver loads a module at the first "
        "launch of one of its kernels, which takes milliseconds once{eager}.",
        None,
        _LAZY_LOADING,
    ),
    any_program(
        f"pause: {kinds.COMPILATION}",
        "Run every input shape once before the loop, and record after that: compilation belongs to warm-up. If "
        "it recurs, TORCH_LOGS=recompiles names what changed.",
        None,
        pages.DYNAMIC_SHAPES,
    ),
    any_program(
        f"pause: {kinds.ALLOCATION}",
        "Leave memory to PyTorch's caching allocator: no empty_cache() in the loop, and no "
        "PYTORCH_NO_CUDA_MEMORY_CACHING or PYTORCH_NO_HIP_MEMORY_CACHING in the environment.",
        None,
        _ALLOCATOR,
    ),
    any_program(
        f"pause: {kinds.GARBAGE_COLLECTION}",
        "Collect at a time that you choose, such as every 1000 {units}, on all ranks at once; gc.freeze() after "
        "set-up takes the model out of later collections.",
        "gc.disable()                               # and gc.collect() every N {units}",
        _GARBAGE,
    ),
    *rows_of(
        f"pause: {kinds.CHECKPOINT}",
        (
            When(phases=FORWARD),
            "Load the checkpoint before the loop; safetensors maps the file and reads only what is used.",
            None,
            _SAFETENSORS,
        ),
        Row(
            ANY,
            "Save less often, or copy the state to the CPU and write it from another thread: "
            "torch.distributed.checkpoint.async_save does so.",
            None,
            pages.CHECKPOINT,
            since="PyTorch 2.4",
        ),
    ),
    any_program(
        f"pause: {kinds.LOGGING}", "Log every N {units}, and write from another thread.", None, pages.TUNING_GUIDE
    ),
    any_program(
        f"pause: {kinds.TOKENIZING}",
        "{ahead} Or tokenize the data set once and store it; fast tokenizers take batches.",
        None,
        _TOKENIZERS,
    ),
    any_program(f"pause: {kinds.IMAGE_DECODING}", "{ahead} Or decode on the GPU (nvJPEG, NVDEC).", None, _DECODING),
    any_program(
        f"pause: {kinds.LISTS_TO_TENSORS}",
        "Keep numbers in one NumPy array or tensor from the start: torch.tensor() reads lists element by element.",
        "x = torch.from_numpy(array)                # instead of torch.tensor(list)",
        _TENSOR,
    ),
    any_program(
        f"pause: {kinds.ARCHIVE}",
        "{ahead} Or open the archive once, not for each item, and keep what it holds unpacked.",
        None,
        pages.DATA_LOADER,
    ),
    any_program(f"pause: {kinds.FILE_OR_SOCKET}", "{ahead} Reading needs no GPU.", None, pages.DATA_LOADER),
    any_program(
        f"pause: {kinds.CHILD_PROCESS}",
        "Start the process and go on with the next {unit}: ask for its result where it is needed, or start it once for "
        "all {units}.",
        "subprocess.Popen(...)   # in place of subprocess.run; poll() or wait() later",
        "https://docs.python.org/3/library/subprocess.html#popen-constructor",
    ),
    any_program(
        f"pause: {kinds.LOCK_WAIT}",
        "See what the other thread does meanwhile: the loop waits for its lock or queue.",
        None,
        _CONDITION,
    ),
    any_program(f"pause: {kinds.SLEEP}", "Wait for the event itself instead of sleeping.", None, _CONDITION),
    *rows_of(
        f"pause: {kinds.PREPROCESSING}",
        (
            When(phases=FORWARD, uses=("Hugging Face Transformers", "Hugging Face pipeline")),
            "{ahead} Or resize on the GPU: some models have an image processor that does, made with use_fast=True and "
            'called with device="cuda".',
            None,
            _IMAGE_PROCESSOR,
        ),
        (
            ANY,
            "{ahead} Or resize and normalise on the GPU, as tensors rather than images.",
            None,
            "https://docs.pytorch.org/vision/stable/transforms.html",
        ),
    ),
    *rows_of(
        f"pause: {kinds.ENVIRONMENT}",
        (
            ANY,
            "Step several environments at once, as arrays or in processes of their own: one forward pass then chooses "
            "the actions of all, and their steps run side by side.",
            "envs = gymnasium.vector.AsyncVectorEnv([make_env] * 8)",
            "https://gymnasium.farama.org/api/vector/async_vector_env/",
        ),
    ),
    *rows_of(
        f"pause: {kinds.GRAPH_LAUNCH}",
        *(Row(*row)._replace(sentence=f"{row[1]} {_LAUNCH}") for row in _OVERLAPS),
        (
            ANY,
            "Launch the next graph before this one is done, and read no result in between; fewer nodes in the graph "
            f"(fused kernels) shorten the launch. {_LAUNCH}",
            None,
            pages.CUDA_GRAPHS,
        ),
    ),
    *rows_of(
        f"pause: {kinds.BATCH_SCHEDULING}",
        *_OVERLAPS,
        (ANY, f"Schedule the next batch while the GPU works on this one. {_MORE_REQUESTS}", None, pages.VLLM),
    ),
    *rows_of(
        "pause: nothing recorded",
        (
            _OF_PYTORCH,
            "Record with Python stacks, to see which code runs here: no op, function or range takes most of this time.",
            _RECORD_STACKS,
            _STACKS,
        ),
        (
            ANY,
            "Record with samples of the CPU and calls of the system, to see which code runs here: no call, function or "
            "range takes most of this time.",
            _SAMPLE,
            _NSIGHT,
        ),
    ),
    any_program(
        "pause: set-up for a shape",
        "Run every shape once before the loop, and record after that: a library sets something up for a shape "
        "that it sees for the first time. Elsewhere in this trace {what} takes {usual}, here {here}; if that "
        "comes back, few input shapes keep it rare.",
        None,
        "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark",
    ),
    any_program(
        "pause: an op",
        "Call this op less often, on fewer and larger tensors, or move it out of the loop: the CPU takes longer "
        "for it than the GPU for all that is queued.",
        None,
        pages.TUNING_GUIDE,
    ),
    any_program(
        "pause: the optimizer",
        "Use a fused implementation, where the optimizer has one: it launches a few kernels for all parameters, "
        "and these ops take longer on the CPU than on the GPU.",
        None,
        pages.OPTIM,
    ),
    *rows_of(
        "pause: a range",
        (
            _OF_PYTORCH,
            "Record with Python stacks, to see which code of this range to move out of the loop. No single op takes "
            "most of this time: it is many ops, Python, or waiting.",
            _RECORD_STACKS,
            _STACKS,
        ),
        (
            ANY,
            "Record with samples of the CPU and calls of the system, to see which code of this range to move out of "
            "the loop: no single call takes most of this time.",
            _SAMPLE,
            _NSIGHT,
        ),
    ),
    *rows_of(
        "pause: code of the model",
        (
            When(uses=ENGINES),
            "Let the engine run the model in CUDA graphs, or serve more requests at a time: the model's own code "
            "takes longer here than the GPU for what is queued.",
            None,
            pages.VLLM,
        ),
        (
            ANY,
            "Shorten the model's own code, by fewer and larger ops or by compiling it: it takes longer here than the "
            "GPU for what is queued. Python stacks, where they were recorded, make it look slower than it is.",
            None,
            pages.TUNING_GUIDE,
        ),
    ),
    any_program(
        "pause: other code",
        "Move this work out of the loop: into another thread or process, or before it.",
        None,
        pages.TUNING_GUIDE,
    ),
    any_program(
        "pause: other code, beside a DataLoader",
        "Move this work out of the loop: into DataLoader workers, another thread, or before the loop.",
        None,
        pages.DATA_LOADER,
    ),
)
