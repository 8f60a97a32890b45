"""Titles, advice and fixes of rules on loaders as texts, and where a loader is made and used."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoctor.analyzers._cpu_evidence import FoundWork
from perfdoctor.analyzers._loader_model import LoaderModel
from perfdoctor.analyzers._loader_wait_parts import LoaderWait, LoadingWork, WaitParts
from perfdoctor.analyzers._shared_cores import Choice, SharedCores
from perfdoctor.rules import (
    USED_AT,
    Action,
    Advice,
    Evidence,
    LoaderFacts,
    Rank,
    Saving,
    SourceLocation,
    advise,
    captured_location,
    count_recurrence,
    vocabulary,
)
from perfdoctor.rules import activity_kinds as kinds

# A part of the wait gets a sentence from this share (0 to 1) of it on.
_MIN_PART_SHARE = 0.15
_NEARLY_ALL = 0.95
# A promise that is less than this share of the step is lost in the noise of the steps, as in PD101's min_share.
_MIN_GAIN = 0.03


def stall_title(
    rank: Rank, workers: int | None, wait: LoaderWait, location: SourceLocation | None, *, is_made_anew: bool = False
) -> str:
    """How long the GPU or the loop waits for which loader, and why.

    What is left after a fix is no part of it where a replay says that: there would be two figures.
    """
    step = format_ms(rank.mean_step_ns)
    whole = f"each {step} step" if rank.steps.count else f"the trace's {step}"
    waits = f"{_who_waits(rank)} {format_ms(wait.cost_ns)} of {whole}{say_own_part(wait)} for"
    if workers is None:
        return f"{waits} {location.short if location else 'the DataLoader'}"
    where = f"{location.short}, whose DataLoader" if location else "the DataLoader, which"
    verb = "does" if workers == 1 else "do"
    why = "has no workers" if workers == 0 else f"has {count_workers(workers)} that {verb} not keep up"
    return f"{waits} {where} {'begins anew for each batch' if is_made_anew else why}"


def say_own_part(wait: LoaderWait) -> str:
    """What of the waits is for the loader that is named, where there are several, as a part of a sentence."""
    return "" if wait.share > _NEARLY_ALL else f" for several loaders, {format_ms(wait.own_ns)} of it"


# What else helps where the training process itself does this kind of work to load a batch, and what a GPU adds to that.
CHEAPER_BATCH: Mapping[str, tuple[str, str]] = {
    kinds.IMAGE_DECODING: ("store smaller images", ", or decode on the GPU (nvJPEG, NVDEC)"),
    kinds.TOKENIZING: ("tokenize the data set once and store it", ""),
    kinds.LISTS_TO_TENSORS: ("keep numbers in NumPy arrays or tensors instead of lists", ""),
    kinds.ARCHIVE: ("open the archive once, not for each item, and keep what it holds unpacked", ""),
    kinds.FILE_OR_SOCKET: ("keep the files near, and read them in larger pieces", ""),
    kinds.PREPROCESSING: ("preprocess ahead of time", ", or on the GPU"),
    kinds.SLEEP: ("keep what it waits for from the last epoch, or wait once for all items", ""),
}


def describe_loading_work(work: LoadingWork | None, *, says_how: bool = True) -> str:
    """A sentence about what the training process does to load a batch; empty where that is not known.

    `says_how` is whether it says how to make a batch cheaper, too.
    """
    if work is None:
        return ""
    where = f" ({work.location.short})" if work.location else ""
    kind = f", {work.kind}" if work.kind else ""
    advice = "".join(CHEAPER_BATCH.get(work.kind or "", ())) if says_how else ""
    cheaper = f": to make a batch cheaper, {advice}" if advice else ""
    name = kinds.short_name(work.name)
    if work.location is not None:
        name = name.removesuffix(f" ({SourceLocation(work.location.file).short})")
    return f" {format_ms(work.time_ns)} of the wait is {name}{where}{kind}{cheaper}."


def stall_advice(
    rank: Rank, loader: LoaderModel, captured: LoaderFacts, parts: WaitParts, work: LoadingWork | None = None
) -> Advice:
    """What to change: the number of workers, the work on a batch, and what the main process does."""
    makes_one_do = loader.is_made_anew and loader.max_workers is None
    if makes_one_do:
        advice = (
            "Make the iterator once, before the loop, and take batches from it: one that is made for each batch draws "
            "the order of all items anew, and nobody loads its first batch ahead. Workers would begin anew, too."
        )
    elif loader.workers is None:
        advice = "Raise num_workers of this DataLoader until the wait is gone, or make a batch cheaper to load."
    elif loader.max_workers is not None and loader.workers_to_keep_up > loader.max_workers:
        advice = (
            "Hand the pipeline a data set or a generator instead of single inputs: its DataLoader then prepares the "
            "next input in one worker. Pipelines that cut an input into chunks allow no more than that one."
        )
    elif loader.lacks_cores and loader.is_memory_bound:
        advice = (
            f"Use {count_workers(loader.recommended_workers)}, and let the data set wait less: keep its files near, "
            f"and read them in larger pieces. Loading a batch takes {format_ms(loader.batch_ns)} and computes for "
            f"{loader.cpu_share or 0:.0%} of it: {loader.workers_to_keep_up} workers would hide it, each a process "
            "with a memory of its own."
        )
    elif loader.lacks_cores:
        why = f"there are {loader.cores} cores, and the training needs one"
        if loader.others_have_cores:
            why = "other programs have the cores"
        elif loader.cores is None:
            why = "how many cores there are was not recorded"
        advice = (
            f"{_use_workers(loader)}: decode ahead of time, or transform on the GPU. Loading a batch takes "
            f"{loader.batch_cpu_ns / 1e6:.1f} ms of CPU time: {loader.workers_to_keep_up} workers would hide it, but "
            f"{why}."
        )
    else:
        advice = _advise_more_workers(loader)
    if rank.device_kind == "cpu" and loader.takes_cores and not makes_one_do:
        advice += (
            f" The training itself computes with {loader.threads} threads on {loader.cores} cores: workers take their "
            "time from it, so they save little beyond the time in which cores idle."
        )
    main_process = "" if makes_one_do else _describe_main_process(loader, parts)
    said = f"{advice}{describe_loading_work(work)}{main_process}"
    return _set_workers(rank, loader, captured)._replace(sentence=said)


def _use_workers(loader: LoaderModel) -> str:
    if loader.recommended_workers == (loader.workers or 0):
        return "Make the batch cheaper, as more workers do not help"
    return f"Use {count_workers(loader.recommended_workers)}, and make the batch cheaper"


def _advise_more_workers(loader: LoaderModel) -> str:
    advice = (
        f"Load batches in {loader.workers_to_keep_up} worker processes: together they finish one in the "
        f"{loader.unstalled_step_ns / 1e6:.1f} ms that a step takes without the wait."
    )
    if loader.cores is not None and loader.workers_to_keep_up > loader.cores:
        advice += (
            f" They are more than the {loader.cores} cores, which PyTorch warns about; but loading computes for only "
            f"{loader.cpu_share or 0:.0%} of its time and waits for the rest."
        )
    return advice


def _describe_main_process(loader: LoaderModel, parts: WaitParts) -> str:
    """What the main process does in the wait, where it is much of it."""
    to_device_ns = parts.copy_ns + parts.pin_ns
    # The loop's waits are longer than what they cost where a GPU has work meanwhile: the text speaks of the cost.
    cost_share = min(loader.idle_ns / max(loader.wait_ns, 1), 1.0)
    if to_device_ns > _MIN_PART_SHARE * loader.wait_ns:
        return (
            f" {format_ms(cost_share * to_device_ns)} of the wait is copying or pinning inside the loader, which "
            "workers do not take over: return CPU tensors, set pin_memory=True, and copy in the loop without blocking."
        )
    if parts.collate_ns > _MIN_PART_SHARE * loader.wait_ns:
        advice = "it moves to the workers, too" if loader.workers == 0 else "the main process does it: leave it to them"
        return f" {format_ms(cost_share * parts.collate_ns)} of the wait is collating the samples; {advice}."
    return ""


def _set_workers(rank: Rank, loader: LoaderModel, captured: LoaderFacts) -> Advice:
    """The arguments of the DataLoader to set, as this program sets them; without code where it has as many as help."""
    if loader.is_made_anew and loader.max_workers is None:
        return Advice("", "batches = iter(loader)   # before the loop; in it next(batches), anew after StopIteration")
    if loader.workers is not None and loader.recommended_workers == loader.workers:
        return Advice("")
    if loader.max_workers is not None:
        workers = min(loader.recommended_workers, loader.max_workers)
        return Advice("", f"pipeline(dataset, num_workers={workers})", actions=(Action("workers", workers),))
    pin = ", pin_memory=True" if rank.device_kind == "gpu" and not captured.pin_memory else ""
    if loader.workers is None:
        return advise("loader too slow", rank.context, workers="...", pin=pin)._replace(actions=())
    return advise("loader too slow", rank.context, workers=loader.recommended_workers, pin=pin)


def _who_waits(rank: Rank) -> str:
    if rank.device_kind == "gpu":
        return "The GPU waits"
    return "The loop waits" if rank.context.is_forward_only else "The training loop waits"


def count_workers(count: int) -> str:
    """A number of workers in words."""
    return "one worker" if count == 1 else f"{count} workers"


def format_ms(ns: float) -> str:
    """A time in ms, or in us where it is short."""
    if ns < 100e3:
        return f"{ns / 1e3:.3g} us"
    return f"{ns / 1e6:.0f} ms" if ns >= 100e6 else f"{ns / 1e6:.3g} ms"


def find_loader_place(rank: Rank, captured: LoaderFacts) -> SourceLocation | None:
    """Where a loader was made, else where the loop takes its batches: from the facts, else from Python frames."""
    for line in (captured.created, captured.location):
        place = captured_location(line)
        if place is not None:
            return place
    return rank.places.line_of_named(vocabulary.DATALOADER_NEXT)


def evidence_of_use(captured: LoaderFacts) -> Evidence:
    """The line of the loop that asks for batches."""
    place = captured_location(captured.location)
    return Evidence("used at", str(place) if place else None, id=USED_AT)


def advise_workers(
    rank: Rank, loader: SharedCores, wait: LoaderWait, work: LoadingWork | None, created: SourceLocation | None
) -> FoundWork | None:
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
    if choice is None:
        return None
    advice = advise("loader too slow", rank.context, workers=choice.workers, pin="")
    processes = "one worker process" if choice.workers == 1 else f"{choice.workers} worker processes"
    text, fix, actions = f"Load batches in {processes}", advice.code, advice.actions
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
    return FoundWork(
        title,
        Advice(f"{text}{describe_loading_work(work)}", fix, actions=actions),
        wait.idle,
        Saving(low, expected, high, "bounded"),
        created,
        confidence=0.9,
        recurrence=count_recurrence(wait.idle, rank.steps, rank.profiler_factor),
    )


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
