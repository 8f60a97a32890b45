"""What a CPU that keeps the GPU waiting does, in words, and what to do about each kind of work."""

from __future__ import annotations

import re

from perfdoctor.analyzers._host_made_tensors import advise_if_made_on_host
from perfdoctor.rules import (
    HOT_PATH,
    Activity,
    Advice,
    Evidence,
    PauseGroup,
    Rank,
    SourceLocation,
    advise,
    frozen_dataclass,
    read_texts,
    vocabulary,
)
from perfdoctor.rules import activity_kinds as kinds

# So many activities of the hot path, the deepest of them, are evidence.
_SHOWN = 4
# What takes less of the pauses beside the hot path is not named.
_MIN_OTHER_SHARE = 0.1

_MODEL_CODE = re.compile(r"^nn\.Module: |^torch/nn/modules/")


@frozen_dataclass
class PauseWork:
    """What the CPU does in pauses.

    Attributes:
        doing: A verb and what it is done to, for titles: "the CPU ...".
        advice: What to do about it.
        evidence: The hot path.
    """

    doing: str
    advice: Advice
    evidence: tuple[Evidence, ...] = ()


_EAGER = "; CUDA_MODULE_LOADING=EAGER loads all at the start instead, which costs memory"
# What one more thread or process can do for the next input while the GPU works on this one.
_DONE_AHEAD = frozenset(
    {kinds.PREPROCESSING, kinds.IMAGE_DECODING, kinds.TOKENIZING, kinds.ARCHIVE, kinds.FILE_OR_SOCKET}
)


def can_be_done_ahead(group: PauseGroup) -> bool:
    """Whether a worker can do the work of some pauses ahead."""
    return group.path.kind in _DONE_AHEAD


def describe_pause(group: PauseGroup, rank: Rank) -> PauseWork:
    """What the CPU does in some pauses, and what to do about it in this program."""
    path = group.path
    doing = read_texts("words")["pauses"].get(path.kind or "")
    if doing is None or path.kind is None:
        return _describe_activity(group, rank)
    # Of some kinds the function itself is worth its name: what is prepared, logged, read, loaded.
    if path.deepest is not None and _adds_a_name(path.kind, path.deepest):
        doing += f" in {_name_in(rank, group, path.deepest)}"
    return _with_advice(group, rank, doing, path.kind)


def _with_advice(group: PauseGroup, rank: Rank, doing: str, work: str, **known: str) -> PauseWork:
    """What the CPU does, with the advice on this work in this program."""
    situation = "DDP broadcasts buffers" if work == kinds.BUFFER_BROADCAST else f"pause: {work}"
    ahead = advise(f"input prepared on the CPU{_beside_loader(rank)}", rank.context)
    advice = advise(
        situation,
        rank.context,
        ahead=ahead.sentence,
        units="steps" if rank.context.phase == "training" else "batches",
        eager="" if rank.trace.vendor == "amd" else _EAGER,
        **known,
    )
    return PauseWork(doing, advice, _evidence(group))


def _beside_loader(rank: Rank) -> str:
    """The end of the name of a situation in a program that waits for a loader."""
    return ", beside a DataLoader" if len(rank.loader_waits) else ""


def _adds_a_name(kind: str, deepest: Activity) -> bool:
    if kind == kinds.MODULE_LOAD:
        return deepest.table == "call"
    return deepest.table == "frame" and kind not in kinds.HAPPENING_ONCE


def _name_in(rank: Rank, group: PauseGroup, activity: Activity) -> str:
    """The short name of an activity, without its file where the location says that already."""
    name, location = kinds.short_name(activity.name), rank.places.line_in(group.time)
    return name.removesuffix(f" ({SourceLocation(location.file).short})") if location else name


def _describe_activity(group: PauseGroup, rank: Rank) -> PauseWork:
    """What to say where the names on the path tell no kind of work."""
    path = group.path
    activity = path.outermost_op or path.deepest
    if activity is None:
        return _with_advice(group, rank, "does something that the trace does not show", "nothing recorded")
    doing = f"is in {_name_in(rank, group, activity)}"
    if group.usual_ns is not None and path.deepest is not None:
        longest = path.deepest
        return _with_advice(
            group,
            rank,
            doing,
            "set-up for a shape",
            what=kinds.short_name(longest.name),
            usual=f"{group.usual_ns / 1e6:.2g} ms",
            here=f"{longest.time_ns / longest.runs / 1e6:.2g} ms",
        )
    if activity.table in ("op", "call"):
        on_device = advise_if_made_on_host(rank, group.time) if activity.table == "op" else None
        if on_device is not None:
            return PauseWork(doing, on_device, _evidence(group))
        return _with_advice(group, rank, doing, "an op")
    if re.search(vocabulary.OPTIMIZER_STEP, activity.name):
        return _with_advice(group, rank, doing, "the optimizer")
    if activity.table == "range":
        return _with_advice(group, rank, doing, "a range")
    if _MODEL_CODE.search(activity.name):
        return _with_advice(group, rank, doing, "code of the model")
    return _with_advice(group, rank, doing, f"other code{_beside_loader(rank)}")


def _evidence(group: PauseGroup) -> tuple[Evidence, ...]:
    path = group.path
    if not path.activities:
        return ()
    shown: list[Activity] = list(path.activities[-_SHOWN:])
    if path.outermost_op is not None and path.outermost_op not in shown:
        shown = [path.outermost_op, *shown[1:]]
    names = " > ".join(kinds.short_name(activity.name) for activity in shown)
    evidence = (
        Evidence("what the CPU was in", names, id=HOT_PATH),
        Evidence("time in the last of these", path.activities[-1].time_ns, "ns"),
    )
    other = group.others.deepest
    if other is None or other.time_ns < _MIN_OTHER_SHARE * path.time_ns or other in path.activities:
        return evidence
    return (
        *evidence,
        Evidence("in the rest of the pauses", kinds.short_name(other.name)),
        Evidence("time in that", other.time_ns, "ns"),
    )
