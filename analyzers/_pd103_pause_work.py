"""What a CPU that keeps the GPU waiting does, in words, and what to do about each kind of work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfdoctor.rules import Activity, Evidence, HotPath, PauseGroup, Rank, SourceLocation, vocabulary
from perfdoctor.rules import activity_kinds as kinds
from perfdoctor.rules import intervals as iv

# So many activities of the hot path, the deepest of them, are evidence.
_SHOWN = 4
# What takes less of the pauses beside the hot path is not named.
_LEAST_OTHER_SHARE = 0.1

_MODEL_CODE = re.compile(r"^nn\.Module: |^torch/nn/modules/")


@dataclass(frozen=True, slots=True)
class PauseWork:
    """What the CPU does in pauses.

    Attributes:
        doing: A verb and what it is done to, for titles: "the CPU ...".
        advice: What to do about it; words in braces depend on the program.
        fix: A line of code or a command; None where no one line does.
        evidence: The hot path.
    """

    doing: str
    advice: str
    fix: str | None = None
    evidence: tuple[Evidence, ...] = ()


_AHEAD = "Prepare the next input in another thread or process while the GPU works on this one"
_IN_WORKERS = "Do it in the DataLoader's workers (in the data set or collate_fn), so that the loop finds it done"
_EAGER = "; CUDA_MODULE_LOADING=EAGER loads all at the start instead, which costs memory"
_OVERLAP = (
    "Overlapped scheduling prepares the next batch while the GPU works on this one: --async-scheduling in vLLM; in "
    "SGLang and TensorRT-LLM it is the default, if --disable-overlap-schedule or disable_overlap_scheduler=True does "
    "not turn it off. More requests at a time make each pause count less."
)

# What one more thread or process can do for the next input while the GPU works on this one.
_DONE_AHEAD = frozenset({kinds.PREPROCESSING, kinds.IMAGE_DECODING, kinds.TOKENIZING, kinds.FILE_OR_SOCKET})

_OF_KIND: Mapping[str, PauseWork] = MappingProxyType(
    {
        kinds.GRAPH_CAPTURE: PauseWork(
            "captures a CUDA graph",
            "A graph is captured once for each function and input shape, and replayed afterwards. Run every shape "
            "before the loop, and record after that. If graphs are still captured later, pad inputs to few shapes.",
        ),
        kinds.MODULE_LOAD: PauseWork(
            "loads modules lazily",
            "The driver loads a module at the first launch of one of its kernels: that takes milliseconds once, and "
            "microseconds afterwards. Run every shape once before the loop, and record after that{eager}.",
        ),
        kinds.COMPILATION: PauseWork(
            "compiles",
            "Compilation belongs to warm-up: run every input shape once, and record after that. If it recurs, "
            "TORCH_LOGS=recompiles names what changed.",
        ),
        kinds.BUFFER_BROADCAST: PauseWork(
            "flattens and unflattens DDP's buffers",
            "DDP broadcasts the buffers of rank 0 before each forward pass. With broadcast_buffers=False each rank "
            "keeps its own: right where buffers do not change, and for the running statistics of BatchNorm unless "
            "they have to agree between ranks.",
            "model = DistributedDataParallel(model, broadcast_buffers=False)",
        ),
        kinds.ALLOCATION: PauseWork(
            "allocates and frees device memory",
            "Leave memory to PyTorch's caching allocator: no empty_cache() in the loop, and no "
            "PYTORCH_NO_CUDA_MEMORY_CACHING or PYTORCH_NO_HIP_MEMORY_CACHING in the environment.",
        ),
        kinds.GARBAGE_COLLECTION: PauseWork(
            "collects garbage",
            "Collect at a time that you choose, such as every 1000 {units}, on all ranks at once; gc.freeze() after "
            "set-up takes the model out of later collections.",
            "gc.disable()                               # and gc.collect() every N {units}",
        ),
        kinds.CHECKPOINT: PauseWork(
            "saves or loads a checkpoint",
            "Save less often, or copy the state to the CPU and write it from another thread: "
            "torch.distributed.checkpoint.async_save does so from PyTorch 2.4 on.",
        ),
        kinds.LOGGING: PauseWork("logs", "Log every N {units}, and write from another thread."),
        kinds.TOKENIZING: PauseWork(
            "tokenizes", "{ahead}, or tokenize the data set once and store it. Fast tokenizers take batches."
        ),
        kinds.IMAGE_DECODING: PauseWork("decodes images or video", "{ahead}, or decode on the GPU (nvJPEG, NVDEC)."),
        kinds.LISTS_TO_TENSORS: PauseWork(
            "turns Python lists into tensors",
            "torch.tensor() reads lists element by element. Keep numbers in one NumPy array or tensor from the start.",
            "x = torch.from_numpy(array)                # instead of torch.tensor(list)",
        ),
        kinds.FILE_OR_SOCKET: PauseWork("waits for a file or socket", "{ahead}: reading needs no GPU."),
        kinds.LOCK_WAIT: PauseWork(
            "waits for another thread",
            "See what the other thread does meanwhile: the loop waits for its lock or queue.",
        ),
        kinds.SLEEP: PauseWork("sleeps", "Wait for the event itself instead of sleeping."),
        kinds.PREPROCESSING: PauseWork(
            "prepares data", "{ahead}, or resize and normalise on the GPU, as tensors rather than images."
        ),
        kinds.GRAPH_LAUNCH: PauseWork(
            "launches a CUDA graph",
            "The launch itself takes that long, and the GPU has nothing else to do: launch the next graph before this "
            f"one is done, so that its launch hides behind the GPU's work. {_OVERLAP}",
        ),
        kinds.BATCH_SCHEDULING: PauseWork("schedules the next batch", _OVERLAP),
    }
)
_LOADING = PauseWork(
    "loads a checkpoint", "Load it before the loop; safetensors maps the file and reads only what is used."
)
_SHARED_BUFFERS = PauseWork(
    "flattens and unflattens DDP's buffers",
    "A forward pass without gradients needs no DistributedDataParallel: run the module that it wraps, and no buffers "
    "are broadcast.",
    "with torch.inference_mode(): model.module(x)",
)
_OTHER_ENGINE_GRAPH = (
    "The launch itself takes that long, and the GPU has nothing else to do: launch the next graph before this one is "
    "done, and read no result in between; fewer nodes in the graph (fused kernels) shorten the launch."
)


def remaining_share_of(group: PauseGroup, rank: Rank) -> float | None:
    """How much of some pauses (0 to 1) is left when one worker does their work ahead; None where that is no fix.

    A worker that needs longer for an input than the rest of the step takes is waited for.
    """
    if group.path.kind not in _DONE_AHEAD:
        return None
    pause_ns = rank.per_step(iv.total(group.time))
    rest_ns = rank.per_step(rank.window_ns) - pause_ns
    return max(pause_ns - rest_ns, 0) / max(pause_ns, 1)


def describe_pause(group: PauseGroup, rank: Rank) -> PauseWork:
    """What the CPU does in some pauses, and what to do about it in this program."""
    path = group.path
    work = _choose_by_context(path.kind, rank) or _by_activity(group, has_loader=len(rank.loader_waits) > 0)
    doing = work.doing
    # Of some kinds the function itself is worth its name: what is prepared, logged, read, loaded.
    if path.kind is not None and path.deepest is not None and _adds_a_name(path.kind, path.deepest):
        doing += f" in {_name_in(path, path.deepest)}"
    fill = {
        "{ahead}": _ahead(rank),
        "{units}": "steps" if rank.context.phase == "training" else "batches",
        "{eager}": "" if rank.trace.vendor == "amd" else _EAGER,
    }
    advice, fix = work.advice, work.fix
    for placeholder, words in fill.items():
        advice, fix = advice.replace(placeholder, words), fix and fix.replace(placeholder, words)
    return PauseWork(doing, advice, fix, _evidence(group))


def _choose_by_context(kind: str | None, rank: Rank) -> PauseWork | None:
    """What to say of a kind of work in this program; None for no kind."""
    forward_only = rank.context.phase in ("inference", "evaluation")
    if kind == kinds.CHECKPOINT and forward_only:
        return _LOADING
    if kind == kinds.BUFFER_BROADCAST and forward_only:
        return _SHARED_BUFFERS
    if kind == kinds.GRAPH_LAUNCH and not {"vLLM", "SGLang", "TensorRT-LLM"} & set(rank.context.frameworks):
        return PauseWork(_OF_KIND[kind].doing, _OTHER_ENGINE_GRAPH)
    return _OF_KIND.get(kind or "")


def _ahead(rank: Rank) -> str:
    """How this program prepares its next input while the GPU works."""
    return _IN_WORKERS if len(rank.loader_waits) else _AHEAD


def _adds_a_name(kind: str, deepest: Activity) -> bool:
    if kind == kinds.MODULE_LOAD:
        return deepest.table == "call"
    return deepest.table == "frame" and kind not in kinds.HAPPENING_ONCE


def _name_in(path: HotPath, activity: Activity) -> str:
    """The short name of an activity, without its file where the location says that already."""
    name, location = kinds.short_name(activity.name), path.location
    return name.removesuffix(f" ({SourceLocation(location.file).short})") if location else name


def _by_activity(group: PauseGroup, *, has_loader: bool) -> PauseWork:
    """What to say where the names on the path tell no kind of work."""
    path = group.path
    activity = path.outermost_op or path.deepest
    if activity is None:
        return PauseWork(
            "does something that the trace does not show",
            "No op, function or range takes most of this time: record with Python stacks (with_stack=True) to see "
            "which code runs in it.",
        )
    doing = f"is in {_name_in(path, activity)}"
    if group.usual_ns is not None and path.deepest is not None:
        longest = path.deepest
        return PauseWork(
            doing,
            f"Elsewhere in this trace {kinds.short_name(longest.name)} takes {group.usual_ns / 1e6:.2g} ms, here "
            f"{longest.time_ns / longest.runs / 1e6:.2g} ms: a library sets something up for a shape that it sees for "
            "the first time. Run every shape once before the loop, and record after that; if it comes back, few input "
            "shapes keep it rare.",
        )
    if activity.table in ("op", "call"):
        return PauseWork(
            doing,
            "The CPU takes longer for this op than the GPU for all that is queued: call it less often, on fewer and "
            "larger tensors, or move it out of the loop.",
        )
    if re.search(vocabulary.OPTIMIZER_STEP, activity.name):
        return PauseWork(
            doing,
            "The optimizer's ops take longer on the CPU than on the GPU: a fused implementation, where the optimizer "
            "has one, launches a few kernels for all parameters.",
        )
    if activity.table == "range":
        return PauseWork(
            doing,
            "No single op takes most of this time: it is many ops, Python, or waiting. Record with Python stacks "
            "(with_stack=True) to see which code it is, then move it out of the loop.",
        )
    if _MODEL_CODE.search(activity.name):
        return PauseWork(
            doing,
            "The model's own code takes longer here than the GPU for what is queued: fewer and larger ops, or compiled "
            "code, shorten it. Python stacks, where they were recorded, make it look slower than it is.",
        )
    places = "into DataLoader workers, another thread, or before the loop" if has_loader else "into another thread"
    return PauseWork(doing, f"Move this work out of the loop: {places}.")


def _evidence(group: PauseGroup) -> tuple[Evidence, ...]:
    path = group.path
    if not path.activities:
        return ()
    shown: list[Activity] = list(path.activities[-_SHOWN:])
    if path.outermost_op is not None and path.outermost_op not in shown:
        shown = [path.outermost_op, *shown[1:]]
    names = " > ".join(kinds.short_name(activity.name) for activity in shown)
    evidence = (
        Evidence("what the CPU was in", names),
        Evidence("time in the last of these", path.activities[-1].time_ns, "ns"),
    )
    other = group.others.deepest
    if other is None or other.time_ns < _LEAST_OTHER_SHARE * path.time_ns or other in path.activities:
        return evidence
    return (
        *evidence,
        Evidence("in the rest of the pauses", kinds.short_name(other.name)),
        Evidence("time in that", other.time_ns, "ns"),
    )
