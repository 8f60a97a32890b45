"""PD003: a few slow steps hide in the mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._own_steps import OwnSteps, is_alone, may_be_preempted, own_durations_of
from perfdoctor.analyzers._pd003_causes import (
    cause_in_run,
    describe_slow_steps,
    find_skip_to_record,
    find_steps_with_content,
    format_ms,
    format_range,
    limit_severity,
    measure_excess,
    recurrence_of,
    see_excess,
)
from perfdoctor.analyzers._pd003_slow_steps import SlowSteps, find_slow_steps, measure_growth
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    count_work,
    even_out_work,
    is_rare,
    quantiles,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# From the shortest to the longest of the CPU's marks, as a share of the median step: then they mislead.
_UNEVEN_MARKS = 0.5
# From a tenth of the run on (a high finding) the title says what slow steps take of it.
_MUCH_OF_RUN = 0.1
# From this share of the run's time on an evaluation, or collecting experience, is part of what the program does: the
# usual step alone is no measure of it.
_PART_OF_RUN = 0.25

# Of steps that range widely, without any that stand out, about half are longer than the middle of the range.
_MOST_ARE_SLOW = 0.6


class UnstableSteps(RankAnalyzer):
    """Most steps take their usual time, and a few take much longer."""

    rule = "PD003"
    name = "unstable-steps"
    needs = frozenset({"steps"})
    # slow_factor: times the median; steady steps of real traces stay within 1.2 of it, those of this project's
    # benchmarks on a shared machine within 1.4. most_share: of the steps; more slow ones are no exception.
    # min_spread: of the median, from the shortest quarter to the longest; five times the noise between recordings.
    # min_share: of the time; half of a medium finding's 3 % is noise of a few steps.
    # min_steps: steps of the trace without its first. min_run_steps: steps of the captured run.
    defaults = {
        "slow_factor": 1.5,
        "most_share": 0.34,
        "min_spread": 0.2,
        "min_share": 0.05,
        "min_steps": 4,
        "min_run_steps": 20,
    }
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://research.google/pubs/the-tail-at-scale/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding: of slow steps, else of uneven ones, else of growth; and what only looks like one."""
        if rank.engine_passes is not None and len(set(rank.engine_passes.passes)) > 1:
            return
        steps = rank.run_steps
        run = None if steps is None else OwnSteps(steps, rank.contention, is_alone=is_alone(rank), drift=rank.drift)
        in_run, is_seen = self._check_run(rank, run) or (None, False)
        finding = (
            (in_run if is_seen else None)
            or self._check_trace(rank)
            or self._check_spread(rank)
            or in_run
            or self._check_growth(rank, run)
            or self._check_marks(rank)
        )
        if finding is not None:
            yield finding
        elif run is not None:
            yield from self._check_work(rank, run)
        if run is not None and rank.drift is None:  # else PD010 tells what has the cores
            yield from self._check_preemption(rank, run)

    def _find_costly_steps(self, dur_ns: Int64Array, min_steps: float) -> SlowSteps | None:
        """The slow ones of at least `min_steps` steps, if they cost enough."""
        if len(dur_ns) < min_steps:
            return None
        slow = find_slow_steps(dur_ns, self.settings["slow_factor"], self.settings["most_share"])
        return slow if slow is not None and slow.excess_ns >= self.settings["min_share"] * int(dur_ns.sum()) else None

    def _check_trace(self, rank: Rank) -> Finding | None:
        own_ns = own_durations_of(rank)
        steps, dur_ns = rank.steps.intervals[1:], own_ns[1:]
        slow = self._find_costly_steps(dur_ns, self.settings["min_steps"])
        if slow is None:
            return None
        is_slow = np.zeros(rank.steps.count, bool)
        is_slow[slow.rows + 1] = True
        excess = iv.union(steps[slow.rows, 0] + slow.median_ns, steps[slow.rows, 0] + dur_ns[slow.rows])
        once = is_rare(slow.rows + 1, rank.steps.count)
        cost_ns = 0 if once else rank.per_step(iv.total(excess))
        longest_ns = int(dur_ns.max())
        title = describe_slow_steps(slow, len(steps), longest_ns, "steps")
        if once and len(slow) == 1:
            times = f"{longest_ns / slow.median_ns:.1f} times the median"
            title = f"a step takes {format_ms(rank, longest_ns)} ms, {times}"
        seen = see_excess(rank, is_slow, slow.excess_ns / len(slow))
        if not seen.cause.is_seen and may_be_preempted(rank, is_slow):
            return None
        return seen.limit_severity(
            rank,
            self.finding(
                rank,
                title=f"{title}: {seen.cause.text}",
                occurs_once=once and len(slow) == 1,
                cost_ns=cost_ns,
                saving=Saving() if once else Saving(0, None, cost_ns, "bounded"),
                advice=seen.cause.advice,
                claim=Claim(excess),
                confidence=0.6,
                evidence=(
                    Evidence("usual step", rank.to_unprofiled_ns(slow.median_ns), "ns"),
                    Evidence("longest step", rank.to_unprofiled_ns(longest_ns), "ns"),
                    *seen.evidence("a slow step"),
                ),
                subject="trace",
                recurrence=recurrence_of(slow, dur_ns, rank),
            ),
        )

    def _check_spread(self, rank: Rank) -> Finding | None:
        """Steps that range widely, without a few slow ones that stand out."""
        steps, dur_ns = rank.steps.intervals[1:], own_durations_of(rank)[1:]
        if len(dur_ns) < max(self.settings["min_steps"], 2):
            return None
        quartile_ns, upper_ns = map(int, quantiles(dur_ns, (0.25, 0.75)))
        ends = steps[:, 0] + dur_ns
        excess = iv.union(np.minimum(steps[:, 0] + quartile_ns, ends), ends)
        cost_ns = rank.per_step(iv.total(excess))
        ranges = upper_ns - quartile_ns > self.settings["min_spread"] * float(np.median(dur_ns))
        if not ranges or not self.exceeds_min_share(rank, cost_ns):
            return None
        is_slow = np.zeros(rank.steps.count, bool)
        is_slow[1:] = dur_ns > (quartile_ns + upper_ns) / 2
        if is_slow[1:].mean() > _MOST_ARE_SLOW:
            return None  # the usual step is a long one: a few short steps are no fault of the others
        seen = see_excess(rank, is_slow, upper_ns - quartile_ns)
        if not seen.cause.is_seen and may_be_preempted(rank, is_slow):
            return None
        return seen.limit_severity(
            rank,
            self.finding(
                rank,
                title=f"Steps take {format_range(rank, dur_ns)}: {seen.cause.text} in the long ones",
                cost_ns=cost_ns,
                saving=Saving(0, None, cost_ns, "bounded"),
                advice=seen.cause.advice,
                claim=Claim(excess),
                confidence=0.4,
                evidence=(
                    Evidence("a quarter of the steps takes at most", rank.to_unprofiled_ns(quartile_ns), "ns"),
                    Evidence("longest step", rank.to_unprofiled_ns(int(dur_ns.max())), "ns"),
                    *seen.evidence("a long one"),
                ),
                subject="spread",
            ),
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
            title=f"The CPU's steps take {format_range(rank, marks)}, but the GPU finishes one every "
            f"{format_range(rank, dur_ns)}",
            advice="Time steps on the GPU (CUDA events), or over many steps. The program needs no fix: the CPU runs "
            "ahead of the GPU and waits for it now in one step, now in another.",
            confidence=0.8,
            evidence=(
                Evidence("longest step on the CPU", int(marks.max()), "ns"),
                Evidence("longest step on the GPU", int(dur_ns.max()), "ns"),
            ),
            subject="marks",
        )

    def _check_run(self, rank: Rank, run: OwnSteps | None) -> tuple[Finding, bool] | None:
        """A finding on the steps of the run, and whether its cause was seen."""
        if run is None or len(run.even_ns) < self.settings["min_run_steps"]:
            return None
        steps, count = run.steps, len(run.even_ns)
        min_excess_ns = self.settings["min_share"] * int(run.even_ns.sum())
        with_content = find_steps_with_content(steps, run.even_ns, self.settings["most_share"])
        costly = [pair for pair in with_content if pair[0].excess_ns >= min_excess_ns]
        if costly:
            slow, cause = max(costly, key=lambda pair: pair[0].excess_ns)
            spacing = slow.spacing(steps.number)
        elif rank.drift is not None:
            return None  # what is uneven in what grows is PD010's
        else:
            found = self._find_costly_steps(run.even_ns, self.settings["min_run_steps"])
            if found is None:
                return None
            slow, spacing = found, found.spacing(steps.number)
            skip = find_skip_to_record(rank, steps, slow, spacing)
            cause = cause_in_run(steps, slow, skip, is_regular=spacing is not None)
            if not cause.is_seen and (self._is_disturbed(run) or 2 * int(run.lost_core[slow.rows].sum()) > len(slow)):
                return None
        longest_ns = int(run.even_ns[slow.rows].max())
        every = f", every {spacing} steps" if spacing else ""
        share = slow.excess_ns / int(run.even_ns.sum())
        of_run = f"; {share:.0%} of the run's time" if share >= _MUCH_OF_RUN else ""
        title = describe_slow_steps(slow, count, longest_ns, "steps of the run")
        title = f"{title}{every}{f': {cause.text}' if cause.text else ''}{of_run}"
        # Of the step of the report: those of the run may hold waits for a core, which it has not.
        of_step = min(slow.excess_ns / count / max(slow.median_ns, 1), 1)
        is_part_of_run = share >= _PART_OF_RUN and cause.is_intended and len(slow) > 1
        if is_part_of_run:
            of_step = share
            title = f"{share:.0%} of the run goes to {len(slow):,} of {count:,} steps{every}: {cause.text}"
        finding = self.finding(
            rank,
            title=title,
            cost_ns=0 if len(slow) == 1 else round(of_step * rank.mean_step_ns),
            saving=Saving(),  # none of it lies in the trace, and some of it may be intended
            advice=cause.advice,
            actions=cause.actions,
            confidence=0.7,
            evidence=(
                Evidence("usual step", slow.median_ns, "ns"),
                Evidence("longest step", longest_ns, "ns"),
                Evidence("share of the run's time", round(100 * share, 1), "%"),
                Evidence("first slow step", int(steps.number[slow.rows[0]]), "count"),
                Evidence("more wait for the loader in a slow step", measure_excess(steps.loader_wait_ns, slow), "ns"),
                Evidence("more CPU time in a slow step", measure_excess(steps.cpu_ns, slow), "ns"),
            ),
            subject="run",
            recurrence=None if is_part_of_run else recurrence_of(slow, run.even_ns),
        )
        finding = replace(finding, seen_in=steps.numbers_of(slow.rows))
        finding = replace(finding, severity="medium") if is_part_of_run else limit_severity(finding, cause)
        return finding, cause.is_seen

    def _check_growth(self, rank: Rank, run: OwnSteps | None) -> Finding | None:
        if run is None or len(run.even_ns) < self.settings["min_run_steps"] or rank.drift is not None:
            return None
        growth = measure_growth(run.even_ns)
        if run.steps.cpu_ns is not None:  # steps that wait longer and longer may wait for others
            growth = min(growth, measure_growth(even_out_work(run.steps.cpu_ns, run.steps)))
        if growth < self.settings["slow_factor"] or self._is_disturbed(run):
            return None
        first_ns = float(np.median(run.even_ns[: len(run.even_ns) // 4]))
        finding = self.finding(
            rank,
            title=f"Steps keep growing: the last quarter of the run takes {growth:.1f} times as long as the first",
            cost_ns=min(round(float(run.even_ns.mean()) - first_ns), rank.mean_step_ns),
            advice="If the program gives later steps more work (longer episodes or inputs), nothing is wrong. Else "
            "find what grows: a list of losses that keeps its graphs (detach them), a buffer that is searched. Record "
            f"late steps beside early ones: perfdoctor run --skip {int(run.steps.number[-1]) // 2} ..., and then "
            "perfdoctor compare.",
            confidence=0.6,
            evidence=(Evidence("median step of the first quarter", round(first_ns), "ns"),),
            subject="growth",
        )
        return replace(finding, severity="low")  # whether it is a fault was not seen

    def _check_work(self, rank: Rank, run: OwnSteps) -> Iterator[Finding]:
        """Steps that are slow only because they hold more micro-batches: no fault."""
        slow = self._find_costly_steps(run.own_ns, self.settings["min_run_steps"])
        work = count_work(run.steps)
        if slow is None or work is None:
            return
        usual, largest = round(float(np.median(work))), int(work[slow.rows].max())
        if largest <= usual:
            return
        yield self.finding(
            rank,
            title=f"{describe_slow_steps(slow, len(run.own_ns), int(run.own_ns.max()), 'steps of the run')}: "
            f"they hold up to {largest:,} micro-batches instead of {usual:,}",
            advice="Nothing is wrong: these steps do more. Compare the time of a micro-batch.",
            evidence=(Evidence("usual step", slow.median_ns, "ns"),),
            subject="work",
        )

    def _is_disturbed(self, run: OwnSteps) -> bool:
        """Whether other programs took so much of the run that its step times are not the program's."""
        return run.is_shared or run.lost_ns >= self.settings["min_share"] * int(run.steps.dur_ns.sum())

    def _check_preemption(self, rank: Rank, run: OwnSteps) -> Iterator[Finding]:
        """Steps that other programs made longer: no fault of this one."""
        lost_ns, count = run.lost_ns, int(run.is_preempted.sum())
        total_ns = int(run.steps.dur_ns.sum())
        if len(run.own_ns) < self.settings["min_steps"] or not lost_ns or run.is_shared:  # which the report warns of
            return
        if lost_ns < self.settings["min_share"] * total_ns:
            return
        yield self.finding(
            rank,
            title=f"The machine was shared: other programs made {count:,} of {len(run.own_ns):,} steps longer, by "
            f"{lost_ns / total_ns:.0%} of the run's time",
            advice="Nothing in the program is wrong. Compare medians, or measure again on a quiet machine.",
            confidence=0.8,
            evidence=(Evidence("preempted steps", count, "count"), Evidence("time that others took", lost_ns, "ns")),
            subject="preemption",
        )
