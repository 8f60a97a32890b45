"""What PD101 says of a program without a GPU whose cores and loading were measured."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._loader_texts import count_workers, describe_loading_work, format_ms, stall_title
from perfdoctor.analyzers._loader_wait_parts import LoaderWait, LoadingWork
from perfdoctor.analyzers._shared_cores import Choice, SharedCores
from perfdoctor.rules import Action, Advice, Rank, Saving, SourceLocation, advise

# A promise that is less than this share of the step is lost in the noise of the steps, as in PD101's min_share.
_MIN_GAIN = 0.03


class SharedAdvice(NamedTuple):
    """What to say of a loader.

    Attributes:
        title, advice: Of the finding.
        saving: Of a step, on the clock of the recorded steps.
        location: The line to change.
        confidence: From 0 to 1.
    """

    title: str
    advice: Advice
    saving: Saving
    location: SourceLocation | None
    confidence: float


def advise_workers(
    rank: Rank, loader: SharedCores, wait: LoaderWait, work: LoadingWork | None, created: SourceLocation | None
) -> SharedAdvice | None:
    """The workers that help where training and loading share the cores; None where none do, or nothing is lost.

    More workers, where the shortest of the possible steps is with them and no step gets longer; else one worker beside
    one thread of the training.

    Args:
        rank: The rank.
        loader: What was measured.
        wait: What the waits for batches cost.
        work: What the training process does to load; None where it is not known.
        created: Where the loader was made.
    """
    choice = choose_sure_workers(loader)
    return None if choice is None else _advise_workers(rank, loader, choice, wait, work, created)


def choose_sure_workers(loader: SharedCores) -> Choice | None:
    """The workers that make the step shorter for sure, of a loader that does not keep up; None where none do.

    Where other programs have the cores, none do whose loading computes: a worker would get no core either.
    """
    if loader.workers_keep_up or (loader.others_have_cores and loader.computes):
        return None
    choice = loader.choose_workers()
    if _is_sure(loader, choice):
        return choice
    if loader.threads > 1 and not loader.workers:
        choice = loader.choose_workers(threads=1)
        if _is_sure(loader, choice):
            return choice
    return None


def _is_sure(loader: SharedCores, choice: Choice) -> bool:
    """Whether a setting is worth it as expected, and makes no step longer under bad assumptions."""
    is_new = choice.workers > loader.workers
    gain_ns = loader.step_ns - choice.step.expected_ns
    return is_new and gain_ns >= _MIN_GAIN * loader.step_ns and choice.step.slow_ns <= loader.step_ns


def _advise_workers(
    rank: Rank,
    loader: SharedCores,
    choice: Choice,
    wait: LoaderWait,
    work: LoadingWork | None,
    created: SourceLocation | None,
) -> SharedAdvice:
    advice = advise("loader too slow", rank.context, workers=choice.workers, pin="")
    text, fix, actions = f"Load batches in {_processes(choice.workers)}", advice.code, advice.actions
    if choice.threads is not None:
        fix, actions = f"torch.set_num_threads({choice.threads}); {fix}", (Action("threads", choice.threads), *actions)
        text += (
            f", and compute with one thread: the program's ops are too small to gain much from {loader.threads} "
            "threads, and a thread waits for a worker on its core"
        )
    text += f": loading a batch takes {format_ms(loader.fetch_ns / max(loader.batches, 1))}"
    if not loader.computes:
        text += (
            f", but computes for only {loader.fetch_cpu_ns / max(loader.fetch_ns, 1):.0%} of it and waits for the rest"
        )
    text += (
        f". The program itself uses {loader.used_cores}. "
        f"To take a batch over costs about {format_ms(loader.handover_ns / max(loader.batches, 1))}, which is counted."
    )
    # No fix saves more than the waits: a step without them is the least that workers leave.
    low, expected, high = (min(max(round(loader.step_ns - each), 0), wait.cost_ns) for each in choice.step)
    left = f"about {format_ms(loader.step_ns - expected)}"
    beside = " beside one thread" if choice.threads else ""
    title = f"{stall_title(rank, loader.workers, wait, created)}; with {count_workers(choice.workers)}{beside} {left}"
    saving = Saving(low, expected, high, "bounded")
    said = Advice(f"{text}{describe_loading_work(work)}", fix, actions=actions)
    return SharedAdvice(title, said, saving, created, 0.9)


def _processes(workers: int) -> str:
    return "one worker process" if workers == 1 else f"{workers} worker processes"
