"""What the CPU does in a function, op, call or range, by its name: the patterns of each kind of work, once.

Functions of a Python library stand as the profiler writes them, "file(line): function", those in C as
"<built-in method read of _io.BufferedReader object at 0x7f...>".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from perfdoctor.trace import vocabulary

GRAPH_CAPTURE = "graph capture"
MODULE_LOAD = "lazy module load"
COMPILATION = "compilation"
BUFFER_BROADCAST = "buffer broadcast"
ALLOCATION = "allocation without cache"
GARBAGE_COLLECTION = "garbage collection"
CHECKPOINT = "checkpoint"
LOGGING = "logging"
TOKENIZING = "tokenizing"
IMAGE_DECODING = "image decoding"
LISTS_TO_TENSORS = "Python lists to tensors"
ARCHIVE = "unpacking an archive"
FILE_OR_SOCKET = "file or socket wait"
CHILD_PROCESS = "wait for a child process"
LOCK_WAIT = "lock wait"
SLEEP = "sleep"
PREPROCESSING = "data preprocessing"
ENVIRONMENT = "environment step"
GRAPH_LAUNCH = "graph launch"
BATCH_SCHEDULING = "batch scheduling"

_BUILT_IN = r"^<built-in (function|method) "
# What serving engines do between two batches; not their loop, which is around everything.
_SCHEDULING = (
    r"sglang/srt/managers/\w+\.py\(\d+\): (get_next_batch|get_new_batch|update_running_batch|prepare_for_|"
    r"process_batch_result|process_input_requests|recv_requests|schedule)",
    r"vllm/v1/core/(sched|\w*kv_cache\w*)",
    r"vllm/v1/worker/\w+\.py\(\d+\): _bookkeeping",
    r"vllm/core/(scheduler|block)",
    r"tensorrt_llm/_torch/pyexecutor/\w+\.py\(\d+\): (_schedule|schedule_request|prepare_resources)",
)
_PREPARING = (
    r"sglang/srt/model_executor/\w+\.py\(\d+\): (replay_prepare|init_new|populate_from_forward_batch)",
    r"sglang/srt/layers/attention/\w+\.py\(\d+\): init_forward_metadata",
    r"vllm/v1/worker/\w+\.py\(\d+\): (_prepare_inputs|_update_states|_build_attention_metadata)",
    r"tensorrt_llm/_torch/pyexecutor/\w+\.py\(\d+\): _prepare",
)
# In the order in which they are asked: a checkpoint writes files, and preprocessing may read them or sleep.
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    GRAPH_CAPTURE: (
        r"torch/cuda/graphs\.py\(\d+\): (capture_begin|capture_end|make_graphed_callables)",
        r"^(cuda|cu|hip)GraphInstantiate",
    ),
    MODULE_LOAD: (r"^(cuda|cu|hip)(ModuleLoad|LibraryLoad|ModuleGetFunction|LibraryGetModule|KernelGetFunction)",),
    COMPILATION: (
        vocabulary.COMPILE_PHASE,
        r"torch/_dynamo/convert_frame\.py",
        r"torch/_inductor/(compile_fx|codecache|async_compile|scheduler)\.py",
        r"triton/compiler/",
        r"torch/utils/cpp_extension\.py\(\d+\): (load|_jit_compile)",
        r"torch/jit/_(script|trace)\.py",
    ),
    BUFFER_BROADCAST: (
        r"^aten::(un)?flatten_dense_tensors$",
        r"^c10d::broadcast_$",
        r"nn/parallel/distributed\.py\(\d+\): _sync_(module_)?buffers",
    ),
    ALLOCATION: (vocabulary.ALLOCATOR_CALL,),
    GARBAGE_COLLECTION: (rf"{_BUILT_IN}collect\b", r"^Python GC", vocabulary.COLLECT_MARK),
    CHECKPOINT: (
        r"torch/serialization\.py\(\d+\): _?(save|load)$",
        vocabulary.SAVE_MARK,
        r"torch/distributed/checkpoint/",
        r"\): _?(save|load)_(checkpoint|pretrained|model|state)\b",
        r"safetensors/\w+\.py\(\d+\): (save|load)",
    ),
    LOGGING: (
        r"(^|/)logging/__init__\.py\(",
        r"(^|/)json/(encoder\.py\(|__init__\.py\(\d+\): dumps?$)",
        rf"{_BUILT_IN}print\b",
        r"(^|/)(wandb|loguru|rich|mlflow|tensorboard)/",
        r"tqdm/\w+\.py\(\d+\): (update|display|refresh|status_printer)",
    ),
    TOKENIZING: (
        r"transformers/tokenization_",
        r"(^|/)(tokenizers|sentencepiece|tiktoken)/",
        r"\): (tokenize|batch_encode|encode_batch)",
    ),
    IMAGE_DECODING: (
        r"(^|/)PIL/(Image|ImageFile|\w+ImagePlugin)\.py\(\d+\): (open|load|decode)",
        r"ImagingDecoder",
        r"\b(imread|imdecode|read_image|decode_(image|jpeg|png|webp|video))\b",
        r"(^|/)(decord|torchcodec|imageio|torchvision/io)/",
        r"\): read_video",
    ),
    LISTS_TO_TENSORS: (rf"{_BUILT_IN}(tensor|as_tensor|FloatTensor|LongTensor|IntTensor|BoolTensor) of type",),
    # Asked before files, which archives are read from: their directory and what is inflated take cores, not the disk.
    ARCHIVE: (
        r"(^|/)(zipfile(/__init__)?|tarfile|gzip|bz2|lzma)\.py\(\d+\): "
        r"(_?read\w*|_RealGetContents|next|extract\w*|getmembers?|decompress)$",
        rf"{_BUILT_IN}decompress of (zlib|_bz2|_lzma)\.",
    ),
    # Asked before files, as its output is read, and before locks.
    CHILD_PROCESS: (
        r"(^|/)subprocess\.py\(\d+\): (wait|communicate|run|call|check_\w+|_wait|_try_wait)$",
        rf"{_BUILT_IN}(system|waitpid|wait4) of ",
        rf"{_BUILT_IN}(system|waitpid|wait4)>?$",
    ),
    FILE_OR_SOCKET: (
        vocabulary.FILE_SYNC_MARK,
        rf"{_BUILT_IN}(read\w*|write\w*|recv\w*|send\w*|open|poll|select|connect|accept|fsync|flush|dump|compress)\b",
        r"\): (savefig|imsave|imwrite|save_image|write_(png|jpeg|video))$",
        r"(^|/)(socket|ssl|selectors|http/client)\.py\(",
        r"(^|/)(numpy/lib/_?npyio|pandas/io/)",
        r"(^|/)(urllib3?|requests|fsspec|s3fs|gcsfs|botocore)/",
    ),
    LOCK_WAIT: (
        rf"{_BUILT_IN}(__enter__|acquire) of _?(thread|multiprocessing)\.",
        r"(^|/)threading\.py\(\d+\): (wait|join|acquire|_wait_for_tstate_lock)",
        r"(^|/)queue\.py\(\d+\): (get|put)",
        r"multiprocessing/synchronize\.py",
    ),
    SLEEP: (rf"{_BUILT_IN}sleep\b",),
    PREPROCESSING: (
        r"\): \w*(preprocess|augment|collate)\w*$",
        r"(image_processing|feature_extraction)_",
        r"(^|/)(torchvision/transforms|albumentations|kornia/augmentation)/",
    ),
    # Of reinforcement learning; a function `step` of the user's own could be a step of the training.
    ENVIRONMENT: (
        r"(^|/)(gym|gymnasium|pettingzoo|ale_py|dm_control|procgen|minigrid|vec_env|envs?)/.*\.py\(\d+\): step\w*$",
        r"env\w*\.py\(\d+\): step$",
    ),
    GRAPH_LAUNCH: (rf"{vocabulary.GRAPH_LAUNCH_CALL}$",),
    BATCH_SCHEDULING: (*_SCHEDULING, *_PREPARING),
}
KINDS = tuple(_PATTERNS)
"""Every kind of work, in the order in which they are asked: the first that takes most of the time is the answer."""
ENGINE_WORK: Mapping[str, tuple[str, ...]] = {
    "no_requests": (r"vllm/v1/engine/core\.py\(\d+\): _process_input_queue", r"^_fetch_new_requests$"),
    "detokenizing": (
        r"transformers/tokenization_\w+\.py\(\d+\): (batch_|_)?(decode|convert_(ids|tokens)_to_\w+)",
        r"vllm/v1/engine/(detokenizer|output_processor)\.py",
        r"sglang/srt/managers/detokenizer_manager\.py",
    ),
    "tokenizing": _PATTERNS[TOKENIZING],
    "speculating": (
        r"vllm/v1/(spec_decode/|sample/rejection_sampler)",
        r"sglang/srt/speculative/\w+\.py\(\d+\): (verify|prepare_for_\w+|\w*(accept|tree)\w*)$",
        r"tensorrt_llm/_torch/(speculative|pyexecutor)/\w+\.py\(\d+\): (sample_and_accept|prepare)_draft_tokens$",
        r"transformers/generation/candidate_generator|transformers/generation/utils\.py\(\d+\): _speculative_sampling$",
        r"^(v2_)?gpu_model_runner: draft",
    ),
    "sampling": (
        r"vllm/(v1/sample|model_executor/layers/sampler)",
        r"sglang/srt/(layers/sampler|sampling/|managers/overlap_utils\.py\(\d+\): set_)",
        r"tensorrt_llm/_torch/pyexecutor/sampler",
        r"transformers/generation/(logits_process|stopping_criteria)|diffusers/schedulers/",
        r"^(v2_)?gpu_model_runner: (sample|prompt_logprobs)|^_sample_async$",
    ),
    "messages": (
        r"(^|/)(zmq|msgspec|msgpack)/|multiprocessing/connection\.py|shm_broadcast\.py",
        r"vllm/v1/serial_utils\.py\(\d+\): (en|de)code",
    ),
    "preparing": (
        *_PREPARING,
        r"sglang/srt/managers/overlap_utils\.py\(\d+\): resolve_",
        r"vllm/v1/worker/\w+\.py\(\d+\): _preprocess",
        r"^(v2_)?gpu_model_runner: (preprocess|prepare_|state_update|dispatch|mm_embeddings)",
        r"^_prepare_(tp_)?inputs$",
        vocabulary.PREPARE_GENERATION_FRAME,
        r"transformers/generation/utils\.py\(\d+\): _update_model_kwargs_for_generation$",
    ),
    "scheduling": (*_SCHEDULING, r"^schedule: ", r"^(v2_)?gpu_model_runner: bookkeep", r"^_schedule$"),
}
"""What engines and loops do beside the model, in the order in which they are asked: patterns of frames and ranges.

Waiting for "no_requests" means that there is nothing to serve.
"""
IDLE_ENGINE = r"sglang/srt/managers/scheduler\w*\.py\(\d+\): (self_check_during_idle|maybe_sleep_on_idle)"
"""Pattern of the frames of an engine that goes round its loop with nothing to serve."""
ENGINE_MODEL, BETWEEN_PASSES = "model", "between"
"""Work of an engine's CPU that has no other name: within the range of a pass, and outside of them."""
HAPPENING_ONCE = frozenset({GRAPH_CAPTURE, MODULE_LOAD, COMPILATION})
"""Kinds of work that a program does when it uses something for the first time."""

# Names of functions in C end with the address of their object, which differs from object to object.
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")
_MODULE = re.compile(r"^nn\.Module: (?P<name>.+?)(_\d+)?$")
_PLAIN_FRAME = re.compile(r"^(?:.*[/\\])?(?P<file>[^/\\(]+)\((?P<line>\d+)\): (?P<function>.+)$")


@lru_cache(maxsize=1 << 14)
def kinds_of_work(name: str) -> tuple[str, ...]:
    """The kinds of work that the name of a function, op, call or range means; mostly none."""
    return tuple(kind for kind, pattern in _compile_patterns() if pattern.search(name))


@cache
def _compile_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The pattern of each kind; compiled at its first use, because it takes 4 ms and most programs do not pause."""
    return tuple((kind, re.compile("|".join(patterns))) for kind, patterns in _PATTERNS.items())


def without_address(name: str) -> str:
    """The name of a function without the address of its object: one name for all objects of a class."""
    return _ADDRESS.sub("", name) if " object at 0x" in name else name


def short_name(name: str) -> str:
    """A name for titles: of a Python function "preprocess (image_processing.py)", of one in C its name and class."""
    frame = _PLAIN_FRAME.match(name)
    if frame:
        return f"{frame['function']} ({frame['file']})"
    module = _MODULE.match(name)
    if module:
        return module["name"]
    return without_address(name).removeprefix("<").removesuffix(">")
