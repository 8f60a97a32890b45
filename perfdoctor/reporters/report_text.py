"""What every reporter for people says: the verdict in a sentence, the split of a step, the ranks, what was not judged.

Values only, no layout: the terminal, Markdown and whatever comes next put them on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from perfdoctor.analysis.timeline.account import BUCKETS, DETAILS, Account
from perfdoctor.gpu import has_tensor_cores
from perfdoctor.report.finding import STEP_AFTER, STEP_BEFORE, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters import rank_table as ranks
from perfdoctor.reporters.rank_table import RankRow
from perfdoctor.reporters.wording import UNKNOWN, clean, counted, duration, share
from perfdoctor.rules.requirements import REQUIREMENTS

# Below this share of the step a detail is no news: the same 1 % from which a finding counts as low.
WORTH_A_WORD = 0.01
# Steps whose spread (standard deviation over mean) exceeds this are said to vary.
WORTH_A_SPREAD = 0.10
# From this difference on, mean and median of the steps are both told: it is about half of a medium finding.
WORTH_TWO_FIGURES = 0.02
# From this share on, time that nobody explained is told with a clean bill: it is what makes a finding high.
WORTH_LOOKING = 0.10

DETAIL_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "compute",
        "bandwidth": "memory-bound kernels",
        "memcpy": "copies",
        "communication": "exposed communication",
        "kernel_latency": "kernels too short to fill the GPU",
        "idle_dataloader": "idle, waiting for the DataLoader",
        "idle_sync": "idle after a host-device synchronisation",
        "idle_launch": "idle, waiting for launches",
        "idle_communication": "idle, waiting for other ranks",
        "idle_allocator": "idle, waiting for memory allocation",
        "idle_unexplained": "idle, unexplained",
    }
)
# Without GPU items the account is about the program on the CPU.
CPU_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **DETAIL_WORDS,
        "bandwidth": "ops other than matrix products and convolutions",
        "kernel_latency": "ops too short to do much work",
        "idle_dataloader": "waiting for the DataLoader",
        "idle_sync": "waiting for a device",
        "idle_launch": "Python and the dispatcher, between ops",
        "idle_communication": "waiting for other ranks",
        "idle_allocator": "waiting for memory allocation",
        "idle_unexplained": "outside of PyTorch, unexplained",
    }
)
_SAID_BY_THE_BAR = ("compute", "bandwidth", "communication")
_DETERMINERS = frozenset(
    ["A", "All", "An", "Each", "Every", "Half", "Many", "Most", "No", "Some", "The", "This", "Your"]
)


class Part(NamedTuple):
    """One part of a step: its words, ns of it (per step where there are steps), and its share of the step."""

    words: str
    ns: float
    share: float


class Split(NamedTuple):
    """Where the time of an average step (or of the window) went: `buckets` in the order of the bar, then `details`."""

    window_ns: float
    title: str
    buckets: tuple[Part, ...]
    details: tuple[Part, ...]
    tensor_cores: str | None
    rates: str | None = None


class Skipped(NamedTuple):
    """Rules that share a reason for not having judged."""

    rules: tuple[str, ...]
    why: str


def has_gpu(report: Report) -> bool:
    """Whether any GPU item was seen in any trace."""
    return any(t.window_ns is not None for t in report.timeline)


def gpu_not_recorded(report: Report) -> bool:
    """Whether a GPU is named and none of its work was recorded: CPU events alone do not tell where the time went."""
    return not has_gpu(report) and any(t.device for t in report.traces)


def has_steps(report: Report) -> bool:
    """Whether costs and savings are per step."""
    return report.steps.source != "none" and report.steps.median_ns is not None


def per_step(report: Report) -> str:
    """The words after a cost: " a step", or nothing when the whole window is meant."""
    return " a step" if has_steps(report) else ""


def verdict(report: Report) -> str:
    """The report in one sentence, or two: how long a step takes, on what, and what costs most."""
    subject = _subject(report)
    worst = next((f for f in report.findings if f.severity != "info"), None)
    if worst is None:
        return f"{subject}{_clean_bill(report)}."
    title, where = clean(worst.title), clean(worst.location.short) if worst.location else ""
    sentence = f"{_lowered(title).rstrip('.')}{f', at {where}' if where and where not in title else ''}."
    amount = f"{duration(worst.cost_ns)} ({share(worst.share_of_step)}) of it"
    return f"{subject}; {amount}: {sentence}" if worst.cost_ns else f"{subject}. Above all: {sentence}"


def _subject(report: Report) -> str:
    where = _machine(report)
    middle = report.steps.median_ns
    if has_steps(report) and middle is not None:
        # Costs are amounts of an average step: where a few slow steps pull it away from the median both are told.
        mean = _mean_step_ns(report) or middle
        usual = _unprofiled(report, middle)
        if abs(mean - middle) > WORTH_TWO_FIGURES * middle:
            return f"Your step takes {duration(mean)} on average (median {duration(middle)}) {where}{usual}"
        return f"Your step takes {duration(middle)} {where}{usual}"
    windows = [a.window_ns for a in report.account] or [t.span_ns for t in report.traces]
    return f"The trace covers {duration(max(windows, default=0))} {where}, without steps"


def _unprofiled(report: Report, recorded_ns: float) -> str:
    """The step's true length, where the capture timed it and it is another: ", and 9.8 ms without the profiler"."""
    usual = report.steps.unprofiled_ns
    if usual is None or abs(recorded_ns - usual) <= WORTH_TWO_FIGURES * recorded_ns:
        return ""
    return f", and {duration(usual)} without the profiler"


def _machine(report: Report) -> str:
    if has_gpu(report):
        return f"on {_devices(report)}"
    named = next((clean(t.device) for t in report.traces if t.device), None)
    if named:
        return f"(the trace names {_with_article(named)} and holds no GPU events)"
    return "on the CPU (no GPU was seen)"


def _devices(report: Report) -> str:
    names = [clean(t.device) if t.device else "" for t in report.traces[: len(report.timeline)]]
    if len(names) > 1:
        return f"{len(names)} x {names[0]}" if names[0] and len(set(names)) == 1 else f"{len(names)} GPUs"
    return _with_article(names[0]) if names and names[0] else "an unnamed GPU"


def _with_article(name: str) -> str:
    return f"{'an' if name.startswith(('A', 'E', 'I', 'NVIDIA', 'O')) else 'a'} {name}"


def _clean_bill(report: Report) -> str:
    ran = sum(o.status == "ran" for o in report.outcomes)
    if not ran:
        return ", and no rule could judge it"
    busy = _busy_share(report)
    working = f"; the GPU is busy for {share(busy)} of it" if busy is not None else _outside(report)
    if 2 * ran < len(report.outcomes):
        few = f"; only {ran} of {len(report.outcomes)} rules could judge it"
        return f"{few}, and found nothing that costs 1% of it or more{working}"
    return f", and nothing was found that costs 1% of it or more ({counted(ran, 'rule')} judged it){working}"


def _outside(report: Report) -> str:
    """What a program on the CPU does where no rule looks: nobody should take it for healthy."""
    whole = sum(a.window_ns for a in report.account)
    outside = sum(a.detail.get("idle_unexplained", 0) for a in report.account)
    if has_gpu(report) or gpu_not_recorded(report) or outside < WORTH_LOOKING * (whole or 1):
        return ""
    return f"; but {share(outside / whole)} of it passes outside of PyTorch, where a profiler for Python sees more"


def _busy_share(report: Report) -> float | None:
    if not has_gpu(report):
        return None
    whole = sum(a.window_ns for a in report.account)
    idle = sum(ns for a in report.account for name, ns in a.detail.items() if name.startswith("idle_"))
    return 1 - idle / whole if whole else None


def _lowered(title: str) -> str:
    """The title as the rest of a sentence: only an article or the like loses its capital, never a name."""
    first = title.split(" ", 1)[0]
    return title[0].lower() + title[1:] if first in _DETERMINERS else title


def _mean_step_ns(report: Report) -> float | None:
    """Of all ranks together; None without an account."""
    count = sum(_steps_of(a, report) for a in report.account)
    return sum(a.window_ns for a in report.account) / count if count else None


def split(report: Report) -> Split | None:
    """The account of an average step over all ranks; None when there is none, or nothing is known of the GPU's time."""
    whole = sum(a.window_ns for a in report.account)
    if not whole or gpu_not_recorded(report):
        return None
    count = sum(_steps_of(a, report) for a in report.account)
    detail = {name: sum(a.detail.get(name, 0) for a in report.account) for name in DETAILS}

    def part(words: str, ns: int) -> Part:
        return Part(words, ns / count, ns / whole)

    buckets = tuple(part(bucket, sum(detail[name] for name in names)) for bucket, names in BUCKETS.items())
    words = DETAIL_WORDS if has_gpu(report) else CPU_WORDS
    named = [part(words[name], ns) for name, ns in detail.items() if name not in _SAID_BY_THE_BAR]
    told = sorted((p for p in named if p.share >= WORTH_A_WORD), key=lambda p: -p.ns)
    return Split(
        whole / count,
        _split_title(report, whole / count),
        buckets,
        tuple(told),
        None if _without_tensor_cores(report) else tensor_core_words(report.account, count),
        _rate_words(report),
    )


def _rate_words(report: Report) -> str | None:
    """How much of the device the steps use, on the mean of all ranks; None without a GPU."""
    if not has_gpu(report):
        return None
    mfu = [a.mfu for a in report.account if a.mfu is not None]
    rates = [a.achieved_bytes_per_s for a in report.account if a.achieved_bytes_per_s is not None]
    if not mfu and not rates:
        return f"MFU {UNKNOWN}: it takes input shapes and a device whose peaks are known"
    speed = f"{sum(rates) / len(rates) / 1e9:,.0f} GB/s" if rates else UNKNOWN
    return f"MFU {share(sum(mfu) / len(mfu) if mfu else None)}; memory-bound kernels move {speed}"


def _steps_of(account: Account, report: Report) -> int:
    return len(account.steps) or (report.steps.count if has_steps(report) else 1) or 1


def _split_title(report: Report, mean_ns: float) -> str:
    ranks = f" over {counted(len(report.account), 'rank')}" if len(report.account) > 1 else ""
    if not has_steps(report):
        return f"Where the {duration(mean_ns)} went{ranks and ' (mean' + ranks + ')'}"
    inferred = ", inferred" if report.steps.source == "inferred" else ""
    spread = report.steps.variation
    varied = f", varying by {share(spread)}" if spread is not None and spread >= WORTH_A_SPREAD else ""
    mean = "mean of " if report.steps.count > 1 or ranks else ""
    return (
        f"Where a step's {duration(mean_ns)} go ({mean}{counted(report.steps.count, 'step')}{ranks}{inferred}{varied})"
    )


def _without_tensor_cores(report: Report) -> bool:
    """Whether no device has any: that they are not used is no news then."""
    return all(has_tensor_cores(t.device, None, t.vendor) is False for t in report.traces)


def tensor_core_words(accounts: Iterable[Account], count: int) -> str | None:
    """How much of the matrix work runs on Tensor Cores, per step; None when nothing is known about any of it."""
    totals: dict[str, int] = {}
    for account in accounts:
        for use, ns in account.tensor_core.items():
            totals[use] = totals.get(use, 0) + (ns or 0)
    whole = sum(totals.values())
    if not whole or totals.get("unknown", 0) == whole:
        return None
    uses = (("used", "used"), ("slow_path", "slow path"), ("not_used", "not used"), ("unknown", "unknown"))
    told = [
        f"{words} {share(totals.get(use, 0) / whole)}"
        for use, words in uses
        if totals.get(use, 0) >= WORTH_A_WORD * whole
    ]
    return f"Tensor Cores in {duration(whole / count)} of matrix work: {', '.join(told)}"


def rank_rows(report: Report) -> tuple[list[RankRow], str]:
    """A row a rank, and a sentence about those that were left out; see `ranks.rank_rows`."""
    return ranks.rank_rows(report, [_steps_of(account, report) for account in report.account])


def advised(report: Report) -> list[Finding]:
    """The findings worth advice, in their order."""
    return [f for f in report.findings if f.severity != "info"]


def together(report: Report) -> str | None:
    """What the fixes that were replayed make of a step one after the other; None for fewer than two of them.

    Of several ranks it is told of the one that has the first of them.
    """
    numbered = [(number, f) for number, f in enumerate(advised(report), 1) if _told_ns(f, STEP_AFTER) is not None]
    if not numbered:
        return None
    rank = _costliest_rank(numbered[0][1])
    recorded_ns = next((a.window_ns / _steps_of(a, report) for a in report.account if a.rank == rank), 0.0)
    step_ns = _told_ns(numbered[0][1], STEP_BEFORE) or recorded_ns
    chain = [
        (number, finding)
        for number, finding in numbered
        if _costliest_rank(finding) == rank and (finding.saving.expected_ns or 0) >= WORTH_A_WORD * step_ns
    ]
    if len(chain) < 2:
        return None
    *others, last = (str(number) for number, _ in chain)
    whole = "a step" if has_steps(report) else "the trace"
    whose = f" on rank {rank}" if len(report.traces) > 1 and rank is not None else ""
    return (
        f"Fixed one after the other, {', '.join(others)} and {last} take {whole}{whose} from {duration(step_ns)} to "
        f"about {duration(_told_ns(chain[-1][1], STEP_AFTER))} (replayed)"
    )


def _told_ns(finding: Finding, label: str) -> float | None:
    """A time that a finding's evidence tells; None where it does not."""
    told = next((e.value for e in finding.evidence if e.label == label), None)
    return told if isinstance(told, int | float) else None


def _costliest_rank(finding: Finding) -> int | None:
    """The rank that a finding's figures are of."""
    told = next((e.value for e in finding.evidence if e.label == "costliest rank"), finding.rank)
    return told if isinstance(told, int) else None


def noted(report: Report) -> list[Finding]:
    """The findings that are only worth a line."""
    return [f for f in report.findings if f.severity == "info"]


def skipped(report: Report) -> list[Skipped]:
    """Rules that could not judge, those with one reason together, failures included.

    That one rank has no others to compare with is no news where nothing says that there are others.
    """
    alone = len(report.traces) == 1 and (report.traces[0].world_size or 1) == 1
    reasons: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        if outcome.status != "ran" and not (alone and outcome.why == REQUIREMENTS["ranks"]):
            why = clean(outcome.why or "no reason was given")
            reasons.setdefault(f"failed: {why}" if outcome.status == "failed" else why, []).append(outcome.rule)
    return [Skipped(tuple(rules), why) for why, rules in reasons.items()]


def cut_short(report: Report) -> str | None:
    """What to know before reading on: which ranks are missing, which traces incomplete; None when all is there."""
    cut = [t for t in report.traces[: len(report.timeline)] if not t.complete]
    which = "the trace is" if len(report.traces) == 1 else f"{len(cut)} of {len(report.traces)} traces are"
    said = [ranks.missing(report), f"{which} incomplete (cut short) and analysed as far as it goes" if cut else None]
    return "; ".join(filter(None, said)) or None


def oddities(report: Report) -> list[str]:
    """What was odd in the traces, a line a kind: of ranks that differ only in numbers the first stands for all."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    told_above = 1 if len(report.missing) == 1 else 0
    for number, trace in enumerate(report.traces[: len(report.traces) - told_above]):
        whose = f"rank {number if trace.rank is None else trace.rank}"
        for warning in map(clean, trace.warnings):
            kinds.setdefault(re.sub(r"[\d.,]+", "0", warning), []).append((whose, warning.rstrip(".")))
    return [_told_once(told, len(report.traces)) for told in kinds.values()]


def _told_once(told: list[tuple[str, str]], traces: int) -> str:
    whose, warning = told[0]
    if traces == 1:
        return warning
    others = f" (alike on {counted(len(told) - 1, 'more rank')})" if len(told) > 1 else ""
    return f"{whose}: {warning}{others}"
