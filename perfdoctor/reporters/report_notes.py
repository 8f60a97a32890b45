"""What stands around the findings: incomplete input, rules that could not judge, warnings. Values only, no layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from perfdoctor.gpu import find_device
from perfdoctor.report.memory_summary import describe_failure, describe_memory, is_worth_showing
from perfdoctor.report.report import Report, UnexplainedSlice
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.rank_table import describe_missing_ranks
from perfdoctor.reporters.report_facts import is_cpu_program, is_snapshot
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_count, format_share

# Reasons to skip a rule that mean no more than that there is no GPU.
_GPU_REASONS = frozenset(REQUIREMENTS[need] for need in ("gpu_items", "kernels", "work", "launches", "work_launches"))
WORK_DETAILS = ("compute", "bandwidth", "latency")
MIN_UNEXPLAINED_SHARE = 0.10
"""From this share of the step on, the head names time that nobody explained: it is what makes a finding high."""
_MAX_UNREAD = 3
_NUMBER = re.compile(r"[\d.,]+")


# A smaller share of the time would not make another finding the first one.
_MIN_DECISIVE_SHARE = 0.10
# What is worth recording again where it is missing: the words, and the details of the account that it would explain.
_WAITS = ("idle_launch", "idle_sync", "idle_unexplained")
_DECISIVE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "shapes": ("how near {} is to its limit (record with record_shapes=True)", ("compute", "bandwidth")),
    "cpu": ("what the GPU waits for in {} (record with ProfilerActivity.CPU)", _WAITS),
    "launches": ("what the GPU waits for in {} (record with ProfilerActivity.CPU)", _WAITS),
    "ranks": ("who is late in {} (give the traces of all ranks)", ("communication", "idle_communication")),
}


class SkippedRules(NamedTuple):
    """Rules that could not judge for the same reason."""

    rules: tuple[str, ...]
    why: str
    needs_gpu: bool = False


def skipped_rules(report: Report) -> list[SkippedRules]:
    """The rules that were skipped or failed, grouped by reason.

    That one rank has no others to compare with is left out where nothing says that there are others, and so is that
    the job did not stand still.
    """
    if is_snapshot(report) or not report.traces:  # all rules but one judge time
        return []
    single = len(report.traces) == 1 and (report.traces[0].world_size or 1) == 1
    rules_of: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        is_usual = outcome.why == REQUIREMENTS["hang"] or (single and outcome.why == REQUIREMENTS["ranks"])
        if outcome.status != "ran" and not is_usual:
            why = clean_line(outcome.why or "no reason was given")
            rules_of.setdefault(f"failed: {why}" if outcome.status == "failed" else why, []).append(outcome.rule)
    gpu_reasons = _GPU_REASONS if is_cpu_program(report) else ()
    return _join_gpu_groups([SkippedRules(tuple(rules), why, why in gpu_reasons) for why, rules in rules_of.items()])


def _join_gpu_groups(groups: list[SkippedRules]) -> list[SkippedRules]:
    """The groups with those that need a GPU as one, which comes last."""
    of_gpu = [group for group in groups if group.needs_gpu]
    if not of_gpu:
        return groups
    rules = tuple(sorted(rule for group in of_gpu for rule in group.rules))
    return [*(group for group in groups if not group.needs_gpu), SkippedRules(rules, of_gpu[0].why, needs_gpu=True)]


def describe_not_judged(report: Report) -> str | None:
    """One line about what the rules could not judge; None where nothing of it would change the diagnosis.

    It names a rule that failed. Else it names what to record where that would change the diagnosis: where the rules
    could tell of a slice of time that no finding explains. The long form names all other rules (`skipped_rules`).
    """
    skipped = [group for group in skipped_rules(report) if not group.needs_gpu]
    if not skipped:
        return None
    failed = [outcome for outcome in report.outcomes if outcome.status == "failed"]
    if failed:
        more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
        return f"{failed[0].rule}, which failed ({clean_line(failed[0].why or 'no reason was given')}){more}"
    reasons = {group.why for group in skipped}
    # The shapes tell nothing of a device whose peaks are not known.
    known = all(find_device(trace.device, None, None) for trace in report.traces if trace.device)
    worth = [
        (share, words)
        for need, (words, details) in _DECISIVE.items()
        if REQUIREMENTS[need] in reasons and not is_cpu_program(report) and (known or need != "shapes")
        for share in [sum(each.share for each in report.unexplained if each.detail in details)]
        if share >= _MIN_DECISIVE_SHARE
    ]
    if worth:
        share, words = max(worth)
        return words.format(f"{format_share(share)} of the time")
    return None


def describe_gpu_rules(group: SkippedRules) -> str:
    """One line about the rules that need a GPU in the report on a program without one."""
    rules = format_count(len(group.rules), "rule needs", "rules need")
    return f"{rules} a GPU (-v names {'it' if len(group.rules) == 1 else 'them'})"


def describe_incomplete_input(report: Report) -> str | None:
    """A sentence about missing ranks and traces that were cut short; None where everything is there."""
    cut = [trace for trace in report.traces[: len(report.timeline)] if not trace.complete]
    which = "the trace is" if len(report.traces) == 1 else f"{len(cut)} of {len(report.traces)} traces are"
    sentences = [
        describe_missing_ranks(report),
        *(clean_line(each) for each in (report.hang_reading.unread if report.hang_reading else ())[:_MAX_UNREAD]),
        f"{which} incomplete (cut short) and analysed as far as it goes" if cut else None,
    ]
    return "; ".join(filter(None, sentences)) or None


def describe_hang(report: Report) -> str | None:
    """The sentence on what stops the job, or that the dumps that were read show nothing; None where there are none."""
    reading = report.hang_reading
    if reading is None:
        return None
    if report.hang is not None:
        verb = "stood still until the program ended" if reading.has_ended else "hangs"
        verb = "stood still for a time" if reading.went_on else verb
        return f"The job {verb}. {clean_line(report.hang.sentence)}."
    if report.traces:
        return None
    count = format_count(len(reading.dumps), "rank")
    return f"No hang: in the flight recorders of {count} no rank waits for another one that does not come."


def unexplained_lines(report: Report, *, of_work: bool = True) -> list[tuple[str, str]]:
    """The share of each slice of time that no finding claims, and what is known of it; the largest first.

    Unless `of_work`, without the work of a program on the CPU where the table of ops names it: nobody judges that;
    and without short breaks between ops, which follow from their number and which the head does not name either.
    Of slices of several ranks with one name the largest stands for all.
    """
    largest: dict[str, UnexplainedSlice] = {}
    ranks: dict[str, int] = {}
    named = not of_work and is_cpu_program(report) and bool(report.tables.get("ops"))
    for each in report.unexplained:
        is_few_breaks = each.detail == "idle_launch" and each.share < MIN_UNEXPLAINED_SHARE
        if named and (each.detail in WORK_DETAILS or is_few_breaks):
            continue
        ranks[each.detail] = ranks.get(each.detail, 0) + 1
        if each.detail not in largest or each.share > largest[each.detail].share:
            largest[each.detail] = each
    lines = []
    for each in sorted(largest.values(), key=lambda each: -each.share):
        others = ranks[each.detail] - 1
        alike = f" (rank {each.rank}; also on {format_count(others, 'more rank')})" if others else ""
        lines.append((format_share(each.share), f"{clean_line(each.sentence).rstrip('.')}{alike}"))
    return lines


def memory_lines(report: Report) -> list[str]:
    """The memory at the peak, a sentence for each device: of several ranks only the largest, of a GPU program its GPUs.

    Empty where no memory was recorded, or next to none.
    """
    shown = [memory for memory in report.memory if is_worth_showing(memory) or is_snapshot(report)]
    shown = [memory for memory in shown if memory.device is not None] or shown
    if len({memory.rank for memory in shown}) > 1:
        largest = max(shown, key=lambda memory: 0 if memory.peak is None else memory.peak.allocated_bytes)
        return [f"{clean_line(describe_memory(largest))}, rank {largest.rank} has the highest"]
    sentences = [sentence for memory in shown for sentence in (describe_memory(memory), describe_failure(memory))]
    return [clean_line(sentence) for sentence in sentences if sentence]


def group_trace_warnings(report: Report) -> list[str]:
    """The warnings about the traces; warnings of several ranks that differ only in numbers become one line.

    A single missing rank is left out: `describe_incomplete_input` gives its warning.
    """
    groups: dict[str, list[tuple[str, str]]] = {}  # by the warning without its numbers: rank and warning
    shown_above = 1 if len(report.missing) == 1 else 0
    for number, trace in enumerate(report.traces[: len(report.traces) - shown_above]):
        rank = f"rank {number if trace.rank is None else trace.rank}"
        for warning in map(clean_line, trace.warnings):
            groups.setdefault(_NUMBER.sub("0", warning), []).append((rank, warning.rstrip(".")))
    return [_merge_warnings(group, len(report.traces)) for group in groups.values()]


def _merge_warnings(group: list[tuple[str, str]], traces: int) -> str:
    rank, warning = group[0]
    if traces == 1:
        return warning
    others = f", alike on {format_count(len(group) - 1, 'more rank')}" if len(group) > 1 else ""
    return f"{warning} ({rank}{others})"
