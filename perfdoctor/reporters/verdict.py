"""The verdict: the report in one or two sentences, and what the fixes give together. Values only, no layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfdoctor.analysis.context.context import Context
from perfdoctor.places.place import Place
from perfdoctor.report.finding import ONCE, Finding
from perfdoctor.report.report import OnceOnly, Report, UnexplainedSlice
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.once_only import is_first_run, name_causes, name_largest, once_of
from perfdoctor.reporters.place_text import WORK, describe_place, main_places
from perfdoctor.reporters.rank_table import format_finding_ranks
from perfdoctor.reporters.report_facts import (
    gpu_not_recorded,
    has_gpu,
    has_steps,
    info_findings,
    is_cpu_program,
    is_snapshot,
    main_findings,
    share_of_step,
    step_length_ns,
)
from perfdoctor.reporters.report_notes import MIN_UNEXPLAINED_SHARE, describe_hang, memory_lines, skipped_rules
from perfdoctor.reporters.time_split import detail_labels, time_split_of
from perfdoctor.units import format_count, format_duration, format_share

# From this difference on, relative to the step, two lengths of the step are both shown (mean and median, with and
# without the profiler): it is about half of a medium finding.
_MIN_STEP_DIFFERENCE = 0.02
# From this share of the step on, a finding below keeps the head from saying that nothing costs as much.
_MIN_COST = 0.01
_NO_FIX = "no rule found a fix worth 1% of it"
# From this share of the step on, time between steps is said, as other time is that nobody explains.
_MIN_SHARE_BETWEEN = 0.05
# Where recording takes longer than the program itself, it shifts the shares of short ops against those of long ones.
_UNCERTAIN_FACTOR = 2
# A program is called compiled, or run by graphs, from this share of its kernels on.
_MIN_NAMED_SHARE = 0.10
# A limit is called the work's own from this share of the kernel time with a known roof on; kernels without one keep
# their recorded time, so that below it the figure only says what the waits cost.
_MIN_KNOWN_SHARE = 0.50
_ALL_KNOWN_SHARE = 0.995
_MOST_OF_STEP = 0.5
# What limits the kernels of a bucket.
_LIMITS: Mapping[str, str] = {"compute": "arithmetic", "bandwidth": "memory bandwidth"}
# First words of titles that are not names: inside a sentence they have no capital.
_COMMON_WORDS = frozenset(
    [
        *("A", "Activation", "All", "An", "Anomaly", "Attention", "Communication", "Compiled", "Convolutions"),
        *("Copies", "Copying", "Deterministic", "Each", "Elementwise", "Every", "For", "Forward", "Fused"),
        *("Gradients", "Half", "Indexing", "Kernels", "Little", "Many", "Matrix", "Most", "No", "Normalization"),
        *("Nothing", "One", "Ops", "Printing", "Products", "Rank", "Ranks", "Rows", "Saving", "Scores", "Some"),
        *("Steps", "Tensors", "The", "This", "Waiting", "Work", "Your"),
    ]
)


def verdict_of(report: Report) -> str:
    """The report in one or two sentences: how long a step takes, on which device, and what takes most of it.

    What stops the job comes first, and then that other programs had the cores.
    """
    hang = describe_hang(report)
    if hang is not None:  # the finding that would be named is the hang itself
        return f"{hang} {_describe_step(report)}." if report.traces else hang
    return f"{_describe_contention(report)}{_describe_program(report)}"


def _describe_contention(report: Report) -> str:
    """That other programs had the cores for which a thread of the program asked; "" where they had not."""
    shares = [trace.core_share for trace in report.traces if trace.core_share is not None]
    if not shares:
        return ""
    return f"Other programs had the cores {format_share(1 - min(shares))} of the time: record again when it is quiet. "


def _describe_program(report: Report) -> str:
    """How long a step takes, on which device, and what takes most of it."""
    if is_snapshot(report):
        return f"A snapshot of memory, without times: {memory_lines(report)[0]}."
    if report.context.is_server_host and len(report.traces) == 1:
        return describe_server_host(report)
    subject = _describe_step(report)
    if is_first_run(report) and not step_length_ns(report):
        return f"{subject}."
    place = next(iter(main_places(report)), None)
    first = _choose_first_fix(report, place)
    place_share = 0.0 if place is None else place.share or 0.0
    if first is not None and (first.makes_results_wrong or _is_larger(report, first, place)):
        return f"{subject}{_describe_cost(report, first)}"
    has_line = place is not None and place.kind == "line"
    part = None if has_line else _find_scattered(report, place_share)
    largest = "" if place is None else describe_place(report, place)
    largest = largest if part is None else _describe_scattered(report, part)
    if gpu_not_recorded(report) or not largest:
        return f"{subject}{_describe_no_finding(report)}." if first is None else subject + _describe_cost(report, first)
    head = f"{subject}; {largest}."
    if first is None:
        nothing = _describe_no_finding(report).lstrip(",; ").removeprefix("and ")
        return f"{head} {nothing[0].upper()}{nothing[1:]}."
    asks = "Worth a look" if first.severity == "low" else "First to fix"
    return f"{head} {f'{asks}: ' if first.cost_ns else ''}{_describe_cost(report, first)[2:]}"


def _choose_first_fix(report: Report, place: Place | None) -> Finding | None:
    """The first finding; one that is more severe at the place that the head names goes before it."""
    found = main_findings(report)
    first = next(iter(found), None)
    if first is None or first.severity != "low" or place is None:
        return first
    at_place = (each for each in found if any(each is report.findings[number] for number in place.findings))
    return next((each for each in at_place if each.severity in ("medium", "high")), first)


def _is_larger(report: Report, finding: Finding, place: Place | None) -> bool:
    """Whether a finding has more of the time than the first place, as where no line is known that it has in common."""
    return (
        place is not None and place.kind != "line" and (share_of_step(report, finding) or 0.0) >= (place.share or 0.0)
    )


def _find_scattered(report: Report, min_share: float) -> UnexplainedSlice | None:
    """The largest time without an explanation, where it is more than the largest place, and than any finding costs."""
    parts = (each for each in report.unexplained if each.detail not in WORK and each.share > min_share)
    largest = max(parts, key=lambda each: each.share, default=None)
    costs = [share_of_step(report, each) or 0.0 for each in main_findings(report)]
    return largest if largest is not None and largest.share > max(costs, default=0.0) else None


def _describe_scattered(report: Report, part: UnexplainedSlice) -> str:
    label = detail_labels(report)[part.detail]
    if part.detail == "idle_unexplained":
        what = f"{label.split(',')[0]}, for no reason that the trace shows"
    else:
        what = f"{label}, which no finding explains"
    rank = f" on rank {part.rank}" if len(report.traces) > 1 else ""
    return f"{format_duration(part.share * step_length_ns(report))} ({format_share(part.share)}) of it{rank}: {what}"


def _describe_cost(report: Report, finding: Finding) -> str:
    """The cost of a finding, its title and its place, as the rest of a sentence."""
    title, place = clean_line(finding.title), clean_line(finding.location.short) if finding.location else ""
    once = ", once in this trace" if finding.occurs_once else ""
    title = title.removeprefix(ONCE)
    sentence = f"{_lower_first_word(title).rstrip('.')}{f', at {place}' if place and place not in title else ''}."
    if not finding.cost_ns:
        return f". Above all{once}: {sentence}"
    ranks = format_finding_ranks(report, finding)
    return (
        f"; {format_duration(finding.cost_ns)} ({format_share(share_of_step(report, finding))}) of it{ranks}{once}: "
        f"{sentence}"
    )


def _describe_step(report: Report) -> str:
    """How long a step takes, or the window, and on which device."""
    machine = _describe_machine(report)
    once = once_of(report)
    context = describe_context(report.context, says_steady=once is None)
    length = format_duration(step_length_ns(report))
    if once is not None and is_first_run(report):
        share, whole_ns = once.share, float(once.recording_ns)
        if share < _MIN_KNOWN_SHARE:  # most of the recording lies before the time that is analysed
            whole_ns = once.left_out_ns + step_length_ns(report)
            share = once.left_out_ns / whole_ns
        rest = f"What would come back each time is {length}" if step_length_ns(report) else "Nothing of it comes back"
        return (
            f"{f'{context}: a' if context else 'A'} first run {machine}: {_share_of_most(share)} of its "
            f"{format_duration(whole_ns)} happens once, most of it {name_causes(report, once, whole_ns)}. {rest}"
        )
    left_out = _describe_left_out(once, report)
    if has_steps(report):
        step = f"{context}: a step" if context else "Your step"
        average = " on average" if _median_differs(report) else ""
        return f"{step} takes {length}{average} {machine}{_describe_time_between(report)}{left_out}"
    trace = f"{context}: the trace" if context else "The trace"
    return f"{trace} covers {length} {machine}, without steps{left_out}"


def describe_server_host(report: Report, *, has_engine: bool = False) -> str:
    """What is known of a process that serves a model which another one runs; `has_engine` where that was recorded."""
    names = [clean_line(name) for name in report.context.frameworks if name != "PyTorch"]
    server = f"a server ({', '.join(names)})" if names else "a server"
    recorded = f"The host side of {server}, recorded for {format_duration(step_length_ns(report))}"
    if has_engine:
        return f"{recorded}: no model runs in this process. Another report here is on the one that does."
    return f"{recorded}: no model runs in this process. Record the one that runs it, the engine's worker."


def _describe_time_between(report: Report) -> str:
    """The time that lies between steps, where it is worth a word: no figure of the report has it."""
    between_ns = report.steps.between_ns or 0
    if between_ns < _MIN_SHARE_BETWEEN * step_length_ns(report):
        return ""
    return f" ({format_duration(between_ns)} more lie between two steps on average, in none of these figures)"


def _share_of_most(share: float) -> str:
    """A share that is nearly all, but never reads as all."""
    return "over 99%" if share > _ALL_KNOWN_SHARE else format_share(share)


def _describe_left_out(once: OnceOnly | None, report: Report) -> str:
    """What the length of a step or of the window leaves out because it happens once."""
    if once is None or not once.left_out_ns:
        return ""
    if once.cold_steps:
        cold = "first step" if once.cold_steps == 1 else f"first {once.cold_steps} steps"
        return f" (without the cold {cold})"
    time, cause = format_duration(once.left_out_ns), name_largest(report, once)
    if has_steps(report):
        return f", without the {time} that happen once ({cause})"
    return f" and without the {time} that happen once ({cause})"


def _median_differs(report: Report) -> bool:
    """Whether a few slow steps pull the average step, of which all figures are, away from the median."""
    median_ns, mean_ns = report.steps.median_ns or 0, step_length_ns(report)
    return has_steps(report) and abs(mean_ns - median_ns) > _MIN_STEP_DIFFERENCE * median_ns


def describe_context(context: Context, *, says_steady: bool = True) -> str:
    """What program was recorded, in a few words: "Training (DDP, compiled)"; "" where nothing is known of it.

    `says_steady` is whether to say that it is not steady.
    """
    phase = "" if context.phase == "unknown" else context.phase.capitalize()
    # What runs on PyTorch goes by its own name.
    names = [name for name in context.frameworks if name != "PyTorch"] + list(context.parallelism)
    if (context.compiled_share or 0) >= _MIN_NAMED_SHARE:
        names.append(f"{format_share(context.compiled_share)} of kernels compiled")
    if (context.graph_share or 0) >= _MIN_NAMED_SHARE:
        names.append(f"{format_share(context.graph_share)} of kernels in graphs")
    if says_steady and context.steady is False:
        names.append("not steady")
    if not names:
        return phase
    return f"{phase or 'A program'} ({', '.join(map(clean_line, names))})"


def describe_recorded_step(report: Report, *, always: bool = False) -> str | None:
    """How long a step took while it was recorded, where that differs; unless `always`, only if that is over double.

    Everything else that is shown is of the step without the profiler.
    """
    recorded_ns, median_ns = report.steps.recorded_median_ns, report.steps.median_ns
    middle = f"the median step takes {format_duration(median_ns)}" if always and _median_differs(report) else None
    timed_ns = report.steps.timed_median_ns
    if timed_ns is not None and not always:
        return None  # the first words of the report say it
    if (timed_ns or 0) > (1 + _MIN_STEP_DIFFERENCE) * (median_ns or 0):
        timed = f"with its waits for a core a step took {format_duration(timed_ns)}"
        middle = "; ".join(filter(None, (timed, middle)))
    if not recorded_ns or not median_ns or abs(recorded_ns - median_ns) <= _MIN_STEP_DIFFERENCE * recorded_ns:
        return middle
    recorded = f"recorded with the profiler a step took {format_duration(recorded_ns)}"
    is_uncertain = recorded_ns > _UNCERTAIN_FACTOR * median_ns
    if is_uncertain:
        recorded += ": more than half of that is the profiler or other programs, so shares of the step are estimates"
    return "; ".join(filter(None, (recorded, middle))) if always or is_uncertain else None


def _describe_machine(report: Report) -> str:
    if has_gpu(report):
        return f"on {_describe_devices(report)}"
    device = next((clean_line(trace.device) for trace in report.traces if trace.device), None)
    if device and is_cpu_program(report):
        return f"on the CPU (the machine has {_add_article(device)})"
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
        return "; where its time goes is not known: record with ProfilerActivity.CUDA"
    busy = _busy_share(report)
    use = f"; the GPU is busy for {format_share(busy)} of it" if busy is not None else _describe_unexplained(report)
    rules = len(report.outcomes) - sum(len(group.rules) for group in skipped_rules(report) if group.needs_gpu)
    if 2 * ran < rules:
        few = f"; only {ran} of {rules} rules could judge it"
        return f"{few}, and {_say_nothing_found(report)}{use}"
    seen = info_findings(report, in_full=False)
    unknown = sorted({each.rule for each in seen if each.actions and each.saving.basis == "unknown"})
    what = " and ".join(unknown)
    caution = f"; no trace shows what {what} (below) costs: perfdoctor try measures it" if unknown else ""
    if is_cpu_program(report):
        # Of other ops than products and convolutions nobody knows how much is needed: then it is no clean bill.
        computes = _share_of_parts(report, "compute") >= _MOST_OF_STEP
        nothing = _say_nothing_found(report) if computes else "no rule found a fix for it"
        judged = f"({format_count(ran, 'rule')} judged it)"
        return f", and {nothing} {judged}{_describe_unexplained(report)}{caution}"
    if any(each.detail not in WORK for each in report.unexplained):
        use += _describe_limit(report)
        return f", and no rule found what to change{use}; not all of its time is explained (below){caution}"
    return f", and {_say_nothing_found(report)} ({format_count(ran, 'rule')} judged it){use}" + (
        f"{_describe_limit(report)}{caution}"
    )


def _say_nothing_found(report: Report) -> str:
    """That nothing costs 1% of the step; where a finding below costs it, that no fix of one is worth as much."""
    costs = [share_of_step(report, finding) or 0.0 for finding in report.findings]
    return _NO_FIX if max(costs, default=0.0) >= _MIN_COST else "nothing was found that costs 1% of it or more"


def _describe_limit(report: Report) -> str:
    """What limits most of the work of a step on which nothing was found, and how near that limit it is."""
    split = time_split_of(report)
    largest = max(split.buckets, key=lambda part: part.share) if split else None
    limit = None if largest is None else _LIMITS.get(largest.label)
    if largest is None or limit is None:
        return "" if report.explains_everything else "; how near its kernels are to their limit is not known"
    near = f" ({largest.roof})" if largest.roof else ""
    if not near and not report.explains_everything:
        near = " (how near it comes is not known)"
    return f", and {limit} limits {format_share(largest.share)} of it{near}"


def _share_of_parts(report: Report, *parts: str) -> float:
    """The share (0 to 1) of some parts of the account in the analysed time of all ranks."""
    window_ns = sum(account.window_ns for account in report.account)
    part_ns = sum(account.detail.get(part, 0) for account in report.account for part in parts)
    return part_ns / (window_ns or 1)


def _describe_unexplained(report: Report) -> str:
    """The share of a CPU program that passes outside of PyTorch: no rule looks there, so it may not be healthy."""
    unexplained = _share_of_parts(report, "idle_unexplained")
    if not is_cpu_program(report) or unexplained < MIN_UNEXPLAINED_SHARE:
        return ""
    share = format_share(unexplained)
    where = "the lines below say where" if report.tables.get("lines") else "where a profiler for Python sees more"
    return f"; but {share} of it passes outside of PyTorch, {where}"


def _busy_share(report: Report) -> float | None:
    if not has_gpu(report):
        return None
    window_ns = sum(account.window_ns for account in report.account)
    idle_ns = sum(ns for account in report.account for name, ns in account.detail.items() if name.startswith("idle_"))
    return 1 - idle_ns / window_ns if window_ns else None


def _lower_first_word(title: str) -> str:
    """The title as the rest of a sentence: a common word loses its capital, a name keeps it."""
    first = title.split(" ", 1)[0]
    return title[0].lower() + title[1:] if first in _COMMON_WORDS else title


class Ladder(NamedTuple):
    """How short a step gets.

    Attributes:
        now_ns: The average step, or the window where there are no steps.
        fixes: How many fixes have a figure; 0 where none has.
        after_fixes_ns: The step after them; None without such fixes.
        unsized: The finding that the head names, where its fix has a bound only: it is no part of `after_fixes_ns`.
        best_ns: The least that its fix may leave of that step; None without it.
        limit_ns: The step at the limit; None where too little is known.
        known_share: The share (0 to 1) of the kernel time whose roof is known.
    """

    now_ns: float
    fixes: int
    after_fixes_ns: float | None
    limit_ns: float | None
    known_share: float
    unsized: Finding | None = None
    best_ns: float | None = None

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
    now_ns = step_length_ns(report)
    fixes = sum(bool(finding.saving.expected_ns) for finding in main_findings(report))
    after_ns: float | None = limit.after_fixes_ns if fixes else None
    unsized = _find_unsized(report)
    if not now_ns or (after_ns is None and limit.step_ns is None and unsized is None):
        return None
    if after_ns is not None and has_steps(report) and report.steps.median_ns:
        # The limit tells of the median step what the fixes leave. All other figures are of the average step.
        after_ns *= now_ns / report.steps.median_ns
    limit_ns = None if limit.step_ns is None else min(limit.step_ns, now_ns if after_ns is None else after_ns)
    best_ns = None
    if unsized is not None:
        lowest_ns = now_ns if after_ns is None else after_ns
        best_ns = max(lowest_ns - (unsized.saving.high_ns or 0), limit_ns or 0.0)
    known_share = limit.known_share or 0.0
    return Ladder(now_ns, 0 if after_ns is None else fixes, after_ns, limit_ns, known_share, unsized, best_ns)


def _find_unsized(report: Report) -> Finding | None:
    """The finding that the head names first, where nobody knows what its fix saves but how much at most; else None."""
    first = next(iter(main_findings(report)), None)
    return first if first is not None and first.saving.expected_ns is None and first.saving.high_ns else None


def describe_ladder(report: Report) -> str | None:
    """The ladder in a line; None where nothing but the present is known."""
    ladder = ladder_of(report)
    if ladder is None:
        return None
    rungs = [f"now {format_duration(ladder.now_ns)}"]
    if ladder.after_fixes_ns is not None:
        rungs += [format_count(ladder.fixes, "fix", "fixes"), f"about {format_duration(ladder.after_fixes_ns)}"]
    line = " -> ".join(rungs)
    if ladder.unsized is not None and ladder.best_ns is not None:
        line += f"; with {ladder.unsized.rule} {format_duration(ladder.best_ns)} at best"
    if ladder.limit_ns is None:
        return line
    limit = format_duration(ladder.limit_ns)
    if not ladder.is_limit_of_work:
        lowest_ns = ladder.now_ns if ladder.after_fixes_ns is None else ladder.after_fixes_ns
        return line if limit == format_duration(lowest_ns) else f"{line}; {limit} if nothing waited"
    known = f" (known for {format_share(ladder.known_share)} of its time)" if ladder.names_known_share else ""
    return f"{line}; limit of its kernels on this GPU {limit}{known}"
