"""Why slow steps are slow: what they were seen to contain, in words, and what to do; never a guess."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._pd003_slow_steps import Activity, MoreOps, SlowSteps
from perfdoctor.rules import Action, BoolArray, Int64Array, Rank, RunSteps

# Of the time by which slow steps exceed the others, what names its cause.
_MIN_SHARE_OF_EXCESS = 0.5
# Calls of an op or annotation in a slow step over those in another one, from which on the slow step does more.
_MORE_CALLS = 1.2
# From so many times as many ops on, all of them forward, a step evaluates; an augmentation calls a few more.
_EVALUATION_CALLS = 2.0
# Up to so many times as many nodes of backward passes are as many.
_AS_MANY = 1.05


class SlowCause(NamedTuple):
    """What makes steps slow.

    Attributes:
        text: What they contain, after a colon or before "in the long ones"; "" where nothing was seen.
        advice: What to do about it, or how to find out.
        is_seen: Whether a recording shows it.
        is_intended: Whether it is work that the program was written to do now and then, such as an evaluation.
        took_cpu_time: Whether the steps took more CPU time, though not for what: the program is at work.
        is_elsewhere: Whether another rank has it, so that nothing is to be done on this one.
        actions: What the advice does, for `perfdoctor try`.
    """

    text: str
    advice: str
    is_seen: bool = True
    is_intended: bool = False
    took_cpu_time: bool = False
    is_elsewhere: bool = False
    actions: tuple[Action, ...] = ()


_BY_CONTENT = {
    "save": SlowCause(
        "they save a checkpoint",
        "Save less often, or on a thread of its own: copy the state dict first "
        "(torch.distributed.checkpoint.async_save does both).",
    ),
    "compile": SlowCause(
        "torch.compile compiles in them",
        "Keep the shapes of inputs to a few, or mark what varies: torch._dynamo.mark_dynamic.",
    ),
    "gc": SlowCause(
        "Python collects garbage in them",
        "Freeze what lives long once it is made: gc.collect(); gc.freeze(). It is scanned no more.",
        actions=(Action("gc"),),
    ),
    "evaluation": SlowCause(
        "they evaluate",
        "Evaluate less often, on fewer batches, or under torch.inference_mode with larger batches, if its share of the "
        "run is too much.",
        is_intended=True,
    ),
    "rollout": SlowCause(
        "they collect more experience (forward passes without gradients)",
        "Step several environments at once, so that a forward pass serves all of them.",
        is_intended=True,
    ),
}
# PD113 and PD110 tell these, where a capture has timed them.
_OF_OTHER_RULES = ("save", "gc")
_WORK_VARIES = "Give steps the same work: group batches by length, or cap it, if inputs vary."


def find_steps_with_content(
    steps: RunSteps, dur_ns: Int64Array, max_share: float
) -> Iterator[tuple[SlowSteps, SlowCause]]:
    """The steps that contain something that others do not, where they are longer, and that as their cause.

    Args:
        steps: The steps of the run.
        dur_ns: Their durations without what other programs took, for equal work.
        max_share: The share of the steps (0 to 1) that may contain it.
    """
    for content, cause in _BY_CONTENT.items():
        if content in _OF_OTHER_RULES and steps.host_call_ns is not None:
            continue
        has = steps.which_contain(content)
        if not 0 < int(has.sum()) <= max_share * len(steps):
            continue
        median_ns = int(np.median(dur_ns[~has]))
        excess_ns = int((dur_ns[has] - median_ns).sum())
        if float(np.median(dur_ns[has])) > median_ns and excess_ns > 0:
            yield SlowSteps(np.flatnonzero(has), median_ns, excess_ns), cause


def cause_in_run(steps: RunSteps, slow: SlowSteps, skip: int | None, *, is_regular: bool) -> SlowCause:
    """What slow steps of a run were seen to do, none of which contains what others do not.

    Args:
        steps: The steps of the run.
        slow: The slow ones.
        skip: For `perfdoctor run --skip`, so that the recording contains the next slow step; None where not known.
        is_regular: Whether a step is slow every so many steps.
    """
    is_slow = np.zeros(len(steps), bool)
    is_slow[slow.rows] = True
    excess_ns = slow.excess_ns / len(slow)
    if _excess_of(steps.loader_wait_ns, is_slow) > _MIN_SHARE_OF_EXCESS * excess_ns:
        return SlowCause("they wait for the loader", _even_out_loader(None))
    record = "Record what they do: perfdoctor run" + (f" --skip {skip}" if skip is not None else ", with --skip")
    if steps.cpu_ns is None:
        shared = "" if is_regular else " It may be that other programs share the machine: then nobody is to blame."
        return SlowCause("", f"What they do was not recorded. {record}.{shared}", is_seen=False)
    if _excess_of(steps.cpu_ns, is_slow) < _MIN_SHARE_OF_EXCESS * excess_ns:
        waits = "they wait, without more CPU time"
        return SlowCause(
            waits, f"What they wait for (a file, a network, a lock, a GPU) was not recorded. {record}.", is_seen=False
        )
    return SlowCause("they take more CPU time", f"What takes it was not recorded. {record}.", is_seen=False)


def _excess_of(values: np.ndarray, is_slow: BoolArray) -> float:
    return float(values[is_slow].mean() - np.median(values[~is_slow]))


def _even_out_loader(rank: Rank | None) -> str:
    """What evens out a loader, by its settings, where they were captured."""
    loaders = rank.facts.loaders if rank is not None else ()
    workers = [each.num_workers for each in loaders]
    if workers and all(count == 0 for count in workers):
        return "Make the batches of these steps cheaper: the loop makes them itself, as the loader has no workers."
    if loaders and all(each.persistent_workers for each in loaders):
        return "Even it out by a larger prefetch_factor."
    return "Even it out by a larger prefetch_factor, and by persistent_workers=True where epochs are short."


def cause_in_trace(
    rank: Rank, part: str, excess_ns: int, activity: Activity | None, ops: MoreOps, *, took_cpu_time: bool
) -> SlowCause:
    """What slow steps of a trace contain more of.

    Args:
        rank: The rank.
        part: The part of the account in which they exceed the others most.
        excess_ns: By how much they exceed the others.
        activity: The op or annotation that takes most more time in them; None where there is none.
        ops: How many ops they call, and others.
        took_cpu_time: Whether most of that is CPU time: steps that wait for a core do no more work.
    """
    waits = {
        "idle_dataloader": SlowCause("more waits for the loader", _even_out_loader(rank)),
        "idle_sync": SlowCause("more waits for the GPU", "Read values back less often: these steps wait for some."),
        "idle_allocator": SlowCause("more memory allocation", "Warm up with the largest input; keep sizes few."),
        "communication": SlowCause(
            "longer collectives", "Analyse the ranks together: another one is late in these steps.", is_elsewhere=True
        ),
        "idle_communication": SlowCause(
            "more waits for other ranks",
            "Analyse the ranks together: another one is late in these steps.",
            is_elsewhere=True,
        ),
        "memcpy": SlowCause("more copying", "See which copies are more or larger there, and copy from pinned memory."),
    }
    if part in waits:
        return waits[part]
    if activity is not None and activity.excess_ns >= _MIN_SHARE_OF_EXCESS * excess_ns:
        does_more = activity.calls > _MORE_CALLS * activity.usual_calls
        if activity.is_annotation:
            advice = f"See what {activity.name} does there, and how often it must."
            return SlowCause(f"more time in {activity.name}", advice, is_seen=does_more)
        if does_more:
            return SlowCause(
                f"more calls of {activity.name} ({activity.calls:.3g} instead of {activity.usual_calls:.3g})",
                _WORK_VARIES,
            )
    if ops.calls > _MORE_CALLS * ops.usual_calls > 0:
        times = f"{ops.calls:,.0f} ops instead of {ops.usual_calls:,.0f}"
        is_larger = ops.calls >= _EVALUATION_CALLS * ops.usual_calls
        if is_larger and 0 < ops.backward_calls <= _AS_MANY * ops.usual_backward_calls:
            return _BY_CONTENT["evaluation"]._replace(text=times)
        return SlowCause(times, _WORK_VARIES, is_seen=False)
    on_gpu = rank.device_kind == "gpu"
    if part in ("compute", "bandwidth", "latency"):
        if on_gpu:
            return SlowCause("more GPU work", _WORK_VARIES)
        if took_cpu_time:
            return SlowCause("more work in the ops", _WORK_VARIES, is_seen=False, took_cpu_time=True)
        return SlowCause(
            "the same ops take longer",
            f"{_WORK_VARIES} Else other programs shared the machine, and nothing is to be done.",
            is_seen=False,
        )
    return SlowCause(
        "work on the CPU that no op shows",
        "What it is was not recorded: record stacks (with_stack=True, or perfdoctor run).",
        is_seen=False,
    )
