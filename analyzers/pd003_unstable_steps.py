"""PD003: a few slow steps hide in the mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._pd003_slow_steps import (
    SlowSteps,
    find_largest_activity_excess,
    find_largest_part_excess,
    find_slow_steps,
    measure_growth,
)
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Rank,
    RankAnalyzer,
    Recurrence,
    Saving,
    is_rare,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# By part of the account: what slow steps contain more of, in words, and what to do about it.
_CAUSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "compute": ("more GPU work", "Group batches by length, or cap it, if inputs vary; evaluate less often."),
        "bandwidth": ("more GPU work", "Group batches by length, or cap it, if inputs vary; evaluate less often."),
        "memcpy": ("more copying", "Write checkpoints and logs rarely, and copy from pinned memory for them."),
        "communication": ("longer collectives", "Analyse the ranks together: another one is late in these steps."),
        "latency": ("more small kernels", "Evaluate and log less often: such work runs in these steps."),
        "idle_dataloader": (
            "waits for the loader",
            "Even it out by persistent_workers=True and a larger prefetch_factor.",
        ),
        "idle_sync": ("waits for the GPU", "Read values back less often: these steps wait for some."),
        "idle_allocator": ("memory allocation", "Warm up with the largest input; keep sizes few."),
        "idle_communication": (
            "waits for other ranks",
            "Analyse the ranks together: another one is late in these steps.",
        ),
    }
)
# From the shortest to the longest of the CPU's marks, as a share of the median step: then they mislead.
_UNEVEN_MARKS = 0.5
_MORE: Mapping[str, str] = MappingProxyType(
    {
        "idle_dataloader": "more waits for the loader",
        "idle_sync": "more waits for the GPU",
        "idle_communication": "more waits for other ranks",
        "idle_allocator": "more memory allocation",
    }
)
_CPU_WORK = ("work on the CPU", "Write checkpoints, evaluate and log less often, or on a thread of its own.")
# Names in evidence of parts of the account whose own names say little.
_PART_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "memcpy": "copying",
        "latency": "time in short kernels or ops",
        "idle_dataloader": "wait for the loader",
        "idle_sync": "wait for the GPU",
        "idle_launch": "time between launches or ops",
        "idle_communication": "wait for other ranks",
        "idle_allocator": "memory allocation",
        "idle_unexplained": "unexplained time",
    }
)


class UnstableSteps(RankAnalyzer):
    """Most steps take their usual time, and a few take much longer.

    What it finds:
        Steps of more than one and a half times the median that add up to a share of the time: in the trace, and among
        the step times of a whole captured run, which contains the rare ones. Steps whose middle half ranges by
        a fifth of the median; and marks on the CPU that range so, while the GPU finishes steps evenly.

    Why it costs time:
        A checkpoint, an evaluation, a log or a batch of unusual size every N steps is invisible in a median and looks
        like a slightly slower step in a mean.

    How it is measured:
        The cost is the excess of slow steps over the median where they come back; one or two slow steps, or some in the
        first half of the trace alone, happen once and cost the median step nothing. Of steps that range, it is the
        time beyond the shortest quarter of them. The cause is the part of the account, and the op or
        annotation, in which slow steps exceed the usual ones most. The first step of a trace does not count (recording
        it takes up to three times as long), nor do steps of a capture that ran under the profiler.

    How to fix:
        By the cause: evaluate and save less often, save on a thread of its own, keep workers alive between epochs,
        group batches by length.

    When it is wrong:
        Slow steps that are intended (an evaluation every 1000 steps) are a price, no fault: the saving has no lower
        bound. On a machine shared with other programs nobody may have caused them.

    Needs:
        Steps. Captured step times (`perfdoctor run`) for those outside of the trace.

    References:
        PyTorch Performance Tuning Guide; Dean and Barroso, "The Tail at Scale".
    """

    rule: ClassVar[str] = "PD003"
    name: ClassVar[str] = "unstable-steps"
    needs: ClassVar[frozenset[str]] = frozenset({"steps"})
    # slow_factor: times the median; steady steps of real traces stay within 1.2 of it, those of this project's
    # benchmarks on a shared machine within 1.4. most_share: of the steps; more slow ones are no exception.
    # min_spread: of the median, from the shortest quarter to the longest; five times the noise between recordings.
    # min_share: of the time; half of a medium finding's 3 % is noise of a few steps.
    # min_steps: steps of the trace without its first. min_run_steps: steps of the captured run.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "slow_factor": 1.5,
            "most_share": 0.34,
            "min_spread": 0.2,
            "min_share": 0.05,
            "min_steps": 4,
            "min_run_steps": 20,
        }
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://research.google/pubs/the-tail-at-scale/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding: of slow steps, else of uneven ones, in the trace, else of those in the run, else of growth."""
        finding = (
            self._check_trace(rank)
            or self._check_spread(rank)
            or self._check_run(rank)
            or self._check_growth(rank)
            or self._check_marks(rank)
        )
        if finding is not None:
            yield finding

    def _find_costly_steps(self, dur_ns: Int64Array, min_steps: float) -> SlowSteps | None:
        """The slow ones of at least `min_steps` steps, if they cost enough."""
        if len(dur_ns) < min_steps:
            return None
        slow = find_slow_steps(dur_ns, self.settings["slow_factor"], self.settings["most_share"])
        return slow if slow is not None and slow.excess_ns >= self.settings["min_share"] * int(dur_ns.sum()) else None

    def _check_trace(self, rank: Rank) -> Finding | None:
        steps = rank.steps.intervals[1:]
        dur_ns = rank.steps.durations_ns[1:]
        slow = self._find_costly_steps(dur_ns, self.settings["min_steps"])
        if slow is None:
            return None
        is_slow = np.zeros(rank.steps.count, bool)
        is_slow[slow.rows + 1] = True
        part, part_ns = find_largest_part_excess(rank, is_slow)
        cause, advice = _cause_of(rank, part)
        activity, activity_ns = find_largest_activity_excess(rank, is_slow) or (None, None)
        excess = iv.union(steps[slow.rows, 0] + slow.median_ns, steps[slow.rows, 1])
        once = is_rare(slow.rows + 1, rank.steps.count)
        cost_ns = 0 if once else rank.per_step(iv.total(excess))
        longest_ns = int(dur_ns.max())
        title = _describe_slow_steps(slow, len(steps), longest_ns, "steps")
        if once and len(slow) == 1:
            times = f"{longest_ns / slow.median_ns:.1f} times the median"
            title = f"Once in this trace: a step takes {longest_ns / 1e6:.3g} ms, {times}"
        return self.finding(
            rank,
            title=f"{title}: {cause}",
            cost_ns=cost_ns,
            saving=Saving() if once else Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(excess),
            confidence=0.6,
            evidence=(
                Evidence("usual step", slow.median_ns, "ns"),
                Evidence("longest step", longest_ns, "ns"),
                Evidence(f"more {_PART_NAMES.get(part, part)} in a slow step", part_ns, "ns"),
                Evidence("most more time in", activity),
                Evidence("that is, in a slow step", activity_ns, "ns"),
            ),
            subject="trace",
            recurrence=_recurrence_of(slow, dur_ns),
        )

    def _check_spread(self, rank: Rank) -> Finding | None:
        """Steps that range widely, without a few slow ones that stand out."""
        steps, dur_ns = rank.steps.intervals[1:], rank.steps.durations_ns[1:]
        if len(dur_ns) < self.settings["min_steps"]:
            return None
        quartile_ns, upper_ns = (int(np.quantile(dur_ns, share)) for share in (0.25, 0.75))
        excess = iv.union(np.minimum(steps[:, 0] + quartile_ns, steps[:, 1]), steps[:, 1])
        cost_ns = rank.per_step(iv.total(excess))
        ranges = upper_ns - quartile_ns > self.settings["min_spread"] * float(np.median(dur_ns))
        if not ranges or not self.exceeds_min_share(rank, cost_ns):
            return None
        is_slow = np.zeros(rank.steps.count, bool)
        is_slow[1:] = dur_ns > (quartile_ns + upper_ns) / 2
        part, part_ns = find_largest_part_excess(rank, is_slow)
        cause, advice = _cause_of(rank, part)
        activity, activity_ns = find_largest_activity_excess(rank, is_slow) or (None, None)
        return self.finding(
            rank,
            title=f"Steps take {_format_range(dur_ns)}: {_MORE.get(part, cause)} in the long ones",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(excess),
            confidence=0.4,
            evidence=(
                Evidence("a quarter of the steps takes at most", quartile_ns, "ns"),
                Evidence("longest step", int(dur_ns.max()), "ns"),
                Evidence(f"more {_PART_NAMES.get(part, part)} in the long ones", part_ns, "ns"),
                Evidence("most more time in", activity),
                Evidence("that is, in a long one", activity_ns, "ns"),
            ),
            subject="spread",
        )

    def _check_marks(self, rank: Rank) -> Finding | None:
        """Marks on the CPU that range widely while the GPU finishes steps evenly: no fault, but it looks like one."""
        marks = rank.trace.ranges.dur_ns[rank.trace.match_rows(rank.trace.ranges, vocabulary.PROFILER_STEP)][1:]
        dur_ns = rank.steps.durations_ns[1:]
        if len(marks) != len(dur_ns) or len(dur_ns) < self.settings["min_steps"]:
            return None
        on_gpu, on_cpu = (float(each.max() - each.min()) / float(np.median(dur_ns)) for each in (dur_ns, marks))
        if on_cpu < max(_UNEVEN_MARKS, self.settings["min_share"]) or on_gpu > on_cpu / 2:
            return None
        return self.finding(
            rank,
            title=f"The CPU's steps take {_format_range(marks)}, but the GPU finishes one every "
            f"{_format_range(dur_ns)}",
            cost_ns=0,
            saving=Saving(),
            advice="Time steps on the GPU (CUDA events), or over many steps. The program needs no fix: the CPU runs "
            "ahead of the GPU and waits for it now in one step, now in another.",
            claim=Claim(),
            confidence=0.8,
            evidence=(
                Evidence("longest step on the CPU", int(marks.max()), "ns"),
                Evidence("longest step on the GPU", int(dur_ns.max()), "ns"),
            ),
            subject="marks",
        )

    def _check_run(self, rank: Rank) -> Finding | None:
        steps = rank.run_steps
        slow = None if steps is None else self._find_costly_steps(steps.dur_ns, self.settings["min_run_steps"])
        if steps is None or slow is None:
            return None
        count = len(steps.dur_ns)
        spacing = slow.spacing(steps.number)
        usual = np.ones(count, bool)
        usual[slow.rows] = False
        wait_excess_ns = int(steps.loader_wait_ns[slow.rows].mean() - np.median(steps.loader_wait_ns[usual]))
        waits_for_loader = wait_excess_ns > slow.excess_ns / len(slow) / 2
        cause, advice = _CAUSES["idle_dataloader"] if waits_for_loader else _CPU_WORK
        if not waits_for_loader and spacing is None:
            advice += " Where other programs share the machine, steps that are slow now and then are nobody's doing."
        longest_ns = int(steps.dur_ns.max())
        return self.finding(
            rank,
            title=f"{_describe_slow_steps(slow, count, longest_ns, 'steps of the run')}"
            f"{f', every {spacing} steps' if spacing else ''}{f': it {cause}' if waits_for_loader else ''}",
            cost_ns=0 if len(slow) == 1 else min(round(slow.excess_ns / count), rank.per_step(rank.window_ns)),
            saving=Saving(),  # none of it lies in the trace, and some of it may be intended
            advice=advice,
            claim=Claim(),
            confidence=0.7,
            evidence=(
                Evidence("usual step", slow.median_ns, "ns"),
                Evidence("longest step", longest_ns, "ns"),
                Evidence("share of the run's time", round(100 * slow.excess_ns / int(steps.dur_ns.sum()), 1), "%"),
                Evidence("first slow step", int(steps.number[slow.rows[0]]), "count"),
                Evidence("more wait for the loader in a slow step", wait_excess_ns, "ns"),
            ),
            subject="run",
            recurrence=_recurrence_of(slow, steps.dur_ns),
        )

    def _check_growth(self, rank: Rank) -> Finding | None:
        steps = rank.run_steps
        if steps is None or len(steps.dur_ns) < self.settings["min_run_steps"]:
            return None
        growth = measure_growth(steps.dur_ns)
        if growth < self.settings["slow_factor"]:
            return None
        first_ns = float(np.median(steps.dur_ns[: len(steps.dur_ns) // 4]))
        return self.finding(
            rank,
            title=f"Steps keep growing: the last quarter of the run takes {growth:.1f} times as long as the first",
            cost_ns=min(round(float(steps.dur_ns.mean()) - first_ns), rank.per_step(rank.window_ns)),
            saving=Saving(),
            advice="Detach what is kept, and look for what grows with the run: a list of losses that keeps its graphs, "
            "a buffer that is searched, inputs (a curriculum).",
            claim=Claim(),
            confidence=0.6,
            evidence=(Evidence("median step of the first quarter", round(first_ns), "ns"),),
            subject="growth",
        )


def _cause_of(rank: Rank, part: str) -> tuple[str, str]:
    """What slow steps contain more of, in words that fit the device, and what to do about it."""
    cause, advice = _CAUSES.get(part, _CPU_WORK)
    return cause.replace("GPU work", "work in the ops") if rank.device_kind == "cpu" else cause, advice


def _recurrence_of(slow: SlowSteps, dur_ns: Int64Array) -> Recurrence:
    """In how many of the steps it is slow, and by how much these exceed the median."""
    excess_ns = dur_ns[slow.rows] - slow.median_ns
    return Recurrence(len(slow), len(dur_ns), int(np.median(excess_ns)), int(excess_ns.max()))


def _format_range(dur_ns: Int64Array) -> str:
    return f"{dur_ns.min() / 1e6:,.3g} to {dur_ns.max() / 1e6:,.3g} ms"


def _describe_slow_steps(slow: SlowSteps, count: int, longest_ns: int, steps: str) -> str:
    take = "takes" if len(slow) == 1 else "take up to"
    return f"{len(slow)} of {count:,} {steps} {take} {longest_ns / slow.median_ns:.1f} times the median"
