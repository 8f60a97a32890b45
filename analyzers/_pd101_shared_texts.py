"""What PD101 says of a program without a GPU whose cores and loading were measured."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analyzers._pd101_shared_cores import Choice, SharedCores
from perfdoctor.analyzers._pd101_texts import CHEAPER_BATCH, count_workers, describe_loading_work, format_ms
from perfdoctor.analyzers._pd101_wait_parts import LoadingWork
from perfdoctor.rules import Rank, Saving, SourceLocation, activity_kinds, advise

# A promise that is less than this share of the step is lost in the noise of the steps, as in PD101's min_share.
_MIN_GAIN = 0.03
# A worker finds a core where the training leaves so much of one.
_FREE_CORES = 0.5
_CHEAPER_IN_GENERAL = "prepare once what does not change, and work on whole arrays or batches instead of Python loops"
# Loading below this share of the step is not worth a change of the data set.
_MIN_TRANSFORM_SHARE = 0.1


class SharedAdvice(NamedTuple):
    """What to say of a loader.

    Attributes:
        title, advice, fix: The texts of the finding.
        saving: Of a step, on the clock of the recorded steps.
        location: The line to change.
        confidence: From 0 to 1.
    """

    title: str
    advice: str
    fix: str | None
    saving: Saving
    location: SourceLocation | None
    confidence: float


def advise_shared_cores(
    rank: Rank, loader: SharedCores, work: LoadingWork | None, created: SourceLocation | None
) -> SharedAdvice | None:
    """What helps where training and loading share the cores; None where nothing does, or nothing is lost.

    More workers, where the shortest of the possible steps is with them and no step gets longer; one worker beside one
    thread of the training; or less work a batch.

    Args:
        rank: The rank.
        loader: What was measured.
        work: What the training process does to load; None where it is not known.
        created: Where the loader was made.
    """
    if loader.workers_keep_up:
        return None
    choice = loader.choose_workers()
    if _is_sure(loader, choice):
        return _advise_workers(rank, loader, choice, work, created)
    if loader.threads > 1 and not loader.workers:
        choice = loader.choose_workers(threads=1)
        if _is_sure(loader, choice):
            return _advise_workers(rank, loader, choice, work, created)
    if loader.wait_ns >= _MIN_TRANSFORM_SHARE * loader.step_ns:
        return _advise_cheaper_batch(rank, loader, work, created)
    return None


def _is_sure(loader: SharedCores, choice: Choice) -> bool:
    """Whether a setting is worth it as expected, and makes no step longer under bad assumptions."""
    is_new = choice.workers > loader.workers
    gain_ns = loader.step_ns - choice.step.expected_ns
    return is_new and gain_ns >= _MIN_GAIN * loader.step_ns and choice.step.slow_ns <= loader.step_ns


def _advise_workers(
    rank: Rank, loader: SharedCores, choice: Choice, work: LoadingWork | None, created: SourceLocation | None
) -> SharedAdvice:
    advice = advise("loader too slow", rank.context, workers=choice.workers, pin="")
    text, fix = f"Load batches in {_processes(choice.workers)}", advice.code
    if choice.threads is not None:
        fix = f"torch.set_num_threads({choice.threads}); {fix}"
        text += (
            f", and compute with one thread: the program's ops are too small to gain much from {loader.threads} "
            "threads, and a thread waits for a worker on its core"
        )
    text += f": loading a batch takes {format_ms(loader.fetch_ns / max(loader.batches, 1))}"
    if loader.fetch_cpu_ns < loader.fetch_ns / 2:
        text += (
            f", but computes for only {loader.fetch_cpu_ns / max(loader.fetch_ns, 1):.0%} of it and waits for the rest"
        )
    text += (
        f". The program itself uses {loader.training_cores:.2g} of {loader.cores:.3g} cores. "
        f"To take a batch over costs about {format_ms(loader.handover_ns / max(loader.batches, 1))}, which is counted."
    )
    expected = f"about {format_ms(choice.step.expected_ns)}"
    beside = " beside one thread" if choice.threads else ""
    title = f"{_what_waits(loader, created)}; with {count_workers(choice.workers)}{beside} {expected}"
    saving = scale_saving(rank, loader, choice)
    return SharedAdvice(title, f"{text}{describe_loading_work(work)}", fix, saving, created, 0.9)


def _advise_cheaper_batch(
    rank: Rank, loader: SharedCores, work: LoadingWork | None, created: SourceLocation | None
) -> SharedAdvice:
    # What is prepared once, or for a whole batch, takes all that is around it with it: loops, copies, collation.
    most_ns = loader.wait_ns * _recorded_scale(rank, loader)
    name = "loading" if work is None else activity_kinds.short_name(work.name)
    cheaper = None if work is None else CHEAPER_BATCH.get(work.kind or "")
    if cheaper is not None and "GPU" in cheaper:
        cheaper = cheaper.split(", or ")[0]  # this program has none
    why, because = _why_no_workers(loader)
    text = f"Make a batch cheaper: {cheaper or _CHEAPER_IN_GENERAL}. {because}{describe_loading_work(work)}"
    location = (work.location if work is not None else None) or created
    place = ""
    if location is not None and location != created:
        name = location.function or name
        place = f" ({location.short})"
    title = f"{_what_waits(loader, created)}; {why}, so {name}{place} has to get cheaper"
    return SharedAdvice(title, text, None, Saving(0, None, round(most_ns), "bounded"), location, 0.5)


def _why_no_workers(loader: SharedCores) -> tuple[str, str]:
    """Why (more) workers do not make the step shorter: for the title, and as a sentence."""
    more = "more " if loader.workers else ""
    if loader.cores - loader.training_cores >= _FREE_CORES:
        handover = format_ms(loader.handover_ns / max(loader.batches, 1))
        fetch = format_ms(loader.fetch_ns / max(loader.batches, 1))
        subject = "More workers" if more else "Workers"
        sentence = (
            f"{subject} would save little or nothing: handing a batch over takes {handover}, loading one {fetch}."
        )
        return f"{more}workers would save little or nothing", sentence
    used = f"{loader.training_cores:.2g} of {loader.cores:.3g} cores"
    sentence = f"More workers would not help: the program itself uses {used}"
    if loader.workers:
        sentence += f", {count_workers(loader.workers)} the others"
    return f"no core is left for {more}workers", f"{sentence}, and a worker that computes takes its time from them."


def scale_saving(rank: Rank, loader: SharedCores, choice: Choice) -> Saving:
    """What a setting saves of a recorded step, which the profiler makes longer than the measured one."""
    scale = _recorded_scale(rank, loader)
    low, expected, high = (max(round(scale * (loader.step_ns - each)), 0) for each in choice.step)
    return Saving(low, expected, high, "bounded")


def _recorded_scale(rank: Rank, loader: SharedCores) -> float:
    return rank.per_step(rank.window_ns) / max(loader.step_ns, 1)


def _what_waits(loader: SharedCores, created: SourceLocation | None) -> str:
    where = f"{created.short}, whose DataLoader" if created else "the DataLoader, which"
    verb = "does" if loader.workers == 1 else "do"
    why = f"has {count_workers(loader.workers)} that {verb} not keep up" if loader.workers else "has no workers"
    waits = f"{format_ms(loader.wait_ns)} of each {format_ms(loader.step_ns)} step"
    return f"The training loop waits {waits} for {where} {why}"


def _processes(workers: int) -> str:
    return "one worker process" if workers == 1 else f"{workers} worker processes"
