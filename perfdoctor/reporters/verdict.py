"""The verdict: the report in one or two sentences, and what the fixes give together. Values only, no layout."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.analysis.context.context import Context
from perfdoctor.report.finding import ONCE, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.rank_table import format_finding_ranks
from perfdoctor.reporters.report_facts import (
    gpu_not_recorded,
    has_gpu,
    has_steps,
    info_findings,
    is_cpu_program,
    main_findings,
    step_count_of,
)
from perfdoctor.reporters.report_notes import skipped_rules
from perfdoctor.reporters.top_rows import largest_op
from perfdoctor.units import format_count, format_duration, format_share

# From this difference on, relative to the step, two lengths of the step are both shown (mean and median, with and
# without the profiler): it is about half of a medium finding.
_MIN_STEP_DIFFERENCE = 0.02
# Where recording takes longer than the program itself, it shifts the shares of short ops against those of long ones.
_UNCERTAIN_FACTOR = 2
# A program is called compiled, or run by graphs, from this share of its kernels on.
_MIN_NAMED_SHARE = 0.10
# A limit is called the work's own from this share of the kernel time with a known roof on; kernels without one keep
# their recorded time, so that below it the figure only says what the waits cost.
_MIN_KNOWN_SHARE = 0.50
_ALL_KNOWN_SHARE = 0.995
# From this share on, a healthy verdict mentions time that nobody explained: it is what makes a finding high.
_MIN_UNEXPLAINED_SHARE = 0.10
# Details of the account whose time is work: unexplained they cannot be judged, while other time waits for something.
_WORK = ("compute", "bandwidth")
_DETERMINERS = frozenset(
    ["A", "All", "An", "Each", "Every", "Half", "Many", "Most", "No", "Some", "The", "This", "Your"]
)


def verdict_of(report: Report) -> str:
    """The report in one or two sentences: how long a step takes, on which device, and what costs most."""
    subject = _describe_step(report)
    worst = next(iter(main_findings(report)), None)
    if worst is not None:
        return f"{subject}{_describe_cost(report, worst)}"
    largest = max(info_findings(report), key=lambda finding: finding.cost_ns, default=None)
    if largest is not None and (largest.share_of_step or 0) >= _MIN_UNEXPLAINED_SHARE:
        return f"{subject}, and no rule found a fix worth 1% of it{_describe_cost(report, largest)}"
    return f"{subject}{_describe_no_finding(report)}."


def _describe_cost(report: Report, finding: Finding) -> str:
    """The cost of a finding, its title and its place, as the rest of a sentence."""
    title, place = clean_line(finding.title), clean_line(finding.location.short) if finding.location else ""
    once = ", once in this trace" if finding.occurs_once else ""
    title = title.removeprefix(ONCE)
    sentence = f"{_lower_article(title).rstrip('.')}{f', at {place}' if place and place not in title else ''}."
    if not finding.cost_ns:
        return f". Above all{once}: {sentence}"
    ranks = format_finding_ranks(report, finding)
    return (
        f"; {format_duration(finding.cost_ns)} ({format_share(finding.share_of_step)}) of it{ranks}{once}: {sentence}"
    )


def _describe_step(report: Report) -> str:
    """How long a step takes, or the window, and on which device."""
    machine = _describe_machine(report)
    context = describe_context(report.context)
    median_ns = report.steps.median_ns
    if has_steps(report) and median_ns is not None:
        step = f"{context}: a step" if context else "Your step"
        # Costs are amounts of an average step; a few slow steps pull the average away from the median.
        mean_ns = _mean_step_ns(report) or median_ns
        if abs(mean_ns - median_ns) > _MIN_STEP_DIFFERENCE * median_ns:
            mean, middle = format_duration(mean_ns), format_duration(median_ns)
            return f"{step} takes {mean} on average (median {middle}) {machine}"
        return f"{step} takes {format_duration(median_ns)} {machine}"
    trace = f"{context}: the trace" if context else "The trace"
    return f"{trace} covers {format_duration(_longest_window_ns(report))} {machine}, without steps"


def _longest_window_ns(report: Report) -> int:
    windows = [round(account.time_scale * account.window_ns) for account in report.account] or [
        trace.span_ns for trace in report.traces
    ]
    return max(windows, default=0)


def describe_context(context: Context) -> str:
    """What program was recorded, in a few words: "Training (DDP, compiled)"; "" where nothing is known of it."""
    phase = "" if context.phase == "unknown" else context.phase.capitalize()
    # What runs on PyTorch goes by its own name.
    names = [name for name in context.frameworks if name != "PyTorch"] + list(context.parallelism)
    if (context.compiled_share or 0) >= _MIN_NAMED_SHARE:
        names.append(f"{format_share(context.compiled_share)} of kernels compiled")
    if (context.graph_share or 0) >= _MIN_NAMED_SHARE:
        names.append(f"{format_share(context.graph_share)} of kernels in graphs")
    if context.steady is False:
        names.append("not steady")
    if not names:
        return phase
    return f"{phase or 'A program'} ({', '.join(map(clean_line, names))})"


def describe_recorded_step(report: Report, *, always: bool = False) -> str | None:
    """How long a step took while it was recorded, where that differs; unless `always`, only if that is over double.

    Everything else that is shown is of the step without the profiler.
    """
    recorded_ns, median_ns = report.steps.recorded_median_ns, report.steps.median_ns
    if not recorded_ns or not median_ns or abs(recorded_ns - median_ns) <= _MIN_STEP_DIFFERENCE * recorded_ns:
        return None
    recorded = f"recorded with the profiler a step took {format_duration(recorded_ns)}"
    if recorded_ns > _UNCERTAIN_FACTOR * median_ns:
        return (
            f"{recorded}: more than half of that is the profiler or other programs, so shares of the step are estimates"
        )
    return recorded if always else None


def _describe_machine(report: Report) -> str:
    if has_gpu(report):
        return f"on {_describe_devices(report)}"
    device = next((clean_line(trace.device) for trace in report.traces if trace.device), None)
    if device:
        return f"(the trace names {_add_article(device)} and holds no GPU events)"
    # Of a program that perfdoctor ran it is known that there is none.
    return "on the CPU" if report.program_folders else "on the CPU (no GPU was seen)"


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
    if gpu_not_recorded(report):
        return ", so where its time goes is not known: record with ProfilerActivity.CUDA"
    busy = _busy_share(report)
    use = f"; the GPU is busy for {format_share(busy)} of it" if busy is not None else _describe_unexplained(report)
    rules = len(report.outcomes) - sum(len(group.rules) for group in skipped_rules(report) if group.needs_gpu)
    if 2 * ran < rules:
        few = f"; only {ran} of {rules} rules could judge it"
        return f"{few}, and found nothing that costs 1% of it or more{use}"
    if is_cpu_program(report):
        return _describe_healthy_cpu(report, ran)
    if any(each.detail not in _WORK for each in report.unexplained):
        return f", and no rule found what to change{use}, but not all of its time is explained (below)"
    if not report.explains_everything:
        use += "; how near all of its kernels are to their limit cannot be judged (below)"
    return f", and nothing was found that costs 1% of it or more ({format_count(ran, 'rule')} judged it){use}"


def _describe_healthy_cpu(report: Report, ran: int) -> str:
    """That no rule found anything in a program on the CPU, and where its time goes."""
    healthy = f", and nothing was found that costs 1% of it or more ({format_count(ran, 'rule')} judged it)"
    outside = _describe_unexplained(report)
    largest = largest_op(report)
    if outside or largest is None or largest[1] < _MIN_UNEXPLAINED_SHARE:
        return f"{healthy}{outside}"
    return f"{healthy}; most of it goes to {largest[0]} ({format_share(largest[1])})"


def _describe_unexplained(report: Report) -> str:
    """The share of a CPU program that passes outside of PyTorch: no rule looks there, so it may not be healthy."""
    window_ns = sum(account.window_ns for account in report.account)
    unexplained_ns = sum(account.detail.get("idle_unexplained", 0) for account in report.account)
    if not is_cpu_program(report) or unexplained_ns < _MIN_UNEXPLAINED_SHARE * (window_ns or 1):
        return ""
    share = format_share(unexplained_ns / window_ns)
    where = "the lines below say where" if report.tables.get("lines") else "where a profiler for Python sees more"
    return f"; but {share} of it passes outside of PyTorch, {where}"


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
    return sum(account.time_scale * account.window_ns for account in report.account) / count if count else None


class Ladder(NamedTuple):
    """How short a step gets.

    Attributes:
        now_ns: The step, or the window where there are no steps.
        fixes: How many fixes have a figure; 0 where none has.
        after_fixes_ns: The step after them; None without such fixes.
        limit_ns: The step at the limit; None where too little is known.
        known_share: The share (0 to 1) of the kernel time whose roof is known.
    """

    now_ns: int
    fixes: int
    after_fixes_ns: int | None
    limit_ns: int | None
    known_share: float

    @property
    def is_limit_of_work(self) -> bool:
        """Whether enough roofs are known to call the limit the work's own; else it says only what the waits cost."""
        return self.known_share >= _MIN_KNOWN_SHARE

    @property
    def names_known_share(self) -> bool:
        """Whether the share of kernel time with a known roof is far enough from all of it to be said."""
        return self.known_share < _ALL_KNOWN_SHARE


def ladder_of(report: Report) -> Ladder | None:
    """How short a step gets: now, after the fixes, at the limit; None where nothing but the present is known."""
    limit = report.limit
    now_ns = report.steps.median_ns if has_steps(report) else _longest_window_ns(report)
    fixes = sum(bool(finding.saving.expected_ns) for finding in main_findings(report))
    after_ns = limit.after_fixes_ns if fixes else None
    if now_ns is None or (after_ns is None and limit.step_ns is None):
        return None
    return Ladder(now_ns, 0 if after_ns is None else fixes, after_ns, limit.step_ns, limit.known_share or 0.0)


def describe_ladder(report: Report) -> str | None:
    """The ladder in a line; None where nothing but the present is known."""
    ladder = ladder_of(report)
    if ladder is None:
        return None
    rungs = [f"now {format_duration(ladder.now_ns)}"]
    if ladder.after_fixes_ns is not None:
        rungs += [format_count(ladder.fixes, "fix", "fixes"), f"about {format_duration(ladder.after_fixes_ns)}"]
    line = " -> ".join(rungs)
    if ladder.limit_ns is None:
        return line
    limit = format_duration(ladder.limit_ns)
    if not ladder.is_limit_of_work:
        return f"{line}; {limit} if nothing waited (how fast its kernels can be is not known)"
    known = f", by {format_share(ladder.known_share)} of its kernel time" if ladder.names_known_share else ""
    return f"{line}; limit of this work on this GPU {limit}{known}"
