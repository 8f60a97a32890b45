"""What a CPU that keeps the GPU waiting does, in words, and what to do about each kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfdoctor.rules import Activity, Evidence, HotPath, SourceLocation
from perfdoctor.rules import activity_kinds as kinds

# So many activities of the hot path, the deepest of them, are evidence.
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class PauseWork:
    """What the CPU does in pauses.

    Attributes:
        doing: A verb and what it is done to, for titles: "the CPU ...".
        advice: What to do about it.
        fix: A line of code or a command; None where no one line does.
        is_warm_up: Whether it happens once, when something is used for the first time.
        evidence: The hot path.
    """

    doing: str
    advice: str
    fix: str | None = None
    is_warm_up: bool = False
    evidence: tuple[Evidence, ...] = ()


_AHEAD = "Prepare the next input in another thread or process while the GPU works on this one"
_IN_WORKERS = "Do it in the DataLoader's workers (in the data set or collate_fn), so that the loop finds it done"
_RECORD_LATER = "record steps after it."

_OF_KIND: Mapping[str, PauseWork] = MappingProxyType(
    {
        kinds.GRAPH_CAPTURE: PauseWork(
            "captures a CUDA graph",
            "A graph is captured once for each function and input shape, and replayed afterwards. Run every shape "
            f"before the loop, and {_RECORD_LATER} If graphs are still captured later, pad inputs to few shapes.",
            is_warm_up=True,
        ),
        kinds.MODULE_LOAD: PauseWork(
            "loads kernels at their first launch",
            "The driver loads a kernel when it is first launched; the launch takes milliseconds once, and microseconds "
            f"afterwards. Run a few steps as warm-up, and {_RECORD_LATER}",
            is_warm_up=True,
        ),
        kinds.COMPILATION: PauseWork(
            "compiles",
            f"Compilation belongs to warm-up: run every input shape once, and {_RECORD_LATER} If it recurs, "
            "TORCH_LOGS=recompiles names what changed.",
            is_warm_up=True,
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
            "Collect at a time that you choose, such as every 1000 steps, on all ranks at once; gc.freeze() after "
            "set-up takes the model out of later collections.",
            "gc.disable()                               # and gc.collect() every N steps",
        ),
        kinds.CHECKPOINT: PauseWork(
            "saves or loads a checkpoint",
            "Save less often, or copy the state to the CPU and write it from another thread: "
            "torch.distributed.checkpoint.async_save does so from PyTorch 2.4 on.",
        ),
        kinds.LOGGING: PauseWork("logs", "Log every N steps, and write from another thread."),
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
            "The launch itself takes that long, and the GPU has nothing else to do: launch the next step before this "
            "one is done (asynchronous scheduling), so that its launch hides behind the GPU's work.",
        ),
    }
)


def describe_pause(path: HotPath, *, has_loader: bool) -> PauseWork:
    """What the CPU does on a hot path, and what to do about it.

    Args:
        path: The hot path of the pauses.
        has_loader: Whether the program reads batches from a DataLoader: without one no work goes to its workers.
    """
    work = _OF_KIND.get(path.kind or "") or _by_activity(path, has_loader)
    doing = work.doing
    # Of some kinds the function itself is worth its name: what is prepared, logged, read.
    if path.kind is not None and path.deepest is not None and path.deepest.table == "frame" and not work.is_warm_up:
        doing += f" in {_name_in(path, path.deepest)}"
    advice = work.advice.replace("{ahead}", _IN_WORKERS if has_loader else _AHEAD)
    return PauseWork(doing, advice, work.fix, work.is_warm_up, _evidence(path))


def _name_in(path: HotPath, activity: Activity) -> str:
    """The short name of an activity, without its file where the location says that already."""
    name, location = kinds.short_name(activity.name), path.location
    return name.removesuffix(f" ({SourceLocation(location.file).short})") if location else name


def _by_activity(path: HotPath, has_loader: bool) -> PauseWork:
    """What to say where the names on the path tell no kind of work."""
    activity = path.outermost_op or path.deepest
    if activity is None:
        return PauseWork(
            "does something else",
            "No op, function or range takes most of this time: record with Python stacks (with_stack=True) to see "
            "which code runs in it.",
        )
    doing = f"is in {_name_in(path, activity)}"
    if activity.table in ("op", "call"):
        return PauseWork(
            doing,
            "The CPU takes longer for this op than the GPU for all that is queued: call it less often, on fewer and "
            "larger tensors, or move it out of the step. Where only its first calls take so long it is warm-up.",
        )
    if activity.table == "range":
        return PauseWork(
            doing,
            "No single op takes most of this time: it is many ops, Python, or waiting. Record with Python stacks "
            "(with_stack=True) to see which code it is, then move it out of the step.",
        )
    places = "into DataLoader workers, another thread, or before the loop" if has_loader else "into another thread"
    return PauseWork(doing, f"Move this work out of the step: {places}.")


def _evidence(path: HotPath) -> tuple[Evidence, ...]:
    if not path.activities:
        return ()
    shown: list[Activity] = list(path.activities[-_SHOWN:])
    if path.outermost_op is not None and path.outermost_op not in shown:
        shown = [path.outermost_op, *shown[1:]]
    names = " > ".join(kinds.short_name(activity.name) for activity in shown)
    return (
        Evidence("what the CPU was in", names),
        Evidence("time in the last of these", path.activities[-1].time_ns, "ns"),
    )
