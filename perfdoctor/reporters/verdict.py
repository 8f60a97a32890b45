"""The verdict: the report in one or two sentences, and what the fixes give together. Values only, no layout."""

from __future__ import annotations

from perfdoctor.report.finding import STEP_AFTER, STEP_BEFORE, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.format_values import format_count, format_duration, format_share
from perfdoctor.reporters.report_facts import gpu_not_recorded, has_gpu, has_steps, main_findings, step_count_of

# From this difference on, relative to the step, two lengths of the step are both shown (mean and median, with and
# without the profiler): it is about half of a medium finding.
_MIN_STEP_DIFFERENCE = 0.02
# From this share on, a healthy verdict mentions time that nobody explained: it is what makes a finding high.
_MIN_UNEXPLAINED_SHARE = 0.10
# A step that a replayed fix shortens by less than this is not worth a number in a chain of fixes.
_MIN_CHAIN_SHARE = 0.01
_DETERMINERS = frozenset(
    ["A", "All", "An", "Each", "Every", "Half", "Many", "Most", "No", "Some", "The", "This", "Your"]
)


def verdict_of(report: Report) -> str:
    """The report in one or two sentences: how long a step takes, on which device, and what costs most."""
    subject = _describe_step(report)
    worst = next(iter(main_findings(report)), None)
    if worst is None:
        return f"{subject}{_describe_no_finding(report)}."
    title, place = clean_line(worst.title), clean_line(worst.location.short) if worst.location else ""
    sentence = f"{_lower_article(title).rstrip('.')}{f', at {place}' if place and place not in title else ''}."
    amount = f"{format_duration(worst.cost_ns)} ({format_share(worst.share_of_step)}) of it"
    return f"{subject}; {amount}: {sentence}" if worst.cost_ns else f"{subject}. Above all: {sentence}"


def _describe_step(report: Report) -> str:
    """How long a step takes, or the window, and on which device."""
    machine = _describe_machine(report)
    median_ns = report.steps.median_ns
    if has_steps(report) and median_ns is not None:
        # Costs are amounts of an average step; a few slow steps pull the average away from the median.
        mean_ns = _mean_step_ns(report) or median_ns
        unprofiled = _describe_unprofiled_step(report, median_ns)
        if abs(mean_ns - median_ns) > _MIN_STEP_DIFFERENCE * median_ns:
            mean, middle = format_duration(mean_ns), format_duration(median_ns)
            return f"Your step takes {mean} on average (median {middle}) {machine}{unprofiled}"
        return f"Your step takes {format_duration(median_ns)} {machine}{unprofiled}"
    windows = [account.window_ns for account in report.account] or [trace.span_ns for trace in report.traces]
    return f"The trace covers {format_duration(max(windows, default=0))} {machine}, without steps"


def _describe_unprofiled_step(report: Report, recorded_ns: float) -> str:
    """The length of the step without the profiler, where the capture timed it and it differs."""
    unprofiled_ns = report.steps.unprofiled_ns
    if unprofiled_ns is None or abs(recorded_ns - unprofiled_ns) <= _MIN_STEP_DIFFERENCE * recorded_ns:
        return ""
    return f", and {format_duration(unprofiled_ns)} without the profiler"


def _describe_machine(report: Report) -> str:
    if has_gpu(report):
        return f"on {_describe_devices(report)}"
    device = next((clean_line(trace.device) for trace in report.traces if trace.device), None)
    if device:
        return f"(the trace names {_add_article(device)} and holds no GPU events)"
    return "on the CPU (no GPU was seen)"


def _describe_devices(report: Report) -> str:
    names = [clean_line(trace.device) if trace.device else "" for trace in report.traces[: len(report.timeline)]]
    if len(names) > 1:
        return f"{len(names)} x {names[0]}" if names[0] and len(set(names)) == 1 else f"{len(names)} GPUs"
    return _add_article(names[0]) if names and names[0] else "an unnamed GPU"


def _add_article(name: str) -> str:
    return f"{'an' if name.startswith(('A', 'E', 'I', 'NVIDIA', 'O')) else 'a'} {name}"


def _describe_no_finding(report: Report) -> str:
    """That nothing was found, by how many rules, and how busy the GPU is."""
    ran = sum(outcome.status == "ran" for outcome in report.outcomes)
    if not ran:
        return ", and no rule could judge it"
    busy = _busy_share(report)
    use = f"; the GPU is busy for {format_share(busy)} of it" if busy is not None else _describe_unexplained(report)
    if 2 * ran < len(report.outcomes):
        few = f"; only {ran} of {len(report.outcomes)} rules could judge it"
        return f"{few}, and found nothing that costs 1% of it or more{use}"
    return f", and nothing was found that costs 1% of it or more ({format_count(ran, 'rule')} judged it){use}"


def _describe_unexplained(report: Report) -> str:
    """The share of a CPU program that passes outside of PyTorch: no rule looks there, so it may not be healthy."""
    window_ns = sum(account.window_ns for account in report.account)
    unexplained_ns = sum(account.detail.get("idle_unexplained", 0) for account in report.account)
    on_cpu = not has_gpu(report) and not gpu_not_recorded(report)
    if not on_cpu or unexplained_ns < _MIN_UNEXPLAINED_SHARE * (window_ns or 1):
        return ""
    share = format_share(unexplained_ns / window_ns)
    return f"; but {share} of it passes outside of PyTorch, where a profiler for Python sees more"


def _busy_share(report: Report) -> float | None:
    if not has_gpu(report):
        return None
    window_ns = sum(account.window_ns for account in report.account)
    idle_ns = sum(ns for account in report.account for name, ns in account.detail.items() if name.startswith("idle_"))
    return 1 - idle_ns / window_ns if window_ns else None


def _lower_article(title: str) -> str:
    """The title as the rest of a sentence: an article or the like loses its capital, a name keeps it."""
    first = title.split(" ", 1)[0]
    return title[0].lower() + title[1:] if first in _DETERMINERS else title


def _mean_step_ns(report: Report) -> float | None:
    """The average step of all ranks; None without an account."""
    count = sum(step_count_of(account, report) for account in report.account)
    return sum(account.window_ns for account in report.account) / count if count else None


def describe_fix_chain(report: Report) -> str | None:
    """What the replayed fixes, one after the other, make of a step; None for fewer than two of them.

    Of several ranks, the chain is of the rank that has the first replayed finding.
    """
    replayed = [
        (number, finding)
        for number, finding in enumerate(main_findings(report), 1)
        if _evidence_ns(finding, STEP_AFTER) is not None
    ]
    if not replayed:
        return None
    first = replayed[0][1]
    rank = _costliest_rank(first)
    recorded_ns = next((a.window_ns / step_count_of(a, report) for a in report.account if a.rank == rank), 0.0)
    step_ns = _evidence_ns(first, STEP_BEFORE) or recorded_ns
    chain = [
        (number, finding)
        for number, finding in replayed
        if _costliest_rank(finding) == rank and (finding.saving.expected_ns or 0) >= _MIN_CHAIN_SHARE * step_ns
    ]
    if len(chain) < 2:
        return None
    *others, last = (str(number) for number, _ in chain)
    subject = "a step" if has_steps(report) else "the trace"
    on_rank = f" on rank {rank}" if len(report.traces) > 1 and rank is not None else ""
    return (
        f"Fixed one after the other, {', '.join(others)} and {last} take {subject}{on_rank} from "
        f"{format_duration(step_ns)} to about {format_duration(_evidence_ns(chain[-1][1], STEP_AFTER))} (replayed)"
    )


def _evidence_ns(finding: Finding, label: str) -> float | None:
    """A time from a finding's evidence; None where it has no such evidence."""
    value = next((evidence.value for evidence in finding.evidence if evidence.label == label), None)
    return value if isinstance(value, int | float) else None


def _costliest_rank(finding: Finding) -> int | None:
    """The rank that a finding's figures are of."""
    rank = next((evidence.value for evidence in finding.evidence if evidence.label == "costliest rank"), finding.rank)
    return rank if isinstance(rank, int) else None
