"""What PD010 says of each cause of drift: what grew, what to do, and the code of the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from perfdoctor.rules import OpGrowth, format_ms

# An op is named beside the one that grows most at its line where it has so much of its rise.
_NAMED_SHARE = 1 / 4


class CauseText(NamedTuple):
    """The words for a cause.

    Attributes:
        grew: What grew, after a colon.
        advice: What to do.
        fix: Code that does it; None where none fits every program.
        may_be_meant: Whether the program may have been written to do more and more: such a finding is low.
    """

    grew: str
    advice: str
    fix: str | None = None
    may_be_meant: bool = False


_IF_MEANT = "If it is meant to (a curriculum, a buffer that fills), nothing is wrong. Else "

TEXTS: Mapping[str, CauseText] = {
    "host": CauseText(
        "Python code outside of ops takes longer and longer",
        "Do not go over all that was collected so far in each step: keep a running sum and a count, or the last "
        "values only.",
        "history = collections.deque(maxlen=1000)  # instead of a list that grows",
    ),
    "graph": CauseText(
        "the backward pass runs through the graphs of earlier steps",
        "Detach what is carried from one step to the next; retain_graph=True is not needed then.",
        "state = state.detach()  # before the next step uses it",
    ),
    "calls": CauseText(
        "a step makes more and more calls",
        "Look for what each step appends or registers, and all later steps run: a list of tensors, hooks, "
        "callbacks, parameter groups. Keep a running value instead of a list; register once before the loop, or "
        "remove it again.",
    ),
    "shapes": CauseText(
        "the tensors grow",
        _IF_MEANT + "bound what grows: the length of sequences, the rows of a buffer that each step appends to.",
        "buffer = torch.cat([buffer, new])[-max_rows:]",
        may_be_meant=True,
    ),
    "samples": CauseText(
        "batches hold more samples",
        _IF_MEANT + "look at what makes batches: a sampler by length, or a batch size that is raised.",
        may_be_meant=True,
    ),
    "loader": CauseText(
        "the loop waits longer and longer for its loader",
        "See what the data set does more of the longer it runs: a list that it searches, files that lie further "
        "apart, a cache of files that is full.",
    ),
    "loader_work": CauseText(
        "the loader computes longer and longer for a batch",
        "Bound what the data set keeps from item to item, and look things up in a set or a dict: a list takes "
        "longer with each item in it.",
        "self.seen = set()  # instead of a list: `in` takes the same time whatever its size",
    ),
    "loader_files": CauseText(
        "the loader waits longer and longer for its data, without more CPU time",
        "The files no longer come from the page cache, lie apart on the disk since they are shuffled, or the disk "
        "or network is slower. Keep the data on a local disk and in larger files that are read from start to end; "
        "more workers hide what is left.",
        "loader = DataLoader(dataset, num_workers=4, prefetch_factor=8)",
    ),
    "collector": CauseText(
        "collecting garbage takes longer with the objects that live",
        "Keep numbers in tensors or arrays rather than in objects of Python, freeze what lives long, and collect "
        "rarely.",
        "gc.collect()\ngc.freeze()  # what lives now is scanned no more",
    ),
    "host_calls": CauseText(
        "checkpoints or logs take longer and longer to write",
        "See what the saved state has more of each time, such as the history of all steps. Append that to a file "
        "of its own, and save the weights alone.",
    ),
    "cores": CauseText(
        "the training thread waits for a core that others have",
        "Nothing in the program is wrong: another program on this machine, or its own workers, took the cores. "
        "Move it, or give each its cores (taskset, CPU quotas).",
    ),
    "compile": CauseText(
        "torch.compile compiles again and again",
        "Keep the shapes and the Python numbers that a compiled function gets to a few, or mark what varies.",
        "torch._dynamo.mark_dynamic(tensor, 0)",
    ),
    "clocks": CauseText(
        "the GPU's clock has fallen",
        "Nothing in the program is wrong: see the card's cooling and power limit, and who shares its enclosure.",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE",
    ),
    "allocator": CauseText(
        "the CUDA allocator takes longer and longer",
        "Its free blocks no longer fit: let segments grow, and keep sizes to a few.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    "ops": CauseText(
        "the same ops on the same shapes take longer",
        "The machine is slower than at first: a lower clock of the CPU, or memory that other programs use, too. "
        "Where values get tiny, denormal numbers do it: torch.set_flush_denormal(True).",
    ),
    "slower": CauseText(
        "ops take longer",
        "Whether their inputs grow is not known. Print the shapes of what they get, early and late: bound what "
        "grows; where nothing does, the machine may be slower.",
    ),
    "system": CauseText(
        "the operating system works for the program: page faults, swap, files",
        "See whether memory grows until it is swapped (`vmstat 1`), and free what is not needed.",
    ),
    "cpu": CauseText("steps take more CPU time", "What takes it was not recorded."),
    "waits": CauseText("steps wait longer, without more CPU time", "What they wait for was not recorded."),
    "unknown": CauseText("what grows was not recorded", "What they do was not recorded."),
}


def describe_growth(ops: Sequence[OpGrowth], kind: str) -> str:
    """What ops at one line take, and what grew by the kind of cause; "" for none.

    For example "std and cat at job.py:15 take 3.10 ms early and 84.0 ms late, as their input grew from [360, 256] to
    [6720, 256]".
    """
    named = [op for op in ops if op.rise_ns >= _NAMED_SHARE * ops[0].rise_ns][:2]
    if not named:
        return ""
    first, (verb, whose) = named[0], ("takes", "its") if len(named) == 1 else ("take", "their")
    place = f" at {first.location.short}" if first.location else ""
    early, late = (format_ms(sum(each)) for each in zip(*((op.before_ns, op.after_ns) for op in named), strict=True))
    names = " and ".join(op.name for op in named)
    return f"{names}{place} {verb} {early} early and {late} late, {_describe_change(first, kind, whose)}"


def _describe_change(op: OpGrowth, kind: str, whose: str) -> str:
    if kind in ("calls", "graph"):
        early, late = (each.calls if each else 0 for each in (op.before, op.after))
        return f"as a step runs {early:,.0f} of {op.name} early and {late:,.0f} late"
    if op.before is None or op.after is None or op.inputs == "unknown":
        return "on inputs of unknown shapes"
    old, new = op.before.smallest, op.after.largest
    if op.inputs == "same":
        return f"on {list(max(new, key=prod))} both times"
    if op.inputs == "other":
        return "on inputs that vary in size"
    if len(old) != len(new):
        return f"as {whose} inputs grew from {len(old)} to {len(new)} tensors"
    grown = max(range(len(old)), key=lambda number: prod(new[number]) - prod(old[number]))
    return f"as {whose} input grew from {list(old[grown])} to {list(new[grown])}"
