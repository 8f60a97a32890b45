"""The names that profilers write into traces, each pattern once: steps, loaders, collectives, calls, copies, lines.

Who records them: PyTorch's profiler and its modules, the CUDA and HIP runtimes, and `perfdoctor run`. A constant that
is described as a pattern is a regular expression to search for (`Trace.match_rows`, `Trace.match_strings`); functions
take a name apart. Lists of ATen operators that one fact or rule alone asks for stand with it, and what kernels are
called stands in gpu/data/kernel_rules.csv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

# Steps of the training loop.

STEP_MARK = "ProfilerStep"
"""What the names of the profiler's steps begin with."""
_STEP_NAME = f"{STEP_MARK}#"
PROFILER_STEP = rf"^{_STEP_NAME}"
"""Pattern of the range that the profiler's `step()` puts around each step."""
# Digits as `int` takes them, few enough for an int64.
_NUMBERED_STEP = rf"^{_STEP_NAME}(\d{{1,18}})$"
COUNTED_STEP = (
    r"(?i)^(?P<stem>\[? ?(?:(?:global|train|training)[ _/.:-]?)?(?:step|iteration|iter)[ _#:=/\[-]*)"
    r"(?P<number>[0-9]{1,15}) ?\]?$"
)
"""Pattern of ranges by which people count steps: "step 12", "train_iteration_12", "[iteration 12]"."""
ENGINE_STEP = (
    r"^execute_(\d+_)?context_\d+|^execute_new_\d+_cached_|^execute_model\b|^(EngineCore|LLMEngine|Scheduler|\w*ModelRunner)\b.*\bstep\b|"
    r"^engine[ _]step\b|^step\[\s*[A-Z]+|^\[Executor\] _forward_step[ :]"
)
"""Pattern of the ranges that serving engines (vLLM, SGLang, TensorRT-LLM) put around one pass over their batch."""
MEASURED_RANGE = r"(^|[^A-Za-z])(?i:measured?|timed|benchmark(ed)?)($|[^A-Za-z])"
"""Pattern of the ranges that benchmarks put around what they time: only what lies within is measured."""
_PASS_WORDS = r"forward|fwd|inference|infer|predict(ion)?|generate|decode|prefill|denoise"
_ITERATION_WORDS = (
    r"(train(ing)?|val(idation)?|eval|test)[ _]?(step|batch|iter(ation)?)|step|iter(ation)?|batch|microbatch"
)
PASS_RANGE = rf"(^|[^A-Za-z])(?i:{_PASS_WORDS})($|[^A-Za-z])"
"""Pattern of the ranges that people put around a pass through a model; some put them around its parts, too."""
ITERATION_RANGE = rf"(^|[^A-Za-z])(?i:{_ITERATION_WORDS})($|[^A-Za-z])"
"""Pattern of the ranges that people put around an iteration of a loop."""
PART_OF_PASS = (
    r"(?i)layer|block|stage|attention|attn|mlp|ffn|feed[ _]?forward|embed|norm|expert|moe|encoder|decoder|head|proj|"
    r"conv|linear|loss|optim|zero_grad|backward|bwd|warm[ _-]?up|##|::|lr_sched|schedul"
)
"""Pattern of ranges that no step is counted by: parts of models and of steps, and what libraries mark inside them."""


def profiler_step_name(number: int) -> str:
    """The name of the profiler's range around a step."""
    return f"{_STEP_NAME}{number}"


def profiler_step_number(name: str) -> int | None:
    """The number in the name of the profiler's range around a step; None for any other name."""
    found = re.match(_NUMBERED_STEP, name)
    return int(found[1]) if found else None


LEFT_OUT_STEP_PREFIX = "perfdoctor::left_out#"
"""What comes before the name of a profiler's range around a step that is not analysed."""


class CountedStep(NamedTuple):
    """A user's range around one step: the wording that all ranges of its series share, and its number."""

    stem: str
    number: int


def parse_counted_step(name: str) -> CountedStep | None:
    """The parts of a name that fits `COUNTED_STEP`; None for any other name."""
    found = re.match(COUNTED_STEP, name)
    return CountedStep(found["stem"], int(found["number"])) if found else None


def mask_numbers(name: str) -> str:
    """A name with "#" for each number and each hash in it: what the names of ranges of one kind have in common."""
    return re.sub(r"\b(?=[a-z]*\d)[a-z\d]{32,}\b|\d+", "#", name)


# DataLoaders. The range around `__next__` is "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__".

SINGLE_PROCESS_LOADER, MULTI_PROCESS_LOADER = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""Classes of the iterators that load in the training process, and in workers: part of the name of their ranges."""
DATALOADER_NEXT = r"^enumerate\(DataLoader\)#"
"""Pattern of PyTorch's range around `__next__`."""
LOADER_NEXT = rf"{DATALOADER_NEXT}|\b({SINGLE_PROCESS_LOADER}|{MULTI_PROCESS_LOADER})\b.*__next__"
"""Pattern of any range around `__next__`: scripts and frameworks use the iterator's own name for theirs."""
LOADER_NEXT_FRAME = (
    r"(torch/utils/data/dataloader|torchdata/[\w/]+|nvidia/dali/plugin/[\w/]+|ffcv/loader/[\w/]+|webdataset/[\w/]+)"
    r"\.py\(\d+\): __next__"
)
"""Pattern of the Python frame of `__next__`, in the loaders of several libraries."""
LOADER_EPOCH_FRAME = r"utils/data/dataloader\.py\(\d+\): (__iter__|_get_iterator|__init__)$"
"""Pattern of the Python frames with which an epoch of a DataLoader begins."""
LOADER_START = r"^perfdoctor::loader_start$"
"""Pattern of the range that `perfdoctor run` puts around an `iter(loader)` that starts workers."""
LOADER_COLLATE_FRAME = r"utils/data/_utils/collate\.py\("
"""Pattern of the Python frames that put items together to a batch."""


def dataloader_next_name(iterator: str = "") -> str:
    """The name of PyTorch's range around `__next__` of an iterator of that class, or of any."""
    return f"enumerate(DataLoader)#{iterator and iterator + '.'}__next__"


# Optimizers. PyTorch's ranges are called "Optimizer.step#AdamW.step" and "Optimizer.zero_grad#AdamW.zero_grad".

OPTIMIZER_STEP, ZERO_GRAD = r"^Optimizer\.step#", r"^Optimizer\.zero_grad#"
"""Patterns of the ranges around an optimizer's `step` and `zero_grad`."""


def optimizer_step_name(optimizer: str = "") -> str:
    """The name of the range around `step` of an optimizer of that class, or of any."""
    return f"Optimizer.step#{optimizer and optimizer + '.step'}"


def zero_grad_name(optimizer: str = "") -> str:
    """The name of the range around `zero_grad` of an optimizer of that class, or of any."""
    return f"Optimizer.zero_grad#{optimizer and optimizer + '.zero_grad'}"


def optimizer_class(range_name: str) -> str:
    """The class of the optimizer that a range such as `Optimizer.step#SGD.step` names."""
    return range_name.partition("#")[2].removesuffix(".step")


# Forward and backward passes.

FORWARD_MARK_NAME, BACKWARD_MARK_NAME = "perfdoctor::forward", "perfdoctor::backward"
"""The ranges that `perfdoctor run` puts around the passes."""
CLOSURE_MARK_NAME = "perfdoctor::closure"
"""The range that `perfdoctor run` puts around the closure of an optimizer's `step`."""
OWN_MARK = r"^perfdoctor::"
"""Pattern of any range that `perfdoctor run` puts around a part of a step."""
CLOSURE_RANGE = rf"^{CLOSURE_MARK_NAME}$"
"""Pattern of the range around a closure."""
COLLECT_MARK, SAVE_MARK = r"^perfdoctor::gc\.collect$", r"^perfdoctor::torch\.save$"
FILE_SYNC_MARK, DEEPCOPY_MARK = r"^perfdoctor::os\.(fsync|fdatasync)$", r"^perfdoctor::copy\.deepcopy$"
"""Patterns of the ranges that `perfdoctor run` puts around calls that the training waits for."""
DDP_FORWARD, FSDP_FORWARD = r"^DistributedDataParallel\.forward$", r"^FullyShardedDataParallel\.forward$"
"""Patterns of the ranges that torch.nn.parallel.DistributedDataParallel and FSDP put around `forward`."""
FSDP2_ROOT_FORWARD = r"^FSDP::root_pre_forward$"
"""Pattern of the range in which the root of a model of `fully_shard` begins its forward pass."""
DATA_PARALLEL_FORWARD = r"^DataParallel\.forward$"
"""Pattern of the range that torch.nn.DataParallel, which is another class, puts around `forward`."""
FORWARD_RANGE = rf"^{FORWARD_MARK_NAME}$|{DDP_FORWARD}|{FSDP_FORWARD}"
"""Pattern of any range around a forward pass."""
BACKWARD_RANGE = rf"^{BACKWARD_MARK_NAME}$"
"""Pattern of the range around a backward pass."""
AUTOGRAD_OP_PREFIX = "autograd::engine::evaluate_function: "
"""The beginning of the name of an op in which the autograd engine runs a node of the graph; the node's name follows."""
AUTOGRAD_OP = r"^autograd::engine::evaluate_function|^torch::autograd::"
"""Pattern of the ops in which the autograd engine runs a node of the graph."""
BACKWARD_OP = r"^autograd::|Backward"
"""Pattern of every op of a backward pass, nodes of the graph ("MulBackward0") among them."""
BACKWARD_NODE = r"^autograd::engine|^torch::autograd::|Backward\d*$"
"""Pattern of the ops of a backward pass alone: FSDP's "RegisterPostBackwardFunction" runs in the forward pass."""
GRADIENT_OP = r"^aten::\w+_backward$"
"""Pattern of the ops that compute gradients, which a benchmark may call without a backward pass."""
ENGINE_NODE = r"^autograd::engine::evaluate_function"
"""Pattern of the ops in which autograd's engine runs one node of the graph, with its hooks and sums."""
GRADIENT_PREPARATION = r"^_DDPSink$|^RegisterPostBackwardFunction|^_NoopSaveInputs$|^CheckpointFunction$"
"""Pattern of the ops of a forward pass that prepare a backward pass: of DDP, FSDP and activation checkpointing."""
USER_BACKWARD_RANGE = r"(?i)^(## )?(loss\.|model )?backward([ _]pass)?( ##)?$"
"""Pattern of the ranges that people and frameworks put around the backward pass."""
OPTIMIZER_RANGE = rf"{OPTIMIZER_STEP}|^(?i:(## )?optimizer([ _.]step)?( ##)?)$"
"""Pattern of any range around an optimizer's step, PyTorch's or one by hand."""
OPTIMIZER_OP = r"^aten::_fused_(adam|adamw|sgd|adagrad)_$"
"""Pattern of the ops that only optimizers call."""
OPTIMIZER_KERNEL = r"Fused(Adam|Sgd|SGD|Adagrad)|(Adam|SGD|LAMB|NovoGrad|Adagrad)\w*Functor|\badam_cuda|\blamb_cuda"
"""Pattern of the kernels that only optimizers launch: PyTorch's fused ones and those of apex and DeepSpeed."""
OPTIMIZER_FRAME = (
    r"^torch/optim/(?!lr_|swa)[\w/]+\.py\(\d+\): step$|(^|/)(apex|deepspeed|bitsandbytes|megatron)/.*optim.*\): step$"
)
"""Pattern of the Python frame of an optimizer's `step`."""
WEIGHT_GRADIENT_KERNEL = (
    r"wgrad|_wrw_|batch_norm_backward|GammaBetaBackward|layer_norm_grad|split_embedding_backward|embedding_backward"
)
"""Pattern of the kernels that compute gradients of weights, in libraries that say so in the name."""
CLIP_FRAME = r"torch/nn/utils/clip_grad\.py\(\d+\): clip_grad_(norm|value)_$"
"""Pattern of the Python frames that clip gradients."""
RECOMPUTE_FRAME = r"torch/utils/checkpoint\.py\(\d+\): (backward|unpack_hook|recompute_fn|recompute)$"
"""Pattern of the Python frames in which activation checkpointing computes a part of the forward pass again."""
RECOMPUTE_OP = r"^CheckpointFunctionBackward$"
"""Pattern of the op in which the older kind of activation checkpointing does so, before its own backward pass."""
DECODE_RANGE = r"(?i)^step\[\s*decode|_generation_[1-9]\d*\(|^(decode|generate)([ _](step|loop|token)s?)?$"
"""Pattern of the ranges that serving engines and people put around the decoding of tokens."""
KV_CACHE_KERNEL = r"(?i)reshape_and_cache|concat_and_cache|store_?kv_?cache|rope_store|(swap|copy)_blocks"
"""Pattern of the kernels that write keys and values into the cache of a serving engine, or move its blocks."""
ROW_KERNEL = (
    r"\b(fused_add_)?rms_norm_kernel\b|\brotary_embedding_kernel\b|\breshape_and_cache_flash_kernel\b|\bstore_kvcache\b"
    r"|\bact_and_mul_kernel\b|^triton_red_fused\w*_rsqrt"
)
"""Pattern of the kernels of serving engines that have a block for each row, which is a token."""
ENGINE_PASS = (
    r"(?i)^execute_(\d+_)?context_\d+\(|^execute_new_\d+_cached_|^step\[\s*\w+|^\[Executor\] _forward_step[ :]"
)
"""Pattern of the ranges that serving engines put around a pass of the model, see `parse_engine_pass`."""
DECODE_FRAME = (
    r"transformers/generation/utils\.py\(\d+\): (generate|_sample|_greedy_search|_beam_search|_assisted_decoding)$"
)
"""Pattern of the Python frames of a loop that generates tokens."""
PREPARE_GENERATION_FRAME = r"transformers/[\w/]+\.py\(\d+\): prepare_inputs_for_generation$"
"""Pattern of the Python frames by which such a loop begins a pass of the model."""
PREFILL_FRAME = r"transformers/generation/utils\.py\(\d+\): _prefill$"
"""Pattern of the Python frames in which it reads the prompt, in one piece or several."""
DRAFT_FRAME = r"transformers/generation/candidate_generator\.py\(\d+\): get_candidates$"
"""Pattern of the Python frames in which a draft model, or a look-up, proposes tokens."""
PIPELINE_FRAME = r"diffusers/[\w/]*pipelines/[\w/]+\.py\(\d+\): __call__$"
"""Pattern of the Python frames of pipelines of diffusers."""
DENOISING_STEP_FRAME = r"diffusers/schedulers/\w+\.py\(\d+\): step$"
"""Pattern of the Python frames in which the scheduler of a pipeline takes a step."""
COMPILED_CALL_FRAME = r"torch/_dynamo/eval_frame\.py\(\d+\): (compile_wrapper|_fn|__call__)$"
"""Pattern of the Python frames around a call of what was compiled."""
EVALUATION_RANGE = (
    r"(?i)(^|[^a-z])(evaluat(e|ion)|validat(e|ion))($|[^a-z_])|Evaluation_?Loop|validation_step|test_step"
)
"""Pattern of the ranges around an evaluation."""
EVALUATION_FRAME = (
    r"^(?!torch/|sympy/|<)[^\n]*\(\d+\): (evaluate|validate|evaluation_loop|prediction_step|validation_step|"
    r"validation_epoch|eval_epoch|eval_step|test_step|test_epoch)$"
)
"""Pattern of the Python frames of an evaluation, by what people and trainers call the function."""
EVALUATION_FUNCTION = r"(?i)(^|_)(valid(at\w*)?|val|eval(uat\w*)?|test)(_|$)"
"""Pattern of the name of a function of the user's that evaluates."""
SERVER_FRAME = r"(^|/)(vllm|sglang|tensorrt_llm|uvicorn|hypercorn|gunicorn|starlette|fastapi|grpc|aiohttp)/"
"""Pattern of the Python frames of servers of models, and of the web servers in front of them."""
MODEL_RUNNER_FRAME = r"(?i)^nn\.Module: |model_?runner|model_executor|execute_model|\(\d+\): (forward|generate)$"
"""Pattern of the Python frames that run a model, whether its modules are called or a graph of them is launched."""
INITIALIZER_OP = r"^aten::(uniform_|normal_)$"
"""What fills the weights of a new model with random numbers, as torch.nn.init and modules by themselves call it."""
MATRIX_OP = r"^aten::(linear|mm|addmm|bmm|baddbmm|matmul|conv\w*|_convolution)$"
"""Products and convolutions, as programs call them."""
INPUT_OP, ITEM_OP = r"^aten::(randn?|randint|lift_fresh)$", r"^aten::(item|is_nonzero)$"
"""Patterns of the ops that make an input of random numbers or of values of Python, and that read a result."""
ACCUMULATE_GRAD = r"AccumulateGrad"
"""Pattern of the ops that add to a parameter's gradient."""
DROPOUT_CALL = r"^aten::(feature_|alpha_|feature_alpha_)?dropout_?$"
"""Pattern of the ops by which modules drop elements: they pass their input on where nothing is trained."""
DROPOUT_THAT_DRAWS = r"^aten::(native_dropout|_fused_dropout)$"
"""Pattern of the ops that draw what is dropped; channels are drawn by `RANDOM_DRAW` instead."""
RANDOM_DRAW = r"^aten::bernoulli_?$"
"""Pattern of the op that draws zeros and ones."""
DROPOUT_KERNEL = r"fused_dropout_kernel"
"""Pattern of the kernels that do nothing but drop elements."""
BATCH_NORM_OP = (
    r"^aten::(batch_norm|_batch_norm_impl_index|(native|cudnn|miopen)_batch_norm|_native_batch_norm_legit(_functional)?|"
    r"_batch_norm_with_update(_functional)?)$"
)
"""Pattern of the forward ops of batch norm: input, weight, bias, running mean, running variance and, but for the last,
`training` are their first arguments."""
UPDATING_BATCH_NORM_OP = r"^aten::(_native_batch_norm_legit_functional|_batch_norm_with_update(_functional)?)$"
"""Pattern of those that only training calls."""
INSTANCE_NORM_OP = r"^aten::instance_norm$"
"""Pattern of the op that uses batch norm in training mode whatever the model's mode is."""
BATCH_STATISTICS_KERNEL = r"batch_norm_collect_statistics"
"""Pattern of the kernels that compute the statistics of a batch alone."""
BATCH_NORM_TRAINING_KERNEL = (
    rf"{BATCH_STATISTICS_KERNEL}|bn_fw_tr|BatchNormFwdTrain|triton_\w*_native_batch_norm_legit_functional"
)
"""Pattern of the kernels of batch norm that only training mode launches."""
GRAD_SCALER_OP = r"^aten::_amp_foreach_non_finite_check_and_unscale_$"
"""The op by which a GradScaler unscales gradients, and notes whether one overflowed."""
DDP_UNUSED_PARAMETERS = r"ddp\.reducer::search_unused_parameters"
"""Pattern of the op in which DDP searches the graph for unused parameters."""
DDP_COPY_BUCKET = r"ddp\.reducer::copy_bucket_to_grad"
"""Pattern of the op in which DDP copies a bucket back into the gradients."""
CAST_BACKWARD = r"ToCopyBackward0"
"""Pattern of the op that casts a gradient back."""
ALL_REDUCE_OP = r"^c10d::allreduce_$"
"""Pattern of the op that issues an all-reduce of a list of tensors, as DDP does."""

# torch.compile. Three patterns on purpose: a "TorchDynamo Cache Lookup" stands in programs that run eagerly, too.

COMPILED_REGION = r"^Torch-Compiled Region"
"""Pattern of the range or op around each call of a compiled piece, once a call: others lie within it."""
COMPILED_CODE = rf"{COMPILED_REGION}|^## Call CompiledFxGraph"
"""Pattern of ranges and ops that show that compiled code runs."""
FUNCTION_OP = (
    r"^(?!\w*(Compiled|Dynamo)|(CopySlices|CopyBackwards|AccumulateGrad)$)"
    r"_?[A-Z]\w*(?<!Backward\d)(?<!Backward\d\d)$"
)
"""Pattern of the ops in which an autograd.Function of Python runs, forward or backward: it has the name of its class.

Nodes of torch's own have a number ("MulBackward0"), and its ops a namespace.
"""
COMPILED_OP = r"Torch-Compiled Region|CompiledF|CompiledAutograd|TorchDynamo"
"""Pattern of every op of torch.compile that can lie around what generated code launches."""
COMPILE_PHASE = r" \(dynamo_timed\)$|^(entire_frame_compile|entire_backward_compile)$"
"""Pattern of the phases of dynamo and inductor: older versions record them as annotations, newer ones as ops."""
COMPILE_FRAME = (
    r"torch/_dynamo/convert_frame\.py\(\d+\): _compile\b|triton/compiler/compiler\.py\(\d+\): compile$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (load|_jit_compile)"
)
"""Pattern of the Python functions that compile and do nothing else."""
AROUND_COMPILED_GRAPH = r"^(Pregraph bytecode|AOTDispatcher |TorchDynamo Cache Lookup)"
"""Pattern of the ops of a compiled call before its graph runs: none of them computes."""


def engine_node_of(node: str) -> str:
    """Pattern of the ops in which autograd's engine runs a node of that name, itself a pattern."""
    return f"{ENGINE_NODE}: {node}"


_COMPILE_ID = r"^entire_frame_compile_data: .*compile_id=(?P<frame>\d+)/(?P<again>\d+)"
COMPILE_DATA = r"^entire_frame_compile_data: "
"""Pattern of the ranges that say which frame was compiled."""
TRITON_KERNEL = r"^_*triton_"
"""Pattern of the kernels that inductor generates."""


def compile_id(name: str) -> str | None:
    """The id "frame/how often" in a name that fits `COMPILE_DATA`, such as "3/1"; None where it holds none."""
    found = re.match(_COMPILE_ID, name)
    return f"{found['frame']}/{found['again']}" if found else None


# Operators that run on one kind of device alone, by ATen's native_functions.yaml.

GPU_OP = (
    r"^aten::_?(cudnn|miopen|cuda|mps)_(?!is_acceptable)|^aten::_thnn_fused_"
    r"|^aten::_(flash|efficient)_attention_(forward|backward)$"
    r"|^aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_backward)?$"
)
"""Pattern of the ops that only a GPU runs."""
CPU_OP = r"^aten::_?(mkldnn|mkl)_|^(mkldnn|mkldnn_prepacked|onednn|mkl)::|_for_cpu(_backward)?$"
"""Pattern of the ops that only a CPU runs: those of oneDNN and MKL, and attention on the CPU."""

# Collectives.

COLLECTIVE_RANGE = r"^(nccl|rccl|xccl|gloo|mpi|ucc):"
"""Pattern of the range around any collective; of one that a GPU runs it is the call, on the calling thread."""
GPU_COLLECTIVE_RANGE = r"^(nccl|rccl|xccl):"
"""Pattern of the range around a collective that a GPU runs."""
CPU_COLLECTIVE_RANGE = r"^(gloo|mpi|ucc):"
"""Pattern of the range around a collective that a thread of the CPU runs: it lasts as long as that."""
COLLECTIVE_WAIT = rf"{CPU_COLLECTIVE_RANGE}|^(c10d::(barrier|monitored_barrier)|ncclGroupEnd|ncclCommInitRank)"
"""Pattern of ranges and ops in which the CPU waits for other ranks."""
COLLECTIVE_CALL = r"^(nccl|rccl|xccl):|^c10d::|^nccl(CommInit|GroupEnd)"
"""Pattern of ranges and ops in which a collective of GPUs is called; the first one makes its communicator."""
NCCL_KERNEL = r"[NnRr][Cc][Cc][Ll]"
"""Pattern of the kernels of NCCL and RCCL. Not `(?i)`: then the search would stop at every letter of long names."""

COLLECTIVE_KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "barrier",
    "send_recv",
    "reduce",
    "gather",
    "scatter",
    "other",
)
OTHER_COLLECTIVE = COLLECTIVE_KINDS.index("other")
# How libraries spell them; the first that fits counts. deep_ep's kernels for experts are the halves of an all-to-all.
_SPELLINGS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quick_?reduce|lamport"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?(to|2)_?all|(ep|internode|intranode)\b.*(dispatch|combine)"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)


def collective_kind(name: str) -> str:
    """Which of `COLLECTIVE_KINDS` a kernel, range or recorded name means."""
    text = name.lower()
    return next((kind for kind, spelling in _SPELLINGS if re.search(spelling, text)), "other")


# Calls of the CUDA and HIP runtimes (cuda..., hip...) and of the drivers (cu..., hip...).

CUDA_CALL, HIP_CALL = r"^cu(?:da)?[A-Z]", r"^(?:hip[A-Z]|roc[a-z])"
"""Patterns of calls by the vendor of the device."""
LAUNCH_CALL = r"Launch|Memcpy"
"""Pattern of calls that give the device work."""
KERNEL_LAUNCH_CALL = r"Launch"
"""Pattern of calls that launch kernels, or graphs of them."""
GRAPH_LAUNCH_CALL = r"GraphLaunch"
"""Pattern of the call that launches a graph: one call for many kernels."""
CAPTURE_BEGIN_CALL, CAPTURE_END_CALL = r"^(cuda|cu|hip)StreamBeginCapture", r"^(cuda|cu|hip)StreamEndCapture"
"""Patterns of the calls between which a stream's work becomes a graph instead of running."""
WORK_ITEM_CALL = r"^hip(?:Ext|Hcc)ModuleLaunchKernel"
"""Pattern of HIP's launches whose grid counts work items instead of blocks, as its manual says."""
COPY_CALL = r"^(cuda|hip|cu)Memcpy"
"""Pattern of calls that copy."""
SYNC_CALL = r"^(cuda|hip)(Device|Stream|Event)Synchronize|^(cu|hip)(Ctx|Stream|Event)Synchronize"
"""Pattern of calls that wait for the device."""
WAITING_CALL = rf"{SYNC_CALL}|{COPY_CALL}"
"""Pattern of calls in which the CPU may wait for the device: a copy of pageable memory waits, too."""
DEVICE_SYNC_CALL = r"^(cuda|hip)DeviceSynchronize|^(cu|hip)CtxSynchronize"
"""Pattern of calls that wait for all streams."""
GRAPH_CAPTURE_CALL = r"StreamBeginCapture|StreamEndCapture|GraphInstantiate"
"""Pattern of the calls that capture a graph and make it ready to be launched."""
MODULE_FRAME_PREFIX = "nn.Module: "
MODULE_FRAME = rf"^{re.escape(MODULE_FRAME_PREFIX)}"
"""Beginning and pattern of the Python frames of modules' calls."""
MODULE_LOAD_CALL = r"^(cu|hip)(Module|Library)Load|^(cuda|cu|hip)LaunchKernel|^hip(Ext)?ModuleLaunchKernel"
"""Pattern of the calls that load code: those that ask for it, and launches, of which the first may load its module."""
MAY_TAKE_LONG_CALL = (
    r"Synchronize|Memcpy|Memset.*Sync|Query|Stream(Wait|IsCapturing|GetCapture)|(Malloc|MemAlloc|MemCreate|MemMap)"
    r"|Free|MemUnmap|MemRelease|Host(Alloc|Register|Unregister)|Graph|Capture|ElapsedTime|Profiler|Unload|Destroy"
    r"|Reset|LaunchHostFunc|AddCallback"
)
"""Pattern of calls that wait, copy, allocate, tear down: they may take long at any time. The others return at once."""
FREE_CALL = r"^(cuda|hip)Free(Async)?$|^cu(MemFree|MemUnmap|MemRelease)"
"""Pattern of calls that give device memory back."""
EVENT_TIME_CALL = r"EventElapsedTime"
"""Pattern of the call that reads a time between two events, as a search for the fastest convolution does."""
STREAM_SYNC_CALL, EVENT_SYNC_CALL = r"StreamSynchronize", r"EventSynchronize"
"""Patterns of calls that wait for one stream, and for an event on it."""
EVENT_WAIT_CALL = r"StreamWait(Event|Value)"
"""Pattern of calls that make a stream wait for an event of another, while the CPU goes on."""
ALLOCATOR_CALL = r"^(cuda|hip)(Malloc|Free)|^cu(MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)"
"""Pattern of calls that allocate or free device memory."""
PIN_CALL = r"^(cuda|hip)Host(Alloc|Malloc|Register)"
"""Pattern of calls that allocate pinned memory, or pin what there is."""

# Records of category cuda_sync, which say what a synchronization waited for.

EVENT_SYNC_NAME, STREAM_SYNC_NAME, CONTEXT_SYNC_NAME = "Event Sync", "Stream Sync", "Context Sync"
STREAM_WAIT_NAME = "Stream Wait Event"
STREAM_WAIT_RECORD = rf"^{STREAM_WAIT_NAME}$"
"""Pattern of the records of a stream that waits for an event of another."""

# Copies: "Memcpy HtoD (Pageable -> Device)" on CUDA, "Memcpy HtoD (Host -> Device)" or "CopyHostToDevice" on ROCm.

COPY_DIRECTIONS = ("unknown", "HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
"""Which way a copy goes: H host, D device, P peer device; "unknown" stands for arrays (textures), too."""
UNKNOWN_DIRECTION, HTOD, DTOH, DTOD, PTOP, HTOH = range(len(COPY_DIRECTIONS))
HOST_MEMORY = ("unknown", "Pageable", "Pinned", "Host")
"""Kinds of host memory in a copy's name; AMD's profiler says "Host" for pageable and pinned memory alike."""
UNKNOWN_MEMORY, PAGEABLE, PINNED, HOST = range(len(HOST_MEMORY))
_SIDES = r"([HDP])to([HDP])|(Host|Device|Peer)To(Host|Device|Peer)|(Host|Device) -> (Host|Device)"


def copy_name(direction: str, source: str, target: str) -> str:
    """The name of a copy in CUDA's wording, from one kind of memory to another."""
    return f"Memcpy {direction} ({source} -> {target})"


def copy_direction(name: str) -> int:
    """Index into `COPY_DIRECTIONS` of the way that a copy of such a name goes."""
    found = re.search(_SIDES, name)
    if found is None:
        return UNKNOWN_DIRECTION
    direction = "to".join(side[0] for side in found.groups() if side)
    return COPY_DIRECTIONS.index(direction) if direction in COPY_DIRECTIONS else UNKNOWN_DIRECTION


def copy_host_memory(name: str) -> int:
    """Index into `HOST_MEMORY` of the kind of host memory that a copy of such a name reads or writes."""
    return next((code for code in (PAGEABLE, PINNED, HOST) if HOST_MEMORY[code] in name), UNKNOWN_MEMORY)


# Source lines and Python frames.


class SourceLine(NamedTuple):
    """A place in the source: file, line, and function where the name holds one."""

    file: str
    line: int
    function: str | None


WARM_UP_RANGE = r"^(?!.*(?:[Ss]chedul|LR))(?:.*[^A-Za-z])?(?:[Ww]arm|WARM)[-_ ]?(?:[Uu]p|UP)(?![a-z])"
"""Pattern of the ranges that a program calls its warm-up; that of a learning rate is none."""
START_UP_FRAME = (
    r"\(\d+\): (_?warm_?up(_model)?|kernel_warmup|compile_or_warm_up_model|capture_model|profile_run|load_model"
    r"|load_weights|from_pretrained|determine_available_memory|determine_num_available_blocks|initialize_kv_caches?"
    r"|init_memory_pool)$"
)
"""Pattern of the Python functions by which programs and serving engines start: weights, caches, a first run."""
SOURCE_MARK = r"^@(?P<file>.+):(?P<line>\d{1,9})(?: (?P<function>.+))?$"
"""Pattern of the ranges "@file:line function" that `perfdoctor run` puts around torch calls and long other calls.

The line is the one that executes. Recordings of 0.1.0 name no function.
"""
MODULE_CALL_MARK = rf"^perfdoctor::module_call {SOURCE_MARK[1:]}"
"""Pattern of the ranges that `perfdoctor run` puts around outermost calls of modules: the line calls the model."""
REPEATED_MARK = rf"^perfdoctor::again {SOURCE_MARK[1:]}"
"""Pattern of the marks that it puts behind a torch call that computes what one of the step has computed there."""
UNCHANGED_MARK = r"^perfdoctor::unchanged$"
"""Pattern of the marks that `perfdoctor run` puts behind a torch call that returned the same in the steps before."""
ROWS_MARK = rf"^perfdoctor::rows (?P<number>\d{{1,9}}) {SOURCE_MARK[1:]}"
"""The same for calls of modules whose rows it looked at, by a number that the facts have, too."""
ZEROS_MARK = r"^perfdoctor::(?P<kind>zeros|masked_zeros) (?P<operand>[01]) (?P<zeros>\d{1,4})$"
"""The same behind a product of which one operand is nearly all zeros; how many of a thousand numbers are."""
BUILT_IN_FRAME = r"^<built-in "
"""Pattern of the name that the profiler gives to a call of a function that is not written in Python."""
RECORDER_FRAME = r"perfdoctor/capture/inject/|^_perfdoctor_inject/"
"""Pattern of the functions that `perfdoctor run` puts around those of a program; the profiler may cut the path off."""
WRAPPER_FRAME = (
    r"torch/nn/modules/module\.py\(\d+\): (_wrapped_call_impl|_call_impl|inner)|torch/utils/_contextlib\.py\(|"
    r"torch/_dynamo/(eval_frame|external_utils)\.py\(|torch/_compile\.py\(|"
    r": _use_grad$|(^|/)(contextlib|functools|runpy)\.py\(|"
    r"transformers/utils/(generic|deprecation)\.py\(\d+\): (wrapper|wrapped_func)|\): (wrapper|decorate_context)$"
)
"""Pattern of functions of libraries that only call another one, and stand around everything."""
_FRAME = r"^(?P<file>[^<].*?)\((?P<line>\d{1,9})\): (?P<function>.+)$"


def parse_source_mark(name: str) -> SourceLine | None:
    """The place that the name of a range marks, see `SOURCE_MARK`; None for any other name.

    None as well for the one line by which `multiprocessing` starts a process: no user's code lies in it.
    """
    return None if name.endswith("@<string>:1 <module>") else _source_line(re.match(SOURCE_MARK, name))


def parse_module_call_mark(name: str) -> SourceLine | None:
    """The place that the name of a range marks, see `MODULE_CALL_MARK`; None for any other name."""
    return _source_line(re.match(MODULE_CALL_MARK, name))


def parse_repeated_mark(name: str) -> SourceLine | None:
    """The place that the name of a mark gives, see `REPEATED_MARK`; None for any other name."""
    return _source_line(re.match(REPEATED_MARK, name))


def parse_rows_mark(name: str) -> tuple[int, SourceLine] | None:
    """The number and the place in the name of a range, see `ROWS_MARK`; None for any other name."""
    found = re.match(ROWS_MARK, name)
    line = _source_line(found)
    return None if found is None or line is None else (int(found["number"]), line)


def parse_frame(name: str) -> SourceLine | None:
    """The place in the name "file(line): function" of a Python frame, with the line of the `def`; None for others."""
    return _source_line(re.match(_FRAME, name))


def _source_line(found: re.Match[str] | None) -> SourceLine | None:
    return SourceLine(found["file"], int(found["line"]), found["function"]) if found else None


ANNOTATION = "|".join(
    (
        *(PROFILER_STEP, DATALOADER_NEXT, r"^Optimizer\.", r"^DistributedDataParallel\.", COLLECTIVE_RANGE),
        *(r"^perfdoctor::(module_call|again|rows \d{1,9}) @", SOURCE_MARK, UNCHANGED_MARK, ZEROS_MARK),
    )
)
"""Pattern of annotations that legacy files, and some later ones, keep among the operators."""


EnginePassKind: TypeAlias = Literal["prefill", "decode", "mixed", "draft", "denoise", "other"]
_PASS_OF_EXECUTE = (
    r"execute_((?P<tokens>\d{1,9})_)?context_(?P<context>\d{1,9})\((?P<context_tokens>\d{1,9})?[^)]*\)"
    r"_generation_(?P<generation>\d{1,9})\((?P<generation_tokens>\d{1,9})?"
)
_PASS_OF_EXECUTOR = (
    r"\[Executor\] _forward_step( \d+)?: (?P<context>\d{1,9}) ctx reqs, ((?P<tokens>\d{1,9}) ctx tokens, )?"
    r"(?P<generation>\d{1,9}) gen reqs"
)
# Forward modes of SGLang; verifying drafts is decoding, of several tokens a request, and extending them is the draft's.
_MODES: Mapping[str, EnginePassKind] = {
    **dict.fromkeys(("EXTEND", "PREFILL", "SPLIT_PREFILL"), "prefill"),
    **dict.fromkeys(("DECODE", "TARGET_VERIFY"), "decode"),
    **dict.fromkeys(("DRAFT_EXTEND", "DRAFT_EXTEND_V2"), "draft"),
    "MIXED": "mixed",
}


class EnginePass(NamedTuple):
    """What the name of a range says of a pass of a serving engine over its batch, or the frames of another loop.

    Attributes:
        kind: Whether it reads prompts, generates a token a request (or verifies some), or both; whether a draft model
            proposes tokens; whether it takes a step of diffusion; "other" where the engine calls it otherwise.
        requests: How many requests it works on; None where the name does not say, as the following.
        tokens: How many tokens it computes, of all requests.
    """

    kind: EnginePassKind
    requests: int | None = None
    tokens: int | None = None


def parse_engine_pass(name: str) -> EnginePass | None:
    """What the name of a serving engine's range says of its pass; None for any other name.

    vLLM writes "execute_context_0(0)_generation_4(4)": requests of each kind, and their tokens in parentheses, or
    "execute_new_1_cached_4"; others "execute_16_context_0(sq0sk0)_generation_16(sq16sk8193)" with the tokens first.
    SGLang writes "step[DECODE bs=16]", of a token each, and "step[EXTEND bs=15 toks=15360]"; TensorRT-LLM
    "[Executor] _forward_step 12: 1 ctx reqs, 300 ctx tokens, 4 gen reqs".
    """
    found = re.match(_PASS_OF_EXECUTE, name)
    if found:
        context, generation = int(found["context"]), int(found["generation"])
        tokens = _whole(found["tokens"])
        if tokens is None and found["context_tokens"] and found["generation_tokens"]:
            tokens = int(found["context_tokens"]) + int(found["generation_tokens"])
        return EnginePass(_kind_of_pass(context, generation), context + generation, tokens)
    found = re.match(r"execute_new_(\d{1,9})_cached_(\d{1,9})$", name)
    if found:
        new, cached = int(found[1]), int(found[2])
        return EnginePass(_kind_of_pass(new, cached), new + cached)  # later pieces of a prompt count as cached, too
    found = re.match(r"step\[\s*(?P<mode>[A-Za-z_]+)( bs=(?P<size>\d{1,9}))?( toks=(?P<tokens>\d{1,9}))?", name)
    if found:
        mode, requests = found["mode"].upper(), _whole(found["size"])
        tokens = _whole(found["tokens"]) or (requests if mode == "DECODE" else None)
        return EnginePass(_MODES.get(mode, "other"), requests, tokens)
    found = re.match(_PASS_OF_EXECUTOR, name)
    if found:
        context, generation = int(found["context"]), int(found["generation"])
        prompt = _whole(found["tokens"]) if context else 0
        tokens = None if prompt is None else prompt + generation
        return EnginePass(_kind_of_pass(context, generation), context + generation, tokens)
    return None


def _kind_of_pass(context: int, generation: int) -> EnginePassKind:
    """The kind of a pass that has so many requests of each phase."""
    return "mixed" if context and generation else "prefill" if context else "decode" if generation else "other"


def _whole(digits: str | None) -> int | None:
    return int(digits) if digits else None
