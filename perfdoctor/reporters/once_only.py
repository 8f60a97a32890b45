"""What happens once in a recording: how much of it by which cause, and how to avoid it or leave it out. No layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfdoctor.analysis.timeline.first_use import OnceCause
from perfdoctor.report.report import OnceOnly, OncePart, Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.report_facts import has_steps
from perfdoctor.units import format_count, format_duration, format_share

# A smaller share of what happens once is not shown.
_MIN_SHARE = 0.02
_SHOWN = 4
# So many causes are named in a sentence.
_NAMED = 2

LABELS: Mapping[OnceCause, str] = {
    "first_collective": "setting up communication",
    "module_loading": "loading GPU code",
    "library_start": "starting CUDA and its libraries",
    "allocator_growth": "first allocations of device memory",
    "graph_capture": "capturing graphs",
    "autotuning": "searching for the fastest convolutions",
    "compilation": "compiling",
    "initial_weights": "filling a new model's weights",
    "warm_up": "the program's own start or warm-up",
    "unrecorded_work": "waiting for work from before the recording",
    "other": "other work before first launches",
}
_AMD_LABELS: Mapping[OnceCause, str] = {"library_start": "starting HIP and its libraries"}
_AVOID: Mapping[OnceCause, str] = {
    "first_collective": "init_process_group(..., device_id=device) connects the ranks at the start.",
    "module_loading": "CUDA_MODULE_LOADING=EAGER loads all code at the start, which costs memory.",
    "library_start": "One call of each library at start-up takes it off the first request.",
    "allocator_growth": "The allocator keeps what it got: warm up with the largest input.",
    "graph_capture": "Capture at start-up, for the few shapes that occur.",
    "autotuning": "The search is done once for each shape: keep shapes few.",
    "unrecorded_work": "torch.cuda.synchronize() right before the profiler starts leaves none.",
    "initial_weights": 'A model that loads its weights needs none before: make it under torch.device("meta"), then '
    "load_state_dict(..., assign=True).",
    "compilation": "TORCHINDUCTOR_CACHE_DIR on a disk that stays keeps compiled code between runs.",
}
_AMD_AVOID: Mapping[OnceCause, str] = {
    "module_loading": "One launch of each kernel at start-up takes it off the first request.",
    "autotuning": "MIOpen keeps what it found in its user database: keep ~/.config/miopen between runs.",
}
_RECORD_LATER = (
    "Record after it: `perfdoctor run`, or torch.profiler.schedule(wait=1, warmup=3, active=3) with profiler.step() in "
    "each iteration."
)


class OnceRow(NamedTuple):
    """A cause: its time, its share of the recording, and what it is."""

    time: str
    share: str
    what: str


class OnceText(NamedTuple):
    """What happens once, in words.

    Attributes:
        title: How much it is.
        rows: The causes.
        advice: What to do about it; "" where nothing of the analysed time was lost to it.
    """

    title: str
    rows: tuple[OnceRow, ...]
    advice: str


def once_of(report: Report) -> OnceOnly | None:
    """What happens once on the rank where that is most; None where nothing does."""
    return max(report.once, key=lambda once: (once.left_out_ns, once.time_ns), default=None)


def is_first_run(report: Report) -> bool:
    """Whether nothing comes back on any rank."""
    return len(report.once) == len(report.account) > 0 and all(once.is_first_run for once in report.once)


def once_text_of(report: Report) -> OnceText | None:
    """What happens once, in words; None where nothing does."""
    once = once_of(report)
    if once is None:
        return None
    rank = f" on rank {once.rank}" if len(report.account) > 1 else ""
    title = f"Once{rank}: {format_duration(once.time_ns)} of {format_duration(once.recording_ns)} recorded"
    if once.left_out_ns:
        title += ", left out of all other figures"
        title += f", with {format_count(once.cold_steps, 'cold step')}" if once.cold_steps else ""
    elif has_steps(report):
        title += ", before the steps"
    shown = [part for part in once.parts if part.time_ns >= _MIN_SHARE * once.time_ns][:_SHOWN]
    rows = tuple(
        OnceRow(format_duration(part.time_ns), format_share(part.share), _describe(part, report)) for part in shown
    )
    avoid = _word(_AVOID, _AMD_AVOID, once.parts[0].cause, report)
    advice = f"{_RECORD_LATER} {avoid}".strip() if once.left_out_ns else ""
    return OnceText(title, rows, advice)


def name_causes(report: Report, once: OnceOnly, whole_ns: float) -> str:
    """The causes that take most of what happens once: "loading GPU code (5.55 s) and ...".

    Their times are left out where `whole_ns` does not include them: some of it lies before.
    """
    shown = [part for part in once.parts[:_NAMED] if part.time_ns >= once.time_ns / 10]
    is_part = sum(part.time_ns for part in shown) <= whole_ns
    return " and ".join(
        _word(LABELS, _AMD_LABELS, part.cause, report) + (f" ({format_duration(part.time_ns)})" if is_part else "")
        for part in shown
    )


def name_largest(report: Report, once: OnceOnly) -> str:
    """The cause that takes most of what happens once."""
    return _word(LABELS, _AMD_LABELS, once.parts[0].cause, report)


def _describe(part: OncePart, report: Report) -> str:
    what = _word(LABELS, _AMD_LABELS, part.cause, report)
    if part.longest is None or part.longest_ns is None or part.cause in ("warm_up", "compilation"):
        return what
    longest = f"{clean_line(part.longest)} {format_duration(part.longest_ns)}"
    return f"{what}: {longest}" if part.calls == 1 else f"{what}: {format_count(part.calls, 'call')}, longest {longest}"


def _word(words: Mapping[OnceCause, str], on_amd: Mapping[OnceCause, str], cause: OnceCause, report: Report) -> str:
    is_amd = any(trace.vendor == "amd" for trace in report.traces)
    return (on_amd if is_amd else {}).get(cause) or words.get(cause, "")
